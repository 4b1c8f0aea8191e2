"""The retrieval task, which needs symbols: which attribute is bound to this symbol?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import BadInput
from .hops import letter_names
from .lookups import LookupTask


@dataclass(frozen=True)
class Retrieval(LookupTask):
    """Pairs of a symbol and an attribute, one token each, all symbols distinct, then one of the symbols.

    >>> task = Retrieval(length=3, symbols=4, attributes=5)
    >>> prompts = task.sample(8, seed=3)
    >>> task.decode(prompts.tokens[0]), prompts.answers[0], prompts.places[0]
    ('d5 b2 c1 b', tensor(1), tensor(1))
    """

    attributes: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbols < self.fewest_symbols:
            raise BadInput(f"{self.name} needs at least {self.fewest_symbols} symbols, got {self.symbols}")

    @property
    def fewest_symbols(self) -> int:
        return self.length

    @property
    def answers(self) -> int:
        return self.attributes

    @property
    def questions(self) -> int:
        return self.symbols

    @cached_property
    def words(self) -> list[str]:
        symbols = letter_names(self.symbols)
        return [*(f"{symbol}{number}" for symbol in symbols for number in range(1, self.attributes + 1)), *symbols]

    def _tokens(
        self, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], draw: torch.Generator
    ) -> Int[Tensor, "B T"]:
        symbols = torch.rand(len(places), self.symbols, generator=draw).argsort(1)[:, : self.length]
        attributes = torch.randint(self.attributes, symbols.shape, generator=draw)
        attributes.scatter_(1, places[:, None], answers[:, None])
        asked = symbols.gather(1, places[:, None])
        return torch.cat([symbols * self.attributes + attributes, self.contents + asked], 1)
