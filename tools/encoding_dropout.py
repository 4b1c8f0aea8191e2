"""Where do models that were trained with dropout depend on it? Their accuracy with dropout at some places only.

python tools/encoding_dropout.py --folder runs/encodings-medium results/dropout-places.parquet
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from wherewhat.cells.cells import cell_path
from wherewhat.files import read_tensors, write_table
from wherewhat.lab.fit import held_out
from wherewhat.studies.encodings.runs import restore, training_cell
from wherewhat.studies.encodings.settings import PAPER_RECIPE, SIZES, medium_settings

LAYER = ("attention weights", "attention output", "hidden units", "MLP output")  # in the order of a forward pass
CONDITIONS = {
    "nowhere": (),
    "everywhere": ("embeddings", *LAYER),
    **{place: (place,) for place in ("embeddings", *LAYER)},
}


class DropoutAt:
    """Dropout at some places of one forward pass."""

    def __init__(self, places: tuple[str, ...], rate: float = PAPER_RECIPE.dropout) -> None:
        self.places, self.rate, self.calls = places, rate, 0
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, values: Tensor) -> Tensor:
        place = LAYER[(self.calls - 1) % len(LAYER)] if self.calls else "embeddings"
        self.calls += 1
        if place not in self.places:
            return values
        return values * (torch.rand(values.shape, generator=self.random) >= self.rate) / (1 - self.rate)


@torch.no_grad()
def measure(folder: Path) -> Iterator[dict[str, object]]:
    """Accuracies on the test sequences, of all finished small runs with dropout."""
    for setting in medium_settings():
        cell = training_cell(setting)
        if setting.size != "small" or not (path := cell_path(folder / "cells", cell)).exists():
            continue
        model = restore(cell, read_tensors(path))
        tokens, answers = held_out(cell.labels, cell.recipe, SIZES["small"].tested)
        for condition, places in CONDITIONS.items():
            right = model(tokens, drop=DropoutAt(places)).argmax(-1) == answers
            about = {"encoding": setting.encoding, "task": setting.task, "seed": setting.seed, "dropout_at": condition}
            yield about | {"accuracy": right.double().mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="to write, with the ending .parquet")
    parser.add_argument("--folder", type=Path, default=Path("runs/encodings-medium"), help="of the trained models")
    given = parser.parse_args()
    torch.set_num_threads(1)
    write_table(given.table, pd.DataFrame(measure(given.folder)))


if __name__ == "__main__":
    main()
