"""Memory that is freed and needed again at every layer or step stays in the process."""

from __future__ import annotations

from functools import cache

import torch

# Below 32 MB, up to which glibc adapts to the blocks that a program frees.
BLOCK = 2**25 - 2**16


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory; other allocators ignore it.

    glibc returns freed memory to the system once it exceeds twice the largest block freed so far. A forward pass whose
    keys are kept can then lose its pages and request them anew at every layer, which takes up to a tenth of its time.
    So a large block is freed here once. Nothing is written to it, so it takes no memory.
    """
    torch.empty(BLOCK, dtype=torch.uint8, device="cpu")
