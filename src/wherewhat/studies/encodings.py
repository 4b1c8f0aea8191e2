"""Positional encodings side by side: one small Transformer, every encoding, a task that needs positions and one that
does not, several seeds. Training is one cell a run, what is measured of the trained model another, so that a run stays
valid when its measures change.
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

from ..errors import BadInput
from ..lab.classifier import Classifier, Design
from ..lab.encodings import NOPE, Encoding
from ..lab.fit import Step, fit, held_out
from ..lab.train import Recipe
from ..tasks import Count, Distance
from .cells import cell_hash, cell_path, run_ahead, run_cells
from .deposit import ablate_heads
from .executors import Here

TASKS = {"distance": Distance, "count": Count}
ENCODINGS = {
    "rope": Encoding(rotary=True),
    "nope": NOPE,
    "alibi": Encoding(bias="alibi"),
    "sinusoidal": Encoding(added="sinusoidal"),
    "mla": Encoding(rotary=True, latent=32, decoupled=4),  # as many weights as the others, to 2 %
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
# What a published code does otherwise: one thing at a time, and all of them.
QUIRKS = ("unmasked", "fixed keys", "added sinusoids", "exponential slopes")
QUIRKY = "quirky"
TIMES = {"first layer": (0, 1), "first 2 layers": (0, 2), "last layer": (-1, None), "last 2 layers": (-2, None)}
LOOKS = (0, 1 / 15, 1 / 5, 1 / 2, 1)  # of training, at which the weights are kept
TRAINING_VERSION, MEASURE_VERSION = 1, 1


SMALL_RECIPE = Recipe(
    steps=1000, batch=64, rate=1e-3, betas=(0.9, 0.999), decay=1e-5, warmup=60, schedule="cosine", clip=math.inf,
    dropout=0.0,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Sizes of the model, and how it is trained."""

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
class Setting:
    """One row of the table: an encoding on a task with a seed, `variant` says what is done otherwise."""

    encoding: str
    task: str
    seed: int = 0
    variant: str = CLEAN

    def design(self, size: Size) -> Design:
        task = self.labels(size)
        encoding, flaws = ENCODINGS[self.encoding], quirks_of(self.variant)
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


def quirks_of(variant: str) -> tuple[str, ...]:
    """The flaws that a variant has on purpose."""
    return QUIRKS if variant == QUIRKY else (variant,) if variant in QUIRKS else ()


@dataclass(frozen=True)
class TrainingCell:
    """All that a trained model depends on."""

    task: str
    labels: Distance | Count
    design: Design
    recipe: Recipe
    version: int = TRAINING_VERSION


@dataclass(frozen=True)
class MeasureCell:
    """All that the measures of a trained model depend on."""

    training: str
    tested: int
    version: int = MEASURE_VERSION


def settings(seeds: Sequence[int] = range(3)) -> list[Setting]:
    """All runs, the most telling ones first, seed by seed."""
    everything = [
        *(Setting(encoding, task, seed) for seed in seeds for task in TASKS for encoding in MAIN),
        *(Setting(encoding, task, seed, QUIRKY) for seed in seeds for task in TASKS for encoding in MAIN),
        *(Setting(encoding, "distance", seed) for seed in seeds for encoding in ENCODINGS),
        *(Setting("rope", "distance", seed, when) for seed in seeds for when in TIMES),
        *(Setting("alibi", "distance", seed, flaw) for seed in seeds for flaw in QUIRKS if flaw != "added sinusoids"),
        *(Setting(encoding, "count", seed) for seed in seeds for encoding in ENCODINGS),
        *(Setting("rope", "distance", seed, flaw) for seed in seeds for flaw in QUIRKS if flaw != "exponential slopes"),
        *(Setting("alibi", "count", seed, flaw) for seed in seeds for flaw in ("fixed keys", "exponential slopes")),
        *(Setting("sinusoidal", "distance", seed, when) for seed in seeds for when in TIMES if when.startswith("last")),
    ]
    return list(dict.fromkeys(everything))


