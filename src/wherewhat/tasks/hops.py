"""What the multi-hop tasks share: sequences that hop from the last token, backwards, to the token that is the answer.

A sequence is a window of targets, a window of pre-targets and the query. The path starts at the query, visits some
pre-targets from right to left and ends at its leaf, a target. Leaf, answer and number of hops are balanced: all of
their combinations occur equally often, as far as the number of sequences allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import BadInput

# Train, validation and test as shares of all sequences: 432,000, 2,400 and 45,600 of 480,000.
SHARES = (0.9, 0.005, 0.095)
TOTAL = 480_000
PAD = 0


@dataclass(frozen=True)
class Sequences:
    """Token ids with their answers. `path` holds the positions visited, query first and leaf last, then -1."""

    tokens: Int[Tensor, "B T"]
    answers: Int[Tensor, " B"]
    hops: Int[Tensor, " B"]
    path: Int[Tensor, "B P"]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | Tensor) -> Sequences:
        return Sequences(self.tokens[rows], self.answers[rows], self.hops[rows], self.path[rows])


@dataclass(frozen=True)
class HopTask:
    """Windows and hops of a task; what tokens mean is up to each task."""

    targets: int = 8
    pretargets: int = 8
    most_hops: int = 4
    name: ClassVar[str]

    @property
    def tokens(self) -> int:
        """Length of a sequence."""
        return self.targets + self.pretargets + 1

    @cached_property
    def symbols(self) -> list[str]:
        """What each token id reads as; 0 is padding."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> Int[Tensor, " T"]:
        """The ids of symbols separated by blanks."""
        return torch.tensor([self.symbols.index(symbol) for symbol in text.split()])

    def decode(self, ids: Int[Tensor, " T"]) -> str:
        return " ".join(self.symbols[number] for number in ids.tolist())

    def sample(self, count: int, seed: int = 0) -> Sequences:
        """This many sequences, balanced and shuffled."""
        raise NotImplementedError

    def extend(self, sequences: Sequences, extra: int, seed: int = 0) -> Sequences:
        """The same sequences with this many more targets on their left: path, offsets and answers stay."""
        raise NotImplementedError

    def splits(self, seed: int = 0, total: int = TOTAL) -> tuple[Sequences, Sequences, Sequences]:
        """Training, validation and test sequences, each with all numbers of hops equally often."""
        everything = self.sample(total, seed)
        rows: tuple[list[Tensor], ...] = ([], [], [])
        for hops in range(1, self.most_hops + 1):
            those = (everything.hops == hops).nonzero().flatten()
            train, validation = round(SHARES[0] * len(those)), round(SHARES[1] * len(those))
            for split, part in zip(
                rows, those.split([train, validation, len(those) - train - validation]), strict=True
            ):
                split.append(part)
        draw = torch.Generator().manual_seed(seed + 1)
        train, validation, test = (
            everything[(part := torch.cat(split))[torch.randperm(len(part), generator=draw)]] for split in rows
        )
        return train, validation, test

    def _paths(self, leaves: Tensor, hops: Tensor, draw: torch.Generator) -> Int[Tensor, "B P"]:
        """Query, then `hops` - 1 distinct pre-targets from right to left, then the leaf, then -1."""
        count, most = len(leaves), self.most_hops
        chosen = torch.rand(count, self.pretargets, generator=draw).argsort(1)[:, : most - 1] + self.targets
        used = torch.arange(1, most) < hops[:, None]
        path = torch.full((count, most + 1), -1)
        path[:, 0] = self.tokens - 1
        path[:, 1:most] = torch.where(used, chosen, -1).sort(1, descending=True).values
        return path.scatter(1, hops[:, None], leaves[:, None])


def balanced(count: int, sizes: Sequence[int], draw: torch.Generator) -> tuple[Tensor, ...]:
    """One index an axis and sequence, all combinations equally often, in random order.

    Those that are left over differ by one; the last axis stays balanced as long as its size divides them.
    """
    combinations, last = math.prod(sizes), sizes[-1]
    whole = torch.arange(count - count % combinations) % combinations
    rest = torch.randperm(combinations // last, generator=draw)[:, None] * last + torch.arange(last)
    drawn = torch.cat([whole, rest.flatten()[: count % combinations]])[torch.randperm(count, generator=draw)]
    return torch.unravel_index(drawn, sizes)


def letter_names(count: int) -> list[str]:
    """a to z, then aa, ab, ..., zz."""
    names = [*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase)]
    if count > len(names):
        raise BadInput(f"at most {len(names)} symbols have a name, got {count}")
    return names[:count]


def on_path(path: Int[Tensor, "B P"], tokens: int) -> Bool[Tensor, "B T"]:
    """Which positions a path visits."""
    seen = torch.zeros(len(path), tokens + 1, dtype=torch.bool)
    return seen.scatter(1, torch.where(path < 0, tokens, path), torch.tensor(True).expand(path.shape))[:, :tokens]
