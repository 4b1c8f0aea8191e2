"""Partial induction, which needs both: which attribute was last bound to this symbol?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .lookups import Lookups
from .retrieval import Retrieval


@dataclass(frozen=True)
class Induction(Retrieval):
    """Like retrieval, but symbols repeat: the answer is the attribute of the last occurrence.

    >>> task = Induction(length=5, symbols=2, attributes=9)
    >>> prompts = task.sample(8, seed=3)
    >>> task.decode(prompts.tokens[0]), prompts.answers[0], prompts.places[0]
    ('a5 a1 b6 b1 a8 a', tensor(7), tensor(4))
    """

    @property
    def fewest_symbols(self) -> int:
        return 2

    def sample(self, count: int, seed: int = 0) -> Lookups:
        """Uniform symbols and attributes; the question is the symbol at a uniform place, so late places answer most."""
        draw = torch.Generator().manual_seed(seed)
        symbols, attributes = (
            torch.randint(kinds, (count, self.length), generator=draw) for kinds in (self.symbols, self.attributes)
        )
        asked = symbols.gather(1, torch.randint(self.length, (count, 1), generator=draw))
        places = ((symbols == asked) * torch.arange(self.length)).argmax(1)
        tokens = torch.cat([symbols * self.attributes + attributes, self.contents + asked], 1)
        return Lookups(tokens, attributes.gather(1, places[:, None])[:, 0], places)
