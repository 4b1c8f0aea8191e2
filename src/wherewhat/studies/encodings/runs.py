"""Positional encodings side by side: one small Transformer, every encoding, a task that needs positions and one that
does not, several seeds. Each run is one cell for training and others for what is measured on the trained model, so
that a trained model stays valid when the measurements change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from ...cells.cells import cell_hash, cell_path, run_ahead, run_cells
from ...cells.executors import LocalOnly
from ...errors import BadInput
from ...lab.classifier import Classifier, Design
from ...lab.encodings import NOPE, Encoding
from ...lab.fit import Step, fit, held_out
from ...lab.train import Recipe
from ...results import Progress, ignore_progress
from ...tasks import Count, Distance
from .ablation import ablate_heads

TASKS = {"distance": Distance, "count": Count}
ENCODINGS = {
    "rope": Encoding(rotary=True),
    "nope": NOPE,
    "alibi": Encoding(bias="alibi"),
    "sinusoidal": Encoding(added="sinusoidal"),
    "mla": Encoding(rotary=True, latent=32, decoupled=4),  # within 2 % of the others in parameters
    "rope, 1 head": Encoding(rotary=True, heads=1),
    "rope, 2 heads": Encoding(rotary=True, heads=2),
    "rope, 4 heads": Encoding(rotary=True, heads=4),
    "rope, half the dimensions": Encoding(rotary=True, dims=4),
    "p-rope": Encoding(rotary=True, stopped=2),
    "learned": Encoding(added="learned"),
    "t5": Encoding(bias="t5"),
    "t5-plain": Encoding(bias="t5-plain"),
    "rope + sinusoidal": Encoding(rotary=True, added="sinusoidal"),
}
MAIN = ("rope", "nope", "alibi", "sinusoidal")
CLEAN = "clean"
# Flaws of the published code: variants have one of them each, and one variant all of them.
FLAWS = ("unmasked", "fixed keys", "added sinusoids", "exponential slopes")
FLAWED = "quirky"  # all of them; the value stands in published tables
TIMES = {"first layer": (0, 1), "first 2 layers": (0, 2), "last layer": (-1, None), "last 2 layers": (-2, None)}
SNAPSHOTS = (0, 1 / 15, 1 / 5, 1 / 2, 1)  # fractions of training after which the weights are kept
TRAINING_VERSION, MEASURE_VERSION = 1, 1


SMALL_RECIPE = Recipe(
    steps=1000, batch=64, rate=1e-3, betas=(0.9, 0.999), decay=1e-5, warmup=60, schedule="cosine", clip=math.inf,
    dropout=0.0,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Size of the model and its training recipe."""

    layers: int = 3
    heads: int = 8
    width: int = 64
    hidden: int = 128
    recipe: Recipe = SMALL_RECIPE
    tested: int = 2048
    small: bool = True


