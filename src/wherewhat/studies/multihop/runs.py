"""The training runs of the reproduction: which recipes there are, and where each run is.

The authors' scripts train with exact GELU and, through a misspelt option, without embedding dropout. They leave open
whether a batch has 64 sequences (one epoch) or 3 x 64 on three GPUs (three epochs); both are 6,750 steps. The other
recipes change one thing at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import BadInput
from ...lab import Recipe
from ...lab.checkpoint import is_run, read_run, steps_of
from ...tasks import TASKS

OTHER = 1000  # added to a seed to draw something else


@dataclass(frozen=True)
class RecipeOfRuns:
    """How runs are trained. `words` is what tables call it, `changes` what differs from the scripts at batch 64."""

    words: str
    changes: dict[str, Any] = field(default_factory=dict)
    exact_gelu: bool = True
    other_init: bool = False
    other_order: bool = False

    def recipe(self, seed: int) -> Recipe:
        made = replace(Recipe(embedding_dropout=0.0, seed=seed), **self.changes)
        if self.other_init:  # and other dropout masks, but the same order of data
            return replace(made, seed=seed + OTHER, data_seed=seed)
        return replace(made, data_seed=seed + OTHER) if self.other_order else made


AUTHORS, EARLIER = "authors' scripts, batch 64", "tanh GELU, embedding dropout .1"
RECIPES = {
    "64": RecipeOfRuns(AUTHORS),
    "192": RecipeOfRuns("authors' scripts, batch 192", {"batch": 192}),
    "half": RecipeOfRuns(f"{AUTHORS}, mixed float16", {"half": True}),
    "init": RecipeOfRuns(f"{AUTHORS}, other initialisation", other_init=True),
    "order": RecipeOfRuns(f"{AUTHORS}, other order of data", other_order=True),
    "tanh": RecipeOfRuns(EARLIER, {"embedding_dropout": None}, exact_gelu=False),
}


@dataclass(frozen=True)
class PlannedRun:
    """One training run, in the folder TASK-RECIPE-SEED."""

    task: str
    key: str
    seed: int

    @property
    def name(self) -> str:
        """
        >>> PlannedRun("letter", "192", 0).name
        'letter-192-0'
        """
        return f"{self.task}-{self.key}-{self.seed}"

    @property
    def recipe(self) -> RecipeOfRuns:
        return RECIPES[self.key]

    def finished(self, folder: str | Path) -> bool:
        """Whether it has been trained to its last step."""
        run = Path(folder) / self.name
        return is_run(run) and max(steps_of(run), default=-1) >= read_run(run)["recipe"]["steps"]


def plan(tasks: Sequence[str], keys: Sequence[str], seeds: Sequence[int]) -> list[PlannedRun]:
    """All combinations; refuses unknown recipes."""
    if unknown := [key for key in keys if key not in RECIPES]:
        raise BadInput(f"no recipe {unknown[0]!r}: {', '.join(RECIPES)}")
    return [PlannedRun(task, key, seed) for task in tasks for key in keys for seed in seeds]


def runs_in(folder: str | Path) -> Iterator[PlannedRun]:
    """Every run in the folder, finished or not, in the order of tasks, recipes and seeds."""
    for task in TASKS:
        for key in RECIPES:
            found = [path.parent.name for path in Path(folder).glob(f"{task}-{key}-*/run.json")]
            yield from (PlannedRun(task, key, seed) for seed in sorted(int(name.rpartition("-")[2]) for name in found))
