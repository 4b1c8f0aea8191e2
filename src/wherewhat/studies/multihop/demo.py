"""The demo: profiles of the two models that ship with the package. One task needs positions, the other does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...lab import embedded
from ...lab.checkpoint import SERIES
from ...results import Progress, Say, check_count, ignore_progress, ignore_sentence
from ..dynamics.dynamics import Dynamics
from ..profile.profile import profile
from ..profile.result import Profile

TAUGHT = {
    "number": "from an integer m, go m places to the left, until a letter is reached",
    "letter": "from a pair xy, go to the pair that starts with y, until a digit is reached",
}

TITLE = "Two small models learn to follow a path: one by where, one by what"
LEAD = (
    "Every sequence is a path: in number, an integer m points m places to the left, which needs positions; in letter, "
    "the pair xy points to the pair that starts with y, which needs symbols.",
    "Play the training and watch the heads move: those that look at where go right, those that look at what go up.",
)


@dataclass(frozen=True)
class Demo:
    """The two embedded models by name: their profiles, and the series of checkpoints that shows how they learnt.

    Each profile is saved in a folder of its own, FOLDER/NAME; the series ship with the package.

    >>> Demo.load("demo").profiles["number"].heads                     # doctest: +SKIP
    """

    profiles: dict[str, Profile]
    series: dict[str, Dynamics]

    def save(self, folder: str | Path) -> None:
        """Save both profiles."""
        for name, found in self.profiles.items():
            found.save(Path(folder) / name)

    @classmethod
    def load(cls, folder: str | Path) -> Demo:
        """Read both profiles."""
        return cls(
            {name: Profile.load(Path(folder) / name) for name in TAUGHT}, {name: learning(name) for name in TAUGHT}
        )

    @property
    def results(self) -> dict[str, Profile | Dynamics]:
        """Everything that the page shows, by name; it opens on the two series."""
        return {**{f"{name}, learning": series for name, series in self.series.items()}, **self.profiles}


def demo(
    folder: str | Path | None = "demo",
    *,
    prompts: int = 64,
    seed: int = 0,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Demo:
    """Profiles of both embedded models, on `prompts` fresh sequences of their tasks.

    The profiles are saved in FOLDER/number and FOLDER/letter; without a folder nothing is saved.

    >>> ww.demo(prompts=2).profiles["number"].heads                    # doctest: +SKIP
    """
    check_count(prompts, "prompts")
    profiles = {
        name: profile(
            embedded(name), samples=prompts, seed=seed, folder=None if folder is None else Path(folder) / name,
            overwrite=True, about={"command": f"wherewhat demo --prompts {prompts} --seed {seed}"},
            progress=lambda _, done, total, name=name: progress(name, done, total),
        )
        for name in TAUGHT
    }  # fmt: skip
    return Demo(profiles, {name: learning(name) for name in TAUGHT})


def learning(name: str) -> Dynamics:
    """How an embedded model learnt: its heads at every checkpoint, on 2,400 prompts.

    >>> learning("number").purity.query("gamma == 0.1")                # doctest: +SKIP
    """
    return Dynamics.load(SERIES / name)


def profile_embedded(name: str, seed: int = 0, prompts: int = 32) -> Profile:
    """The profile of an embedded model on sequences of its task."""
    return profile(embedded(name), samples=prompts, seed=seed)
