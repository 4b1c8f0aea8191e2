"""The count task, which needs no positions: how many trigger words are there?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import BadInput
from .labelled import Labelled


@dataclass(frozen=True)
class Count:
    """Trigger words among other words, shuffled; the label is the number of triggers.

    The defaults are the published sizes.

    >>> task = Count.small()
    >>> one = task.sample(1, seed=3)
    >>> int((one.tokens <= task.triggers).sum()) == int(one.answers)
    True
    """

    vocabulary: int = 574
    triggers: int = 30
    most: int = 100
    tokens: int = 120
    samples: int | None = 50_000
    name: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        if self.most > self.tokens or self.triggers > self.vocabulary - 2:
            raise BadInput(
                f"at most {self.tokens} tokens and {self.vocabulary - 2} words can be triggers, "
                f"got {self.most} and {self.triggers}"
            )

    @staticmethod
    def small() -> Count:
        """A size that trains within minutes on a laptop: up to 24 triggers, of 8 words, among 30 tokens."""
        return Count(vocabulary=66, triggers=8, most=24, tokens=30, samples=None)

    @property
    def classes(self) -> int:
        return self.most + 1

    def sample(self, count: int, seed: int = 0) -> Labelled:
        draw = torch.Generator().manual_seed(seed)
        answers = torch.randint(self.most + 1, (count,), generator=draw)
        order = torch.rand(count, self.tokens, generator=draw).argsort(1)  # triggers are where this is below the answer
        triggers = torch.randint(1, self.triggers + 1, order.shape, generator=draw)
        others = torch.randint(self.triggers + 1, self.vocabulary, order.shape, generator=draw)
        return Labelled(torch.where(order < answers[:, None], triggers, others), answers)
