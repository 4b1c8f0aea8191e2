"""How much the tasks of one angle depend on the initial standard deviation, into results/initial-angles.parquet.

python tools/init_sweep.py        # ten settings of 32 angles and 2 seeds, some minutes
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

import wherewhat as ww
from wherewhat.files import write_table

ANGLES = {"induction": range(11, 19), "index": range(1, 8), "retrieval": range(14, 33, 6)}  # frequency IDs
SETTINGS = [
    *(("induction", symbols, std) for symbols in (8, 16) for std in (0.1, 0.3, 0.5, 1.0)),
    *((task, 16, std) for task in ("index", "retrieval") for std in (0.1, 0.5, 1.0)),
]


def main() -> None:
    torch.set_num_threads(1)
    parts = []
    for task, symbols, std in SETTINGS:
        found = ww.sweep(task, symbols=symbols, init_std=std, seeds=2, frequency=ANGLES[task])
        parts.append(found.members.assign(task=task, symbols=symbols, init_std=std))
        print(task, symbols, std, flush=True)
    write_table(Path(__file__).parents[1] / "results" / "initial-angles.parquet", pd.concat(parts))


if __name__ == "__main__":
    main()
