"""Frequency as a knob: one-head models trained on a canonical task, one for every rotation angle and seed.

All angles and seeds of a setting form one ensemble, which is trained at once and stored as one cell. Kept of each head:
accuracy over training, in total and by the position of the answer, both scores after training, and for the first seed
the keys and queries over training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...cells.cells import check_writable, kept, run_cells
from ...cells.executors import LocalOnly
from ...core.kinds import kind
from ...core.scores import entropy, score
from ...errors import BadInput
from ...lab.ensemble import RECIPE, SPREAD, Ensemble, TransformerEnsemble, train_ensemble
from ...lab.train import Recipe
from ...results import Progress, Result, Say, ignore_progress, ignore_sentence, versions
from ...tasks import CANONICAL, LookupTask

VERSION = 3
FREQUENCIES, BASE = 32, 10_000.0
SNAPSHOTS = 30  # during training, besides the one at the start
EPOCHS = 6  # of these, how many also keep accuracy by position, on all prompts
# Prompts for the accuracy after training, for the scores, and for the accuracy at each snapshot.
TESTED, SCORED, TESTED_IN_TRAINING = 8192, 64, 1024


@dataclass(frozen=True)
class SweepSetting:
    """A task, its number of symbols, and whether every head has a second plane, of angle 0."""

    task: str
    symbols: int = 16
    second_plane: bool = False

    @property
    def name(self) -> str:
        """
        >>> SweepSetting("induction", 8, second_plane=True).name
        'induction, 8 symbols, angles (0, theta)'
        """
        symbols = "" if self.symbols == 16 else f", {self.symbols} symbols"
        return f"{self.task}{symbols}{', angles (0, theta)' if self.second_plane else ''}"

    @property
    def task_itself(self) -> LookupTask:
        return CANONICAL[self.task](symbols=self.symbols)

    def ensemble(self, frequencies: Sequence[int], seeds: Sequence[int], init_std: float) -> Ensemble:
        """Untrained heads, one for each angle and seed."""
        return Ensemble(self.task_itself, self._angles(frequencies), seeds, spread=init_std)

    def _angles(self, frequencies: Sequence[int]) -> Float[Tensor, "A P"]:
        angles = torch.tensor([[angle_of(number)] for number in frequencies], dtype=torch.float64)
        return torch.cat([torch.zeros_like(angles), angles], 1) if self.second_plane else angles


@dataclass(frozen=True)
class TransformerSetting(SweepSetting):
    """The same with one-layer attention-only Transformers with token embeddings instead of lookup tables."""

    width: int = 64

    @property
    def name(self) -> str:
        """
        >>> TransformerSetting("index").name
        'index, Transformer'
        """
        return f"{super().name}, Transformer"

    def ensemble(self, frequencies: Sequence[int], seeds: Sequence[int], init_std: float) -> Ensemble:
        return TransformerEnsemble(
            self.task_itself, self._angles(frequencies), seeds, width=self.width, spread=init_std
        )


@dataclass(frozen=True)
class SweepCell:
    """Everything that the result of one setting depends on."""

    setting: SweepSetting
    frequencies: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int
    batch: int
    rate: float
    init_std: float = SPREAD
    version: int = VERSION


@dataclass(frozen=True)
class Sweep(Result, file="sweep.json", kind="sweep"):
    """Heads trained at different rotation angles.

    `members` has one row per trained head, `training` its accuracy over time, `positions` its accuracy by the position
    of the answer, `epochs` the same at several steps of training, and `trajectories` the queries and content keys of
    the first seed over time, in the rotating plane.
    """

    members: pd.DataFrame
    training: pd.DataFrame
    positions: pd.DataFrame
    trajectories: pd.DataFrame
    epochs: pd.DataFrame | None
    about: dict[str, Any]


def angle_of(frequency: int) -> float:
    """The angle of a frequency ID, where 1 is the fastest of 32.

    >>> [round(angle_of(number), 4) for number in (1, 9, 17, 32)]
    [1.0, 0.1, 0.01, 0.0001]
    """
    return BASE ** (-(frequency - 1) / FREQUENCIES)


def sweep(
    task: str,
    *,
    folder: str | Path | None = None,
    second_plane: bool = False,
    symbols: int = 16,
    frequency: Sequence[int] | None = None,
    seeds: int = 5,
    steps: int = RECIPE.steps,
    batch: int = RECIPE.batch,
    rate: float = RECIPE.rate,
    init_std: float = SPREAD,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Sweep:
    """Accuracy and scores of one-head models trained on a canonical task, one per rotation angle and seed.

    `task` is "index", "retrieval" or "induction", with `symbols` different symbols. `frequency` lists frequency IDs, by
    default all 32; the angle of an ID is 10000^(-(ID-1)/32). With `second_plane`, every head also has a plane of
    angle 0. `init_std` is the standard deviation of the initial weights.

    With a `folder`, the sweep is saved there; a sweep that was already trained there is reused.

    >>> found = ww.sweep("index", frequency=[1, 17], seeds=1, steps=20)
    >>> found.members[["frequency", "angle", "seed"]].to_dict("records")
    [{'frequency': 1, 'angle': 1.0, 'seed': 0}, {'frequency': 17, 'angle': 0.01, 'seed': 0}]
    """
    for name, value, least, most in (("seeds", seeds, 1, 10_000), ("symbols", symbols, 2, 10_000)):
        if value < least:
            raise BadInput(f"{name} must be at least {least}, got {value}")
        if value > most:
            raise BadInput(f"{name} must be at most {most}, got {value}")
    found = run_sweeps(
        [SweepSetting(task, symbols, second_plane)],
        folder,
        frequencies=range(1, FREQUENCIES + 1) if frequency is None else frequency,
        seeds=range(seeds),
        recipe=replace(RECIPE, steps=steps, batch=batch, rate=rate),
        init_std=init_std,
        progress=progress,
        say=say,
    )
    if folder is not None:
        found.save(folder)
    return found


def run_sweeps(
    settings: Sequence[SweepSetting],
    folder: str | Path | None = None,
    *,
    frequencies: Sequence[int] = range(1, FREQUENCIES + 1),
    seeds: Sequence[int] = range(5),
    recipe: Recipe = RECIPE,
    init_std: float = SPREAD,
    seeds_apart: bool = False,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Sweep:
    """The sweeps of several settings in one result. Existing cells in the folder are reused.

    With `seeds_apart` every seed is a cell of its own, so that less is lost when a long sweep is interrupted.
    """
    for setting in settings:
        if setting.task not in CANONICAL:
            raise BadInput(f"no task {setting.task!r}: {', '.join(CANONICAL)}")
        _ = setting.task_itself  # raises if the task cannot have so few or so many symbols
    if not frequencies or not all(1 <= number <= FREQUENCIES for number in frequencies):
        raise BadInput(f"frequency IDs are 1 to {FREQUENCIES}, got {list(frequencies)}")
    if not 0 < init_std < math.inf:
        raise BadInput(f"init_std must be positive, got {init_std}")
    cells = [
        SweepCell(setting, tuple(frequencies), some, recipe.steps, recipe.batch, recipe.rate, init_std)
        for setting in settings
        for some in ([(seed,) for seed in seeds] if seeds_apart else [tuple(seeds)])
    ]
    total = recipe.steps * len(cells)
    stored = None if folder is None else Path(folder) / "cells"
    if stored is not None:
        check_writable(stored)
    if reused := kept(stored, cells):
        say(f"{reused} of {len(cells)} sweeps were trained before and are reused")
    show = LocalOnly(progress)

    def compute(cell: SweepCell) -> dict[str, Tensor]:
        before = cells.index(cell) * recipe.steps
        return train_cell(cell, lambda step: show(cell.setting.name, before + step, total))

    results = run_cells(stored, cells, compute, "sweeps")
    parts = [_tables(cell, result, seeds[0]) for cell, result in zip(cells, results, strict=True)]
    about = {
        "settings": [asdict(setting) for setting in settings],
        "frequencies": list(frequencies),
        "seeds": list(seeds),
        "steps": recipe.steps,
        "batch": recipe.batch,
        "rate": recipe.rate,
        "init_std": init_std,
        "version": VERSION,
        "versions": versions(),
    }
    filled = ([table for table in tables if len(table)] for tables in zip(*parts, strict=True))
    return Sweep(*(pd.concat(tables, ignore_index=True) for tables in filled), about=about)


def train_cell(cell: SweepCell, progress: Callable[[int], None] = lambda step: None) -> dict[str, Tensor]:
    """Train all heads of a setting at once.

    Returns accuracy at every snapshot (snapshots, S, A), after training (`right`, S A) and by position of the answer
    (S, N, A), also at several steps (`epochs`), the scores (S, A), and keys and queries of the first seed at every
    snapshot (snapshots, V, C, A).
    """
    task = cell.setting.task_itself
    ensemble = cell.setting.ensemble(cell.frequencies, cell.seeds, cell.init_std)
    recipe = Recipe(**asdict(RECIPE) | {"steps": cell.steps, "batch": cell.batch, "rate": cell.rate})
    test = task.sample(TESTED, seed=2**40)
    snapshot_steps = {round(cell.steps * part / SNAPSHOTS) for part in range(SNAPSHOTS + 1)}
    epoch_steps = {round(cell.steps * part / EPOCHS) for part in range(1, EPOCHS + 1)}
    snapshots: list[tuple[Tensor, ...]] = []
    epochs: list[tuple[Tensor, Tensor]] = []

    def by_place(right: Float[Tensor, "S B A"]) -> Float[Tensor, "S N A"]:
        return torch.stack([right[:, test.places == place].mean(1) for place in range(task.length)], 1)

    @torch.no_grad()
    def watch(step: int) -> None:
        progress(step)
        if step in snapshot_steps:
            first_seed = (ensemble.keys[0].clone(), ensemble.queries[0].clone())
            snapshots.append((torch.tensor(step), ensemble.accuracy(test[:TESTED_IN_TRAINING]), *first_seed))
        if step in epoch_steps:
            epochs.append((torch.tensor(step), by_place(ensemble.right(test))))

    train_ensemble(ensemble, recipe, watch)
    right = ensemble.right(test)
    trace = ensemble.trace(test.tokens[:SCORED])
    scores = score(trace)
    behaviour = {"positional": scores.positional, "symbolic": scores.symbolic, "entropy": entropy(trace)}
    series = (("step", "accuracy", "keys", "queries"), snapshots), (("epoch", "epochs"), epochs)
    return (
        {
            name: torch.stack(values)
            for names, kept_values in series
            for name, values in zip(names, zip(*kept_values, strict=True), strict=True)
        }
        | {"right": right.mean(1), "by_place": by_place(right)}
        | {name: value.mean(0).T for name, value in behaviour.items()}
    )


def _tables(cell: SweepCell, result: dict[str, Tensor], first_seed: int) -> tuple[pd.DataFrame, ...]:
    """The rows of one cell in every table; trajectories are those of the first seed of all."""
    seeds, frequencies = np.asarray(cell.seeds), np.asarray(cell.frequencies)

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
    task = cell.setting.task_itself
    contents, questions = np.split(np.asarray(task.words), [task.contents])
    moving = []
    for what, words in (("keys", contents), ("queries", questions)):
        x, y = result[what][:, : len(words), -2:].unbind(2)  # the rotating plane is the last one
        axes = long(x, step=steps, word=words, frequency=frequencies)
        moving.append(pd.DataFrame(axes | {"x": x.flatten().numpy(), "y": y.flatten().numpy(), "what": what}))
    trajectories = pd.concat(moving, ignore_index=True)
    if cell.seeds[0] != first_seed:
        trajectories = trajectories.iloc[:0]
    epochs = long(result["epochs"], step=result["epoch"].numpy(), seed=seeds, place=places, frequency=frequencies)
    epochs = pd.DataFrame(epochs | {"accuracy": result["epochs"].flatten().numpy()})
    tables = (members, training, positions, trajectories, epochs)
    for table in tables:
        table["angle"] = BASE ** (-(table["frequency"] - 1) / FREQUENCIES)
    return tuple(table.assign(setting=cell.setting.name, task=cell.setting.task) for table in tables)
