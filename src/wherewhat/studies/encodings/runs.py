"""Training runs of positional encodings. Each run is one cell for training and others for what is measured on the
trained model, so that a trained model stays valid when the measurements change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ...cells.cells import cell_hash, cell_path, run_ahead, run_cells
from ...cells.executors import LocalOnly, current
from ...files import read_tensors, write_atomically
from ...lab.classifier import Classifier, Design
from ...lab.fit import Fit, Step, held_out
from ...lab.train import Recipe
from ...results import Progress, ignore_progress
from ...tasks import Count, Distance
from .ablation import ablate_heads
from .settings import SIZES, EncodingSetting, Size

SNAPSHOTS = (0, 1 / 15, 1 / 5, 1 / 2, 1)  # fractions of training after which the weights are kept
TRAINING_VERSION, MEASURE_VERSION = 1, 1
SAVE_SECONDS = 120  # between two saved states of an unfinished run
SOLVED_STEPS = 100  # over which the accuracy of a solved task is averaged


@dataclass(frozen=True)
class TrainingCell:
    """Everything that a trained model depends on."""

    task: str
    labels: Distance | Count
    design: Design
    recipe: Recipe
    version: int = TRAINING_VERSION


@dataclass(frozen=True)
class SolvableCell(TrainingCell):
    """A run that ends when its task is solved, at this accuracy."""

    solved: float = 1.0


@dataclass(frozen=True)
class MeasureCell:
    """Everything that the accuracies of a trained model depend on."""

    training: str
    tested: int
    version: int = MEASURE_VERSION


Run = tuple[TrainingCell, dict[str, Tensor], dict[str, Tensor]]  # a cell, its trained weights, its accuracies


def training_cell(setting: EncodingSetting, sizes: Mapping[str, Size] = SIZES) -> TrainingCell:
    size = sizes[setting.size]
    recipe = replace(size.recipe, seed=setting.seed, dropout=setting.dropout)
    cell = TrainingCell(setting.task, size.labels(setting.task), setting.design(size), recipe)
    return cell if size.solved is None else SolvableCell(**vars(cell), solved=size.solved)


def run_settings(
    wanted: Sequence[EncodingSetting],
    folder: Path | None,
    progress: Progress = ignore_progress,
    device: str = "cpu",
    sizes: Mapping[str, Size] = SIZES,
) -> Iterator[Run]:
    """For each setting its cell, the trained weights and the accuracies, reused from the folder where they exist."""
    cells, show = [training_cell(setting, sizes) for setting in wanted], LocalOnly(progress)
    *before, total = accumulate((cell.recipe.steps for cell in cells), initial=0)
    unfinished = None if folder is None or current()[0] else folder / "unfinished"

    def train(cell: TrainingCell) -> dict[str, Tensor]:
        at = cells.index(cell)
        name = f"{wanted[at].encoding}, {wanted[at].task}, seed {wanted[at].seed}, {wanted[at].size}"
        return train_cell(cell, lambda step: show(name, before[at] + step, total), device, unfinished)

    def measure(cell: TrainingCell) -> MeasureCell:
        return MeasureCell(cell_hash(cell), sizes[wanted[cells.index(cell)].size].tested)

    compute = partial(measure_cell, device=device)
    run_ahead(folder, cells, train, "runs")
    measure_ahead(folder, cells, measure, compute, "accuracies")

    def each() -> Iterator[Run]:
        for cell, trained in zip(cells, run_cells(folder, cells, train, "runs"), strict=True):
            if unfinished is not None:
                cell_path(unfinished, cell).unlink(missing_ok=True)
            yield cell, trained, next(run_cells(folder, [measure(cell)], partial(compute, cell, trained), "accuracies"))

    return each()


def measure_ahead(
    folder: Path | None,
    cells: Sequence[TrainingCell],
    measure: Callable[[TrainingCell], Any],
    compute: Callable[[TrainingCell, dict[str, Tensor], Any], dict[str, Tensor]],
    name: str,
) -> None:
    """Within `executing`, measure many trained models at a time; `measure` gives the cell that measures a model."""
    if folder is None:
        return
    trained = {measure(cell): cell for cell in cells}

    def given(one: Any) -> tuple[TrainingCell, bytes]:
        return trained[one], cell_path(folder, trained[one]).read_bytes()

    run_ahead(folder, list(trained), lambda one, cell, weights: compute(cell, load(weights), one), name, given)


def train_cell(
    cell: TrainingCell,
    progress: Callable[[int], None] = lambda step: None,
    device: str = "cpu",
    unfinished: Path | None = None,
) -> dict[str, Tensor]:
    """The weights at each snapshot (snapshots, ...) and, for every step, what `Step` holds.

    The state of a long run is saved in the folder `unfinished` now and then, from which an interrupted run resumes.
    """
    run = Fit(Classifier(cell.design, cell.recipe.seed).to(device), cell.labels, cell.recipe)
    kept = {round(part * cell.recipe.steps) for part in SNAPSHOTS}
    snapshots: dict[int, dict[str, Tensor]] = {}
    history: list[Step] = []

    def keep() -> None:
        snapshots[run.number] = {f"weights.{name}": one.detach().clone() for name, one in run.model.named_parameters()}

    def gathered() -> dict[str, Tensor]:
        weights = {name: torch.stack([one[name] for one in snapshots.values()]) for name in snapshots[0]}
        curve = {name: torch.stack([getattr(one, name) for one in history]) for name in Step._fields}
        return weights | curve | {"looks": torch.tensor(list(snapshots))}  # the name in existing cells

    if unfinished is not None and (path := cell_path(unfinished, cell)).exists():
        saved = read_tensors(path)
        run.restore({name.removeprefix("run."): one for name, one in saved.items() if name.startswith("run.")})
        weights = {name: one for name, one in saved.items() if name.startswith("weights.")}
        snapshots = {
            step: {name: one[at] for name, one in weights.items()} for at, step in enumerate(saved["looks"].tolist())
        }
        history = [Step(*values) for values in zip(*(saved[name] for name in Step._fields), strict=True)]
    else:
        keep()
    last_saved = monotonic()
    for step in run.steps():
        history.append(step)
        solved = _solved(cell, history)
        if run.number in kept or solved:
            keep()
        progress(cell.recipe.steps if solved else run.number)
        if solved:
            break
        if unfinished is not None and monotonic() - last_saved > SAVE_SECONDS:
            state = gathered() | {f"run.{name}": one for name, one in run.state().items()}
            write_atomically(cell_path(unfinished, cell), save({name: one.contiguous() for name, one in state.items()}))
            last_saved = monotonic()
    return gathered()


def _solved(cell: TrainingCell, history: Sequence[Step]) -> bool:
    if not isinstance(cell, SolvableCell) or len(history) < SOLVED_STEPS:
        return False
    return float(torch.stack([step.accuracy for step in history[-SOLVED_STEPS:]]).mean()) >= cell.solved


def restore(cell: TrainingCell, trained: dict[str, Tensor], snapshot: int = -1, device: str = "cpu") -> Classifier:
    """The model of a run as it was at one of its snapshots, by default the last."""
    model = Classifier(cell.design, cell.recipe.seed)
    start = "weights."
    model.load_state_dict(
        {name.removeprefix(start): value[snapshot] for name, value in trained.items() if name.startswith(start)}
    )
    return model.eval().to(device)


def measure_cell(
    cell: TrainingCell, trained: dict[str, Tensor], measure: MeasureCell, device: str = "cpu"
) -> dict[str, Tensor]:
    """Accuracy on the test set, of the whole model and without each head."""
    tokens, answers = held_out(cell.labels, cell.recipe, measure.tested)
    return ablate_heads(restore(cell, trained, device=device), tokens, answers)._asdict()
