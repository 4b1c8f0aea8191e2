"""Read a .gguf file in less memory than its parser needs on its own.

The parser keeps an array for every token of the vocabulary. Arrays that belong to a memory-mapped file are larger and
slower than plain ones; and what was read of the file stays in memory together with the weights made from it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np


@contextmanager
def small_reader() -> Iterator[None]:
    """Within this context, .gguf files are read with plain arrays, and released as their tensors are dequantised."""
    if find_spec("gguf") is None:
        yield
        return
    import gguf

    maps: list[mmap.mmap] = []

    class SmallReader(gguf.GGUFReader):
        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            maps.append(mapped._mmap)
            self._plain = np.asarray(mapped)

    def dequantize(data: Any, kind: Any) -> Any:
        made = whole(data, kind)
        if hasattr(mmap, "MADV_DONTNEED"):
            maps[-1].madvise(mmap.MADV_DONTNEED)  # pages that are needed again are read again
        return made

    whole, reader = gguf.dequantize, gguf.GGUFReader
    gguf.dequantize, gguf.GGUFReader = dequantize, SmallReader
    try:
        yield
    finally:
        gguf.dequantize, gguf.GGUFReader = whole, reader