SIZES = {
    "small": Size(),
    "paper": Size(
        6, 16, 256, 512, tested=0, small=False,
        recipe=Recipe(
            steps=13_600, batch=512, rate=1e-4, betas=(0.98, 0.9), decay=1e-5, warmup=816, schedule="cosine",
            clip=math.inf, dropout=0.1,
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class EncodingSetting:
    """One row of the table: an encoding on a task with a seed. `variant` names what differs from the clean set-up."""

    encoding: str
    task: str
    seed: int = 0
    variant: str = CLEAN

    def design(self, size: Size) -> Design:
        task = self.labels(size)
        encoding, flaws = ENCODINGS[self.encoding], flaws_of(self.variant)
        if self.variant in TIMES:
            encoding = replace(encoding, layers=TIMES[self.variant])
        if "added sinusoids" in flaws and encoding.rotary:
            encoding = replace(encoding, added="sinusoidal")
        if "exponential slopes" in flaws and encoding.bias == "alibi":
            encoding = replace(encoding, bias="alibi-exponential")
        return Design(
            task.vocabulary, task.classes, task.tokens, encoding, size.layers, size.heads, size.width, size.hidden,
            unmasked="unmasked" in flaws, fixed_keys="fixed keys" in flaws,
        )  # fmt: skip

    def labels(self, size: Size) -> Distance | Count:
        if self.task not in TASKS:
            raise BadInput(f"no task {self.task!r}: {', '.join(TASKS)}")
        return TASKS[self.task].small() if size.small else TASKS[self.task]()


def flaws_of(variant: str) -> tuple[str, ...]:
    """The flaws of the published code that a variant has on purpose."""
    return FLAWS if variant == FLAWED else (variant,) if variant in FLAWS else ()


def variant_label(variant: str) -> str:
    """How a variant is shown."""
    return "all flaws" if variant == FLAWED else variant


@dataclass(frozen=True)
class TrainingCell:
    """Everything that a trained model depends on."""

    task: str
    labels: Distance | Count
    design: Design
    recipe: Recipe
    version: int = TRAINING_VERSION


@dataclass(frozen=True)
class MeasureCell:
    """Everything that the accuracies of a trained model depend on."""

    training: str
    tested: int
    version: int = MEASURE_VERSION


def settings(seeds: Sequence[int] = range(3)) -> list[EncodingSetting]:
    """All runs, the most informative ones first, seed by seed."""
    everything = [
        *(EncodingSetting(encoding, task, seed) for seed in seeds for task in TASKS for encoding in MAIN),
        *(EncodingSetting(encoding, task, seed, FLAWED) for seed in seeds for task in TASKS for encoding in MAIN),
        *(EncodingSetting(encoding, "distance", seed) for seed in seeds for encoding in ENCODINGS),
        *(EncodingSetting("rope", "distance", seed, when) for seed in seeds for when in TIMES),
        *(
            EncodingSetting("alibi", "distance", seed, flaw)
            for seed in seeds
            for flaw in FLAWS
            if flaw != "added sinusoids"
        ),
        *(EncodingSetting(encoding, "count", seed) for seed in seeds for encoding in ENCODINGS),
        *(
            EncodingSetting("rope", "distance", seed, flaw)
            for seed in seeds
            for flaw in FLAWS
            if flaw != "exponential slopes"
        ),
        *(
            EncodingSetting("alibi", "count", seed, flaw)
            for seed in seeds
            for flaw in ("fixed keys", "exponential slopes")
        ),
        *(
            EncodingSetting("sinusoidal", "distance", seed, when)
            for seed in seeds
            for when in TIMES
            if when.startswith("last")
        ),
    ]
    return list(dict.fromkeys(everything))


def training_cell(setting: EncodingSetting, size: Size) -> TrainingCell:
    recipe = replace(size.recipe, seed=setting.seed)
    return TrainingCell(setting.task, setting.labels(size), setting.design(size), recipe)


def run_settings(
    wanted: Sequence[EncodingSetting],
    size: Size,
    folder: Path | None,
    progress: Progress = ignore_progress,
    device: str = "cpu",
) -> Iterator[tuple[TrainingCell, dict[str, Tensor], dict[str, Tensor]]]:
    """For each setting its cell, the trained weights and the accuracies, reused from the folder where they exist."""
    cells, steps, show = [training_cell(setting, size) for setting in wanted], size.recipe.steps, LocalOnly(progress)

    def train(cell: TrainingCell) -> dict[str, Tensor]:
        at = cells.index(cell)
        name = f"{wanted[at].encoding}, {wanted[at].task}, seed {wanted[at].seed}"
        return train_cell(cell, lambda step: show(name, at * steps + step, len(cells) * steps), device)

    compute = partial(measure_cell, device=device)
    run_ahead(folder, cells, train, "runs")
    measure_ahead(folder, cells, lambda cell: MeasureCell(cell_hash(cell), size.tested), compute, "accuracies")

    def each() -> Iterator[tuple[TrainingCell, dict[str, Tensor], dict[str, Tensor]]]:
        for cell, trained in zip(cells, run_cells(folder, cells, train, "runs"), strict=True):
            measures = [MeasureCell(cell_hash(cell), size.tested)]
            yield cell, trained, next(run_cells(folder, measures, partial(compute, cell, trained), "accuracies"))

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
    cell: TrainingCell, progress: Callable[[int], None] = lambda step: None, device: str = "cpu"
) -> dict[str, Tensor]:
    """The weights at each snapshot (snapshots, ...) and, for every step, what `Step` holds."""
    model, steps = Classifier(cell.design, cell.recipe.seed).to(device), cell.recipe.steps
    snapshot_steps = sorted({round(part * steps) for part in SNAPSHOTS})
    snapshots: list[dict[str, Tensor]] = []
    history: list[Step] = []

    def keep() -> None:
        snapshots.append({f"weights.{name}": value.detach().clone() for name, value in model.named_parameters()})

    def watch(step: int, now: Step) -> None:
        history.append(now)
        if step + 1 in snapshot_steps:
            keep()
        progress(step + 1)

    keep()
    fit(model, cell.labels, cell.recipe, watch)
    weights = {name: torch.stack([one[name] for one in snapshots]) for name in snapshots[0]}
    curve = {name: torch.stack(values) for name, values in zip(Step._fields, zip(*history, strict=True), strict=True)}
    return weights | curve | {"looks": torch.tensor(snapshot_steps)}  # the name in existing cells


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
