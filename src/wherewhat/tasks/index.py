"""The index task, which needs positions: which symbol is at position j?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from .hops import letter_names
from .lookups import LookupTask


@dataclass(frozen=True)
class Index(LookupTask):
    """Any symbols, then a position, counted from 1; the answer is the symbol at that position.

    >>> task = Index(length=4, symbols=3)
    >>> prompts = task.sample(8, seed=3)
    >>> task.decode(prompts.tokens[0]), prompts.answers[0], prompts.places[0]
    ('b a c a 4', tensor(0), tensor(3))
    """

    @property
    def answers(self) -> int:
        return self.symbols

    @property
    def questions(self) -> int:
        return self.length

    @cached_property
    def words(self) -> list[str]:
        return [*letter_names(self.symbols), *map(str, range(1, self.length + 1))]

    def _tokens(
        self, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], draw: torch.Generator
    ) -> Int[Tensor, "B T"]:
        symbols = torch.randint(self.symbols, (len(places), self.length), generator=draw)
        symbols.scatter_(1, places[:, None], answers[:, None])
        return torch.cat([symbols, self.symbols + places[:, None]], 1)
