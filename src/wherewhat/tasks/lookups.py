"""What the canonical tasks share: contents, then a question as the last token. One of the contents carries the answer.

Unless a task documents otherwise, answer and place are balanced: all of their combinations occur equally often, up to
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import BadInput
from .hops import balanced, letter_names
from .labelled import Labelled


@dataclass(frozen=True)
class Lookups(Labelled):
    """Token ids, the class of each answer, and the position, from 0, of the content that carries it."""

    places: Int[Tensor, " B"]


@dataclass(frozen=True)
class LookupTask:
    """Token ids are those of the contents, from 0, then those of the questions."""

    length: int = 16
    symbols: int = 16

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def __post_init__(self) -> None:
        sizes = {name: size for name, size in vars(self).items() if size < 1}
        if sizes:
            raise BadInput(f"sizes of a task must be positive, got {sizes}")
        letter_names(self.symbols)  # raises if there are too many

    @property
    def contents(self) -> int:
        """The number of distinct contents; ids from here on are questions."""
        return len(self.words) - self.questions

    @property
    def vocabulary(self) -> int:
        return len(self.words)

    @property
    def answers(self) -> int:
        """The number of classes of answers."""
        raise NotImplementedError

    @property
    def questions(self) -> int:
        """The number of distinct questions."""
        raise NotImplementedError

    @cached_property
    def words(self) -> list[str]:
        """The text of each token id."""
        raise NotImplementedError

    @property
    def carried(self) -> Int[Tensor, " contents"]:
        """The answer that each content carries."""
        return torch.arange(self.contents) % self.answers

    def encode(self, text: str) -> Int[Tensor, " T"]:
        """The ids of words separated by spaces."""
        return torch.tensor([self.words.index(word) for word in text.split()])

    def decode(self, ids: Int[Tensor, " T"]) -> str:
        return " ".join(self.words[number] for number in ids.tolist())

    def sample(self, count: int, seed: int = 0) -> Lookups:
        """This many prompts, balanced and shuffled."""
        draw = torch.Generator().manual_seed(seed)
        places, answers = balanced(count, (self.length, self.answers), draw)
        return Lookups(self._tokens(places, answers, draw), answers, places)

    def _tokens(
        self, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], draw: torch.Generator
    ) -> Int[Tensor, "B T"]:
        """Prompts in which the contents at these places carry these answers."""
        raise NotImplementedError
