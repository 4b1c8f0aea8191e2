"""Partial induction, which needs both: which attribute was bound to this symbol last?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from .retrieval import Retrieval


@dataclass(frozen=True)
class Induction(Retrieval):
    """As retrieval, with symbols that repeat: the answer is the attribute of the last occurrence.

    >>> task = Induction(length=5, symbols=2, attributes=9)
    >>> prompts = task.sample(8, seed=3)
    >>> task.decode(prompts.tokens[0]), prompts.answers[0], prompts.places[0]
    ('b5 b1 a5 a7 a8 b', tensor(0), tensor(1))
    """

    name: ClassVar[str] = "induction"

    @property
    def fewest_symbols(self) -> int:
        return 2

    def _symbols(self, places: Int[Tensor, " B"], draw: torch.Generator) -> Int[Tensor, "B N"]:
        """Any symbols up to the place; after it, all but the one asked for."""
        symbols = torch.randint(self.symbols, (len(places), self.length), generator=draw)
        asked = symbols.gather(1, places[:, None])
        steps = torch.randint(1, self.symbols, symbols.shape, generator=draw)
        later = torch.arange(self.length) > places[:, None]
        return torch.where(later, (asked + steps) % self.symbols, symbols)
