"""What a study of encodings will cost, from the time of a few training steps on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

from ...cells.cells import cell_path
from ...lab.classifier import Classifier
from ...lab.fit import Fit
from ...words import count
from .runs import TrainingCell, training_cell
from .settings import SIZES, EncodingSetting, Size

STEPS = 2  # timed, after one that is not
ABLATION = 0.57  # the time of one ablated evaluation in units of a whole one; see bench/encodings.py
FORWARD = 1 / 3  # the time of a forward pass in units of a training step


def cost_sentence(wanted: Sequence[EncodingSetting], folder: Path, sizes: Mapping[str, Size] = SIZES) -> str:
    """How many runs are missing in the folder of cells, and how much processor time they need at most."""
    missing = [one for one in wanted if not cell_path(folder, training_cell(one, sizes)).exists()]
    kinds: dict[tuple[str, str], list[EncodingSetting]] = {}
    for one in missing:
        kinds.setdefault((one.size, one.task), []).append(one)
    hours = {
        kind: len(some) * processor_seconds(training_cell(some[0], sizes), sizes[kind[0]].tested) / 3600
        for kind, some in kinds.items()
    }
    parts = [
        f"{count(len(kinds[kind]), 'run')} of {kind[0]}, {kind[1]}: {value:.1f} h" for kind, value in hours.items()
    ]
    total = f"{len(missing)} of {count(len(wanted), 'run')} to train"
    if not missing:
        return total
    return f"{total}, at most {sum(hours.values()):.1f} hours of one processor core ({'; '.join(parts)})"


def processor_seconds(cell: TrainingCell, tested: int) -> float:
    """The processor time of a run on this machine, with its ablations, estimated from a few steps."""
    timed = replace(cell.recipe, steps=STEPS + 1)
    run = Fit(Classifier(cell.design, cell.recipe.seed), replace(cell.labels, samples=None), timed).steps()
    next(run)
    start = process_time()
    for _ in run:
        pass
    step = (process_time() - start) / STEPS
    sequences = tested or round(0.3 * (cell.labels.samples or 0))
    evaluations = sequences / cell.recipe.batch * (1 + 2 * cell.design.layers * cell.design.heads * ABLATION)
    return step * (cell.recipe.steps + FORWARD * evaluations)
