"""The compiled functions of `kernels`, where numba is installed; everything that they compute exists in plain torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

# Elements or pairs for which a second thread does not pay. Torch's own threads keep their cores busy while they wait
# for work, so that a further thread has to share one.
SMALL = 2**19
PARTS = 4  # into which the heads are divided, per thread


def compiled(values: Tensor) -> ModuleType | None:
    """The compiled functions, for float32 on a processor, if numba is installed and WHEREWHAT_COMPILED is not 0."""
    return _kernels() if values.device.type == "cpu" and values.dtype == torch.float32 else None


@lru_cache
def _kernels() -> ModuleType | None:
    if os.environ.get("WHEREWHAT_COMPILED") == "0":
        return None
    try:
        from . import kernels
    except (ImportError, RuntimeError):  # not installed, or no folder in which to keep compiled functions
        return None
    return kernels


def run_in_threads(kernel: Callable[..., None], work: int, first: Tensor, *others: Tensor | int) -> None:
    """Each head is computed by one thread, so that no number depends on how many threads there are.

    `work` is the number of elements or pairs to be computed. A thread that has to share its core takes fewer of the
    parts into which the heads are divided.
    """
    arrays = [value.detach().contiguous().numpy() if isinstance(value, Tensor) else value for value in (first, *others)]
    heads, threads = first.shape[-3], torch.get_num_threads() if work > SMALL else 1
    parts = min(heads, PARTS * threads) if threads > 1 else 1
    waiting = iter([(heads * part // parts, heads * (part + 1) // parts) for part in range(parts)])

    def compute() -> None:
        for low, high in waiting:
            kernel(*arrays, low, high)

    helpers = [_pool(os.getpid(), threads - 1).submit(compute) for _ in range(threads - 1)]
    try:
        compute()
    finally:
        for helper in helpers:
            helper.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, so each process has its own."""
    return ThreadPoolExecutor(threads, "wherewhat-pairs")
