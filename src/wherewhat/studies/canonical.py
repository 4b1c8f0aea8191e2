"""Frequency as a knob: one head a model, trained on a canonical task with the angles it may use, for every angle.

A sweep is one ensemble, all angles and seeds of a setting, trained at once: one cell. What is kept of it: accuracy over
training and by the place of the answer, keys and queries of the first seed over training, and where or what each
trained head looks at, by the score of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.kinds import kind
from ..core.measure import entropy, score
from ..errors import BadInput
from ..files import write_table
from ..lab.ensemble import RECIPE, SPREAD, Ensemble, train_ensemble
from ..lab.train import Recipe
from ..tasks import CANONICAL
from .cells import run_cells
from .executors import Here

VERSION = 2
FREQUENCIES, BASE = 32, 10_000.0
LOOKS = 30  # times that training is looked at
TESTED, SCORED, GLANCED = 8192, 64, 1024  # prompts for accuracy at the end, for the scores, and during training
TABLES = ("members", "training", "positions", "trajectories")
Progress = Callable[[str, float, int], None]


@dataclass(frozen=True)
class Setting:
    """A task, its number of symbols, and whether every head has a second plane, which does not turn."""

    task: str
    symbols: int = 16
    still: bool = False

    @property
    def name(self) -> str:
        """
        >>> Setting("induction", 8, still=True).name
        'induction, 8 symbols, angles (0, theta)'
        """
        symbols = "" if self.symbols == 16 else f", {self.symbols} symbols"
        return f"{self.task}{symbols}{', angles (0, theta)' if self.still else ''}"


@dataclass(frozen=True)
class SweepCell:
    """All that a sweep depends on."""

    setting: Setting
    frequencies: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int
    batch: int
    rate: float
    spread: float = SPREAD
    version: int = VERSION


@dataclass(frozen=True)
class Sweeps:
    """`members`: a row a trained head; `training`: its accuracy over time; `positions`: by the place of the answer;
    `trajectories`: queries and the keys of contents of the first seed over time, in the plane that turns.

    >>> Sweeps.load("results/decoupling").members.query("task == 'index' and accuracy > 0.99")     # doctest: +SKIP
    """

    members: pd.DataFrame
    training: pd.DataFrame
    positions: pd.DataFrame
    trajectories: pd.DataFrame

    def save(self, prefix: str | Path) -> None:
        """PREFIX.parquet with the members, PREFIX-training.parquet and so on."""
        for name in TABLES:
            write_table(_path(prefix, name), getattr(self, name))

    @staticmethod
    def load(prefix: str | Path) -> Sweeps:
        try:
            return Sweeps(*(pd.read_parquet(_path(prefix, name)) for name in TABLES))
        except (OSError, ValueError) as error:
            raise BadInput(f"{prefix}: holds no sweeps ({error})") from error


def angle_of(frequency: int) -> float:
    """The angle of a frequency ID, 1 the fastest of 32.

    >>> [round(angle_of(number), 4) for number in (1, 9, 17, 32)]
    [1.0, 0.1, 0.01, 0.0001]
    """
    return BASE ** (-(frequency - 1) / FREQUENCIES)


def sweep(
    settings: Sequence[Setting],
    folder: str | Path | None = None,
    *,
    frequencies: Sequence[int] = range(1, FREQUENCIES + 1),
    seeds: Sequence[int] = range(5),
    recipe: Recipe = RECIPE,
    spread: float = SPREAD,
    progress: Progress = lambda what, done, total: None,
) -> Sweeps:
    """Train the heads of every setting; a setting that is in the folder already is not trained again.

    >>> made = sweep([Setting("index"), Setting("retrieval")], "runs/sweeps")           # doctest: +SKIP
    >>> made.members.groupby(["setting", "frequency"])["accuracy"].mean()               # doctest: +SKIP
    """
    for setting in settings:
        if setting.task not in CANONICAL:
            raise BadInput(f"no task {setting.task!r}: {', '.join(CANONICAL)}")
    if not frequencies or not all(1 <= number <= FREQUENCIES for number in frequencies):
        raise BadInput(f"frequency IDs are 1 to {FREQUENCIES}, got {list(frequencies)}")
    cells = [
        SweepCell(setting, tuple(frequencies), tuple(seeds), recipe.steps, recipe.batch, recipe.rate, spread)
        for setting in settings
    ]
    total = recipe.steps * len(cells)

    show = Here(progress)

    def compute(cell: SweepCell) -> dict[str, Tensor]:
        before = cells.index(cell) * recipe.steps
        return train_cell(cell, lambda step: show(cell.setting.name, before + step, total))

    results = run_cells(None if folder is None else Path(folder) / "cells", cells, compute, "sweeps")
    parts = [_tables(cell, result) for cell, result in zip(cells, results, strict=True)]
    return Sweeps(*(pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True)))


def train_cell(cell: SweepCell, progress: Callable[[int], None] = lambda step: None) -> dict[str, Tensor]:
    """Accuracy over time (looks, S, A), at the end (S, A) and by place (S, N, A), scores (S, A), keys and queries of
    one seed over time (looks, V, C, A)."""
    task = CANONICAL[cell.setting.task](symbols=cell.setting.symbols)
    angles = torch.tensor([[angle_of(number)] for number in cell.frequencies], dtype=torch.float64)
    if cell.setting.still:
        angles = torch.cat([torch.zeros_like(angles), angles], 1)
    ensemble = Ensemble(task, angles, cell.seeds, spread=cell.spread)
    recipe = Recipe(**asdict(RECIPE) | {"steps": cell.steps, "batch": cell.batch, "rate": cell.rate})
    test = task.sample(TESTED, seed=2**40)
    looks = {round(cell.steps * part / LOOKS) for part in range(LOOKS + 1)}
    seen: list[tuple[Tensor, ...]] = []

    def watch(step: int) -> None:
        progress(step)
        if step in looks:
            first = (ensemble.keys[0].detach().clone(), ensemble.queries[0].detach().clone())
            seen.append((torch.tensor(step), ensemble.accuracy(test[:GLANCED]), *first))

    train_ensemble(ensemble, recipe, watch)
    right = ensemble.right(test)
    trace = ensemble.trace(test.tokens[:SCORED])
    scores = score(trace)
    behaviour = {"positional": scores.positional, "symbolic": scores.symbolic, "entropy": entropy(trace)}
    names = ("step", "accuracy", "keys", "queries")
    return (
        {name: torch.stack(values) for name, values in zip(names, zip(*seen, strict=True), strict=True)}
        | {
            "right": right.mean(1),
            "by_place": torch.stack([right[:, test.places == place].mean(1) for place in range(task.length)], 1),
        }
        | {name: value.mean(0).T for name, value in behaviour.items()}
    )


def _tables(cell: SweepCell, result: dict[str, Tensor]) -> tuple[pd.DataFrame, ...]:
    """One cell's rows of every table."""
    seeds, frequencies = np.asarray(cell.seeds), np.asarray(cell.frequencies)
    about = {"setting": cell.setting.name, "task": cell.setting.task}

    def long(tensor: Tensor, **axes: np.ndarray) -> dict[str, np.ndarray]:
        index = np.indices(tensor.shape).reshape(tensor.dim(), -1)
        return {name: labels[at] for (name, labels), at in zip(axes.items(), index, strict=True)}

    member = long(result["positional"], seed=seeds, frequency=frequencies)
    columns = {name: result[name].flatten().numpy() for name in ("positional", "symbolic", "entropy")}
    members = pd.DataFrame(member | {"accuracy": result["right"].flatten().numpy()} | columns)
    members["kind"] = [kind(*pair) for pair in zip(members["positional"], members["symbolic"], strict=True)]
    steps, places = result["step"].numpy(), np.arange(1, result["by_place"].shape[1] + 1)
    training = long(result["accuracy"], step=steps, seed=seeds, frequency=frequencies)
    training = pd.DataFrame(training | {"accuracy": result["accuracy"].flatten().numpy()})
    positions = long(result["by_place"], seed=seeds, place=places, frequency=frequencies)
    positions = pd.DataFrame(positions | {"accuracy": result["by_place"].flatten().numpy()})
    task = CANONICAL[cell.setting.task](symbols=cell.setting.symbols)
    contents, questions = np.split(np.asarray(task.words), [task.contents])
    moving = []
    for what, words in (("keys", contents), ("queries", questions)):
        x, y = result[what][:, : len(words), -2:].unbind(2)  # the plane that turns
        axes = long(x, step=steps, word=words, frequency=frequencies)
        moving.append(pd.DataFrame(axes | {"x": x.flatten().numpy(), "y": y.flatten().numpy(), "what": what}))
    trajectories = pd.concat(moving, ignore_index=True)
    for table in (members, training, positions, trajectories):
        table["angle"] = BASE ** (-(table["frequency"] - 1) / FREQUENCIES)
    return tuple(table.assign(**about) for table in (members, training, positions, trajectories))


def _path(prefix: str | Path, table: str) -> Path:
    return Path(f"{prefix}.parquet" if table == "members" else f"{prefix}-{table}.parquet")
