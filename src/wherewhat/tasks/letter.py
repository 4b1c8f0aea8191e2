"""The letter task, which needs symbols: from (x, y) go to the earlier token that starts with y, until a digit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .hops import HopTask, Sequences, balanced, on_path


@dataclass(frozen=True)
class Letter(HopTask):
    """Atomic (letter, digit) tokens, then (letter, letter) tokens; the answer is the (letter, digit) token reached.

    >>> task = Letter(targets=3, pretargets=5, letters=9)
    >>> example = task.encode("C2 B1 A3 FA EC DE HF GD IG")  # G, D, E, C: the answer is C2
    >>> task.decode(task.sample(1, seed=3).tokens[0])
    'A5 D8 H3 IG IA FD IF AG EH'
    """

    letters: int = 8
    digits: int = 8
    name: ClassVar[str] = "letter"

    @cached_property
    def symbols(self) -> list[str]:
        names = ascii_uppercase[: self.letters]
        targets = [letter + str(digit) for letter in names for digit in range(1, self.digits + 1)]
        return ["pad", *targets, *(first + second for first in names for second in names)]

    def sample(self, count: int, seed: int = 0) -> Sequences:
        draw = torch.Generator().manual_seed(seed)
        sizes = (self.targets, self.letters, self.digits, self.most_hops)
        leaves, answer, digits, hops = balanced(count, sizes, draw)
        hops = hops + 1
        path = self._paths(leaves, hops, draw)
        # Letters in random order, that of the answer moved to the end of the path: the first `hops` are on the path.
        order = torch.rand(count, self.letters, generator=draw).argsort(1)
        last = hops[:, None] - 1
        order = torch.where(order == answer[:, None], order.gather(1, last), order).scatter(1, last, answer[:, None])
        free = self._free(order, hops)
        first, second = (self._draw(free, self.tokens, draw) for _ in range(2))
        rows = torch.arange(count)[:, None].expand(-1, self.most_hops)
        used = path[:, 1:] >= 0
        first[rows[used], path[:, 1:][used]] = order[:, : self.most_hops][used]
        second[rows[used], path[:, :-1][used]] = order[:, : self.most_hops][used]
        number = torch.randint(self.digits, (count, self.targets), generator=draw)
        number = number.scatter(1, leaves[:, None], digits[:, None])
        targets = self._target_ids(first[:, : self.targets], number)
        others = 1 + self.letters * self.digits + first * self.letters + second
        tokens = torch.cat([targets, others[:, self.targets :]], 1)
        return Sequences(tokens, self._target_ids(answer, digits), hops, path)

    def extend(self, sequences: Sequences, extra: int, seed: int = 0) -> Sequences:
        draw = torch.Generator().manual_seed(seed)
        first = self._first_letters(sequences.tokens)
        taken = on_path(sequences.path[:, 1:], sequences.tokens.shape[1])
        rows = torch.arange(len(first))[:, None].expand(first.shape)
        free = torch.ones(len(first), self.letters, dtype=torch.bool)
        free[rows[taken], first[taken]] = False
        number = torch.randint(self.digits, (len(first), extra), generator=draw)
        more = self._target_ids(self._draw(free, extra, draw), number)
        path = torch.where(sequences.path < 0, -1, sequences.path + extra)
        return Sequences(torch.cat([more, sequences.tokens], 1), sequences.answers, sequences.hops, path)

    def _free(self, order: Int[Tensor, "B A"], hops: Int[Tensor, " B"]) -> Bool[Tensor, "B A"]:
        """The letters with which no token of the path starts."""
        return torch.empty(order.shape, dtype=torch.bool).scatter(1, order, torch.arange(self.letters) >= hops[:, None])

    def _draw(self, free: Bool[Tensor, "B A"], count: int, draw: torch.Generator) -> Int[Tensor, "B T"]:
        """Uniform draws, with replacement, among the free letters of each row."""
        letters = free.to(torch.int8).argsort(1, descending=True)
        choice = (torch.rand(len(free), count, generator=draw) * free.sum(1, keepdim=True)).long()
        return letters.gather(1, choice)

    def _target_ids(self, letters: Int[Tensor, "*any"], digits: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        return 1 + letters * self.digits + digits

    def _first_letters(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        targets = self.letters * self.digits
        return torch.where(tokens <= targets, (tokens - 1) // self.digits, (tokens - 1 - targets) // self.letters)
