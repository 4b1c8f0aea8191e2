"""Freed memory is kept: large tensors lie on the heap, where it is reused, instead of in mappings of their own."""

import os
import platform
import subprocess
import sys

import pytest

CHOSEN = ("MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES")  # of an allocator or its thresholds
# Whether a tensor of 24 MB lies on the heap.
ON_THE_HEAP = """
from pathlib import Path
import torch
from wherewhat.core.memory import keep_freed_memory

if {keep}:
    keep_freed_memory()
tensor = torch.empty(24 * 2**20, dtype=torch.uint8)
heap = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
first, last = (int(address, 16) for address in heap.split()[0].split("-"))
print(first <= tensor.data_ptr() < last)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a property of glibc's allocator")
@pytest.mark.parametrize("keep", [True, False])
def test_large_tensors_lie_on_the_heap_only_if_freed_memory_is_kept(keep: bool) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ON_THE_HEAP.format(keep=keep)],
        env={name: value for name, value in os.environ.items() if not name.startswith(CHOSEN)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert run.stdout == f"{keep}\n"
