"""The main job on the models that ship with the package: one learnt a task that needs positions, one a task without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
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
        asked = multihop(name, prompts, seed)
        found = profile(
            embedded(name), asked, seed=seed, folder=folder and Path(folder) / name,
            settings={"task": name, "samples": prompts}, overwrite=True,
            about={"embedded": True, "command": f"wherewhat demo --prompts {prompts} --seed {seed}"},
            progress=lambda _, done, total, name=name: progress(name, done, total),
        )  # fmt: skip
        made.append(Shown(name, taught, asked[0].text, asked[0].says, found, learning(name)))
    return made


def multihop(name: str, samples: int = 16, seed: int = 0) -> list[Prompt]:
    """Fresh sequences of the task that an embedded model learnt, as prompts for it.

    >>> prompt = multihop("number", samples=1)[0]
    >>> prompt.text, prompt.says
    ('as u m bf bv m dn m 5 7 10 1 10 5 1 10 16', 'as')
    """
    if name not in TASKS:
        raise BadInput(f"no task {name!r}: {', '.join(TASKS)}")
    task = TASKS[name]()
    return prompts_of(task, task.sample(samples, seed))


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
