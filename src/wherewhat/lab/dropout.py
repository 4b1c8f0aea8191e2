"""Inverted dropout whose masks depend on seed and step only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Dropout:
    """Inverted dropout whose masks depend on seed and step only; two random bytes per element.

    >>> Dropout(0.5, seed=0, step=0)(torch.ones(6))
    tensor([2., 0., 0., 0., 0., 2.])
    """

    def __init__(self, rate: float, seed: int, step: int) -> None:
        self.keep = 1 - rate
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
        drawn = self._words(-(-int(np.prod(shape)) // 2)).view(np.int16)[: int(np.prod(shape))]
        made = np.multiply(drawn >= self.threshold, np.float32(1 / self.keep), dtype=np.float32)
        return torch.from_numpy(made.reshape(shape))

    def _words(self, number: int) -> np.ndarray:
        """The next 32-bit words: those of `np.random.Generator.bytes`, without its detour over single words."""
        raw = self.draw.random_raw((number - len(self._left) + 1) // 2).astype("<u8", copy=False).view("<u4")
        words = np.concatenate([self._left, raw]) if len(self._left) else raw
        self._left = words[number:].copy()
        return words[:number]
