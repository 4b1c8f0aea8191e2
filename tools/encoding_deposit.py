"""Does a single-head deposit of RoPE last? Its largest drop at the snapshots of training, with dropout, on distance.

All runs train to the last step, unlike those of `wherewhat reproduce encodings --size medium`, where the small model on
the published task ends once it is solved.

python tools/encoding_deposit.py --folder runs/encodings-medium    # adds missing runs to the table
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from products import fast_products
from wherewhat.files import write_table
from wherewhat.lab.fit import held_out
from wherewhat.studies.encodings.ablation import ablate_heads
from wherewhat.studies.encodings.runs import restore, run_settings
from wherewhat.studies.encodings.settings import (
    FEW_SEQUENCES,
    LARGE_MODEL,
    LONG_TASK,
    PAPER_RECIPE,
    SIZES,
    EncodingSetting,
)

TESTED = 256  # sequences
TO_THE_END = {name: replace(size, solved=None, tested=TESTED) for name, size in SIZES.items()}
WANTED = [
    EncodingSetting("rope", "distance", seed, size=size, dropout=PAPER_RECIPE.dropout)
    for size, seeds in ((LONG_TASK, 3), (FEW_SEQUENCES, 1), (LARGE_MODEL, 3))
    for seed in range(seeds)
]


def over_training(setting: EncodingSetting, folder: Path) -> Iterator[dict[str, object]]:
    """One row per snapshot after the first step: accuracy, and what the most important head costs."""
    ((cell, trained, _),) = run_settings([setting], folder / "cells", sizes=TO_THE_END)
    tokens, answers = held_out(cell.labels, cell.recipe, TESTED)
    for snapshot, step in enumerate(trained["looks"].tolist()):
        if step == 0:
            continue
        found = ablate_heads(restore(cell, trained, snapshot), tokens, answers)
        drops = (found.whole - found.zero).flatten()
        (largest, next_one), best = drops.topk(2).values.tolist(), int(drops.argmax())
        layer, head = divmod(best, found.zero.shape[1])
        yield {
            "size": setting.size, "seed": setting.seed, "step": step, "accuracy": float(found.whole),
            "largest": largest, "next": next_one, "layer": layer, "head": head,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/encodings-medium"))
    parser.add_argument("--results", type=Path, default=Path("results/deposit-training.parquet"), help="the table")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    fast_products()
    table = pd.read_parquet(given.results) if given.results.exists() else pd.DataFrame(columns=["size", "seed"])
    for setting in WANTED:
        if not ((table["size"] == setting.size) & (table["seed"] == setting.seed)).any():
            found = pd.DataFrame(over_training(setting, given.folder))
            table = pd.concat([table, found], ignore_index=True).astype(found.dtypes)
            write_table(given.results, table)
            print(table.tail(4).to_string(), flush=True)


if __name__ == "__main__":
    main()
