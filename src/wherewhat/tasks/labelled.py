"""Sequences with their answers, and those with one label each, for classification."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

PAD = 0  # the token that pads short sequences
AnySequences = TypeVar("AnySequences", bound="Labelled")


@dataclass(frozen=True)
class Labelled:
    """Sequences, padded with PAD at the end, and the label of each."""

    tokens: Int[Tensor, "B T"]
    answers: Int[Tensor, " B"]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self: AnySequences, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> AnySequences:
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))


def distinct(count: int, number: int, words: int, draw: torch.Generator) -> Int[Tensor, "B N"]:
    """`number` distinct words in random order, for every sequence."""
    return torch.rand(count, words, generator=draw).argsort(1)[:, :number]