def training_cell(setting: Setting, size: Size) -> TrainingCell:
    recipe = replace(size.recipe, seed=setting.seed)
    return TrainingCell(setting.task, setting.labels(size), setting.design(size), recipe)


def run_settings(
    wanted: Sequence[Setting],
    size: Size,
    folder: Path | None,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
    device: str = "cpu",
) -> Iterator[tuple[TrainingCell, dict[str, Tensor], dict[str, Tensor]]]:
    """For each setting what training left and what was measured of it, from their files or anew."""
    cells, steps, show = [training_cell(setting, size) for setting in wanted], size.recipe.steps, Here(progress)

    def train(cell: TrainingCell) -> dict[str, Tensor]:
        at = cells.index(cell)
        name = f"{wanted[at].encoding}, {wanted[at].task}, seed {wanted[at].seed}"
        return train_cell(cell, lambda step: show(name, at * steps + step, len(cells) * steps), device)

    measured = partial(measure_cell, device=device)
    run_ahead(folder, cells, train, "runs")
    look_ahead(folder, cells, lambda cell: MeasureCell(cell_hash(cell), size.tested), measured, "measures")

    def each() -> Iterator[tuple[TrainingCell, dict[str, Tensor], dict[str, Tensor]]]:
        for cell, trained in zip(cells, run_cells(folder, cells, train, "runs"), strict=True):
            measure = partial(measured, cell, trained)
            wanted = [MeasureCell(cell_hash(cell), size.tested)]
            yield cell, trained, next(run_cells(folder, wanted, measure, "measures"))

    return each()


def look_ahead(
    folder: Path | None,
    cells: Sequence[TrainingCell],
    look: Callable[[TrainingCell], Any],
    compute: Callable[[TrainingCell, dict[str, Tensor], Any], dict[str, Tensor]],
    name: str,
) -> None:
    """Within `executing`, look at trained models, many at a time; each cell of it belongs to one of training."""
    if folder is None:
        return
    trained = {look(cell): cell for cell in cells}

    def given(one: Any) -> tuple[TrainingCell, bytes]:
        return trained[one], cell_path(folder, trained[one]).read_bytes()

    run_ahead(folder, list(trained), lambda one, cell, weights: compute(cell, load(weights), one), name, given)


def train_cell(
    cell: TrainingCell, progress: Callable[[int], None] = lambda step: None, device: str = "cpu"
) -> dict[str, Tensor]:
    """The weights at some looks (looks, ...), and of every step: loss, accuracy, norm and heads of the gradient."""
    model, steps = Classifier(cell.design, cell.recipe.seed).to(device), cell.recipe.steps
    looks = sorted({round(part * steps) for part in LOOKS})
    kept: list[dict[str, Tensor]] = []
    told: list[Step] = []

    def keep() -> None:
        kept.append({f"weights.{name}": value.detach().clone() for name, value in model.named_parameters()})

    def watch(step: int, now: Step) -> None:
        told.append(now)
        if step + 1 in looks:
            keep()
        progress(step + 1)

    keep()
    fit(model, cell.labels, cell.recipe, watch)
    weights = {name: torch.stack([one[name] for one in kept]) for name in kept[0]}
    curve = {name: torch.stack(values) for name, values in zip(Step._fields, zip(*told, strict=True), strict=True)}
    return weights | curve | {"looks": torch.tensor(looks)}


def restore(cell: TrainingCell, trained: dict[str, Tensor], look: int = -1, device: str = "cpu") -> Classifier:
    """The model of a run as it was at one of its looks, the last unless asked otherwise."""
    model = Classifier(cell.design, cell.recipe.seed)
    start = "weights."
    model.load_state_dict(
        {name.removeprefix(start): value[look] for name, value in trained.items() if name.startswith(start)}
    )
    return model.eval().to(device)


def measure_cell(
    cell: TrainingCell, trained: dict[str, Tensor], measure: MeasureCell, device: str = "cpu"
) -> dict[str, Tensor]:
    """Accuracy on the test set, whole and without each head."""
    tokens, answers = held_out(cell.labels, cell.recipe, measure.tested)
    return ablate_heads(restore(cell, trained, device=device), tokens, answers)._asdict()
