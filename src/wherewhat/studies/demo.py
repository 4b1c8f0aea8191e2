"""The main job on the models that ship with the package: one learnt a task that needs positions, one a task without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..lab import embedded
from ..lab.checkpoint import SERIES
from ..prompts import Prompt
from ..tasks import TASKS
from ..tasks.hops import HopTask, Sequences
from .dynamics import Dynamics
from .profile import Profile, profile

TAUGHT = {
    "number": "from an integer m go m places to the left, until a letter is reached",
    "letter": "from a pair xy go to the pair that starts with y, until a digit is reached",
}


@dataclass(frozen=True)
class Shown:
    """An embedded model, what it was taught, its profile, and how it learnt."""

    name: str
    taught: str
    example: str
    answer: str
    profile: Profile
    learning: Dynamics


def demo(
    folder: str | Path | None = None,
    prompts: int = 64,
    seed: int = 0,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
) -> list[Shown]:
    """Profile both embedded models on fresh sequences of their tasks.

    >>> [shown.name for shown in demo(prompts=2)]                      # doctest: +SKIP
    ['number', 'letter']
    """
    made = []
    for name, taught in TAUGHT.items():
        task = TASKS[name]()
        sequences = task.sample(prompts, seed)
        found = profile(
            embedded(name), prompts_of(task, sequences), seed=seed, folder=folder and Path(folder) / name,
            settings={"task": name, "samples": prompts}, about={"model": name}, overwrite=True,
            progress=lambda _, done, total, name=name: progress(name, done, total),
        )  # fmt: skip
        example, answer = task.decode(sequences.tokens[0]), task.symbols[int(sequences.answers[0])]
        made.append(Shown(name, taught, example, answer, found, learning(name)))
    return made


def prompts_of(task: HopTask, sequences: Sequences) -> list[Prompt]:
    """Sequences of a task as prompts: one token a block, the query last."""
    blocks = tuple((at, at + 1) for at in range(task.tokens - 1))
    parts = zip(*(getattr(sequences, part).tolist() for part in ("tokens", "answers", "hops", "path")), strict=True)
    prompts = []
    for ids, answer, hops, path in parts:
        said = [task.symbols[number] for number in ids]
        prompts.append(
            Prompt(
                ids=tuple(ids),
                blocks=blocks,
                text=" ".join(said),
                answer=answer,
                target=path[hops],
                choices=task.targets,
                labels=tuple(said[:-1]),
                tokens=tuple(f"{symbol} " for symbol in said),
                says=task.symbols[answer],
            )
        )
    return prompts


def learning(name: str) -> Dynamics:
    """How an embedded model learnt: its heads at every checkpoint, on 2,400 prompts.

    >>> learning("number").purity.query("gamma == 0.1")                # doctest: +SKIP
    """
    return Dynamics.load(SERIES / name)
