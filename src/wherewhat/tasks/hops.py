"""What the multi-hop tasks share: sequences that hop from the last token, backwards, to the token that is the answer.

A sequence is a window of targets, a window of pre-targets and the query. The path starts at the query, visits some
pre-targets from right to left and ends at its leaf, a target. Leaf, answer and number of hops are balanced: all of
their combinations occur equally often, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import BadInput
from .labelled import Labelled

PLACES = ("self", "next", "later")


def along_path(rows: Float[Tensor, "B *lead T"], path: Int[Tensor, "B P"]) -> Float[Tensor, "B *lead 3"]:
    """Attention of each row on the first token of the path, on the next one and on all later ones.

    >>> along_path(torch.tensor([[0.5, 0.2, 0.1, 0.2]]), torch.tensor([[3, 1, 0, -1]]))
    tensor([[0.2000, 0.2000, 0.5000]])
    """
    padded = torch.nn.functional.pad(rows, (0, 1))  # positions beyond the end of a path get no attention
    at = path.view(len(path), *(1,) * (rows.dim() - 2), -1).expand(*rows.shape[:-1], -1)
    found = padded.gather(-1, torch.where(at < 0, rows.shape[-1], at))
    return torch.stack([found[..., 0], found[..., 1], found[..., 2:].sum(-1)], -1)


# Train, validation and test as shares of all sequences: 432,000, 2,400 and 45,600 of 480,000.
SHARES = (0.9, 0.005, 0.095)
TOTAL = 480_000
PAD = 0


@dataclass(frozen=True)
class Sequences(Labelled):
    """Token ids with their answers. `path` holds the visited positions from the query to the leaf, padded with -1."""

    hops: Int[Tensor, " B"]
    path: Int[Tensor, "B P"]


@dataclass(frozen=True)
class HopTask:
    """Window sizes and hops of a task; each task defines the meaning of its tokens."""

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
        """The text of each token id; 0 is padding."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> Int[Tensor, " T"]:
        """The ids of symbols separated by spaces."""
        return torch.tensor([self.symbols.index(symbol) for symbol in text.split()])

    def decode(self, ids: Int[Tensor, " T"]) -> str:
        return " ".join(self.symbols[number] for number in ids.tolist())

    def sample(self, count: int, seed: int = 0) -> Sequences:
        """This many sequences, balanced and shuffled."""
        raise NotImplementedError

    def extend(self, sequences: Sequences, extra: int, seed: int = 0) -> Sequences:
        """The same sequences with `extra` targets added on the left; hop distances and answers are unchanged."""
        raise NotImplementedError

    def splits(self, seed: int = 0, total: int = TOTAL) -> tuple[Sequences, Sequences, Sequences]:
        """Training, validation and test sequences, each balanced over the numbers of hops."""
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
    """One index per axis and sequence, all combinations equally often, in random order.

    If `count` is not a multiple of the combinations, their frequencies differ by at most one; the last axis stays
    balanced as long as its size divides the remainder.
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
        raise BadInput(f"at most {len(names)} symbols, got {count}")
    return names[:count]


def on_path(path: Int[Tensor, "B P"], tokens: int) -> Bool[Tensor, "B T"]:
    """Which positions a path visits."""
    seen = torch.zeros(len(path), tokens + 1, dtype=torch.bool)
    return seen.scatter(1, torch.where(path < 0, tokens, path), torch.tensor(True).expand(path.shape))[:, :tokens]
