"""Memory that is freed and needed again at every layer or step stays in the process."""

from __future__ import annotations

from functools import cache

import torch

# Just below 32 MB, the largest block to which glibc adapts its thresholds on 64-bit systems.
BLOCK = 2**25 - 2**16


@cache
def keep_freed_memory() -> None:
    """Let glibc reuse freed blocks of up to 32 MB, and keep up to 64 MB free at the top of its heap.

    glibc maps blocks above a threshold separately and unmaps them when they are freed, and it returns free memory at
    the top of its heap beyond another threshold. Both start at 128 KB. Freeing a mapped block of up to 32 MB raises
    the first to its size and the second to twice its size (mallopt(3)), unless the user has set one of them. So one
    such block is freed here, once. Nothing is written to it, so it takes no memory. Other allocators ignore it.
    """
    torch.empty(BLOCK, dtype=torch.uint8, device="cpu")
