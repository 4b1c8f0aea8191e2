"""The number task, which needs positions: from an integer m at position p go to p - m, until a letter is reached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from .hops import HopTask, Sequences, balanced, letter_names


@dataclass(frozen=True)
class Number(HopTask):
    """Letters, then integers; the answer is the letter that the hops from the last integer end at.

    >>> task = Number(targets=3, pretargets=5)
    >>> example = task.encode("c b a 1 4 1 3 2 1")           # hops of 1, 2, 1 and 4 to the left end at c
    >>> task.decode(task.sample(1, seed=3).tokens[0])
    'bk bh dc 2 2 5 2 5 6'
    """

    letters: int = 120
    name: ClassVar[str] = "number"

    @property
    def longest(self) -> int:
        """The largest integer: from the query to the first target."""
        return self.targets + self.pretargets

    @cached_property
    def symbols(self) -> list[str]:
        return ["pad", *map(str, range(1, self.longest + 1)), *letter_names(self.letters)]

    def sample(self, count: int, seed: int = 0) -> Sequences:
        draw = torch.Generator().manual_seed(seed)
        leaves, letters, hops = balanced(count, (self.targets, self.letters, self.most_hops), draw)
        hops = hops + 1
        path = self._paths(leaves, hops, draw)
        tokens = torch.empty(count, self.tokens, dtype=torch.long)
        tokens[:, : self.targets] = self._letters((count, self.targets), draw)
        tokens.scatter_(1, leaves[:, None], self._letter_ids(letters)[:, None])
        # Every integer points to a random earlier position; those on the path point to its next position.
        places = torch.arange(self.targets, self.tokens)
        tokens[:, self.targets :] = (torch.rand(count, len(places), generator=draw) * places).long() + 1
        steps = path[:, :-1] - path[:, 1:]
        used = path[:, 1:] >= 0
        rows = torch.arange(count)[:, None].expand(used.shape)
        tokens[rows[used], path[:, :-1][used]] = steps[used]
        return Sequences(tokens, self._letter_ids(letters), hops, path)

    def extend(self, sequences: Sequences, extra: int, seed: int = 0) -> Sequences:
        more = self._letters((len(sequences), extra), torch.Generator().manual_seed(seed))
        path = torch.where(sequences.path < 0, -1, sequences.path + extra)
        return Sequences(torch.cat([more, sequences.tokens], 1), sequences.answers, sequences.hops, path)

    def _letter_ids(self, letters: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        return letters + self.longest + 1

    def _letters(self, shape: tuple[int, int], draw: torch.Generator) -> Int[Tensor, "B T"]:
        return self._letter_ids(torch.randint(self.letters, shape, generator=draw))
