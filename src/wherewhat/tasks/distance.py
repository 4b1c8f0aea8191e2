"""The distance task, which needs positions: how far apart are the two trigger words?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import BadInput
from .labelled import PAD, Labelled, distinct


@dataclass(frozen=True)
class Distance:
    """Filler, the first trigger, filler, the second trigger, filler; the label is the distance between the triggers.

    No word occurs twice in one filler. The defaults are the published sizes; 122 tokens are cut to 120.

    >>> task = Distance.small()
    >>> task.sample(2, seed=3).tokens.shape, task.classes
    (torch.Size([2, 30]), 18)
    """

    vocabulary: int = 574
    side: int = 25
    middle: int = 70
    tokens: int = 120
    samples: int | None = 100_000  # size of the data set, 70 % of it for training; None: unlimited fresh samples
    name: ClassVar[str] = "distance"
    triggers: ClassVar[tuple[int, int]] = (1, 2)

    def __post_init__(self) -> None:
        if (most := max(self.side, self.middle)) > self.vocabulary - 3:
            raise BadInput(f"{most} distinct words need a vocabulary of at least {most + 3}, got {self.vocabulary}")

    @staticmethod
    def small() -> Distance:
        """A size that trains within minutes on a laptop: distances up to 17 in 30 tokens."""
        return Distance(vocabulary=66, side=6, middle=16, tokens=30, samples=None)

    @property
    def classes(self) -> int:
        """One more than the largest label; labels 0 and 1 never occur."""
        return self.middle + 2

    def sample(self, count: int, seed: int = 0) -> Labelled:
        draw = torch.Generator().manual_seed(seed)
        left, right = (torch.randint(1, self.side + 1, (count, 1), generator=draw) for _ in range(2))
        middle = torch.randint(1, self.middle + 1, (count, 1), generator=draw)
        words = [distinct(count, most, self.vocabulary - 3, draw) + 3 for most in (self.side, self.middle, self.side)]
        first, second = left, left + middle + 1  # positions of the triggers
        end = second + 1 + right
        places = torch.arange(2 * self.side + self.middle + 2).expand(count, -1)
        tokens = torch.full_like(places, PAD)
        for start, stop, some in (
            (0 * left, first, words[0]),
            (first + 1, second, words[1]),
            (second + 1, end, words[2]),
        ):
            inside = (places >= start) & (places < stop)
            tokens = torch.where(inside, some.gather(1, (places - start).clamp(0, some.shape[1] - 1)), tokens)
        for at, trigger in zip((first, second), self.triggers, strict=True):
            tokens.scatter_(1, at, trigger)
        return Labelled(tokens[:, : self.tokens].contiguous(), middle[:, 0] + 1)
