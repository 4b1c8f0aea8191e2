"""Inverted dropout whose masks depend on seed and step only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Dropout:
    """Inverted dropout whose masks depend on seed and step only; two random bytes per element.

    With `rows` and `batch`, values are these rows of a batch: they get the part of its masks that is theirs.

    >>> Dropout(0.5, seed=0, step=0)(torch.ones(6))
    tensor([2., 0., 0., 0., 0., 2.])
    >>> Dropout(0.5, seed=0, step=0, rows=slice(4, 6), batch=6)(torch.ones(2))
    tensor([0., 2.])
    """

    def __init__(self, rate: float, seed: int, step: int, rows: slice | None = None, batch: int | None = None) -> None:
        self.keep, self.rows, self.batch = 1 - rate, rows or slice(None), batch
        self.threshold = round(rate * 2**16) - 2**15
        self.draw = np.random.SFC64([seed, step])
        self._left = np.empty(0, np.uint32)  # the second half of a number that was drawn

    def __call__(self, values: Tensor) -> Tensor:
        factors = self.factors(values.shape)
        return values if factors is None else values * factors.to(values.device)

    def factors(self, shape: Sequence[int]) -> Tensor | None:
        """What values of this shape are multiplied with: 0, or 1 / (1 - rate); None if the rate is 0."""
        if self.keep == 1:
            return None
        whole = (self.batch or shape[0], *shape[1:])
        drawn = self._words(-(-math.prod(whole) // 2)).view(np.int16)[: math.prod(whole)].reshape(whole)[self.rows]
        return torch.from_numpy(np.multiply(drawn >= self.threshold, np.float32(1 / self.keep), dtype=np.float32))

    def _words(self, number: int) -> np.ndarray:
        """The next 32-bit words: those of `np.random.Generator.bytes`, without its detour over single words."""
        raw = self.draw.random_raw((number - len(self._left) + 1) // 2).astype("<u8", copy=False).view("<u4")
        words = np.concatenate([self._left, raw]) if len(self._left) else raw
        self._left = words[number:].copy()
        return words[:number]
