"""Sequences with one label each, as tasks of classification give them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

PAD = 0  # the token that fills up short sequences


@dataclass(frozen=True)
class Labelled:
    """Sequences, filled up with PAD at their end, and the label of each."""

    tokens: Int[Tensor, "B T"]
    answers: Int[Tensor, " B"]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | Int[Tensor, " R"]) -> Labelled:
        return Labelled(self.tokens[rows], self.answers[rows])


def distinct(count: int, number: int, words: int, draw: torch.Generator) -> Int[Tensor, "B N"]:
    """Some of the words in random order, none twice, for every sequence."""
    return torch.rand(count, words, generator=draw).argsort(1)[:, :number]
