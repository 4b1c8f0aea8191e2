"""The experiment on rotations: run it, in parts that resume, or collect what is finished into results/.

python tools/rotations.py MODEL ... --folder runs/rotations --lengths 256 1024 2048
python tools/rotations.py MODEL ... --folder runs/rotations --collect results/rotations.parquet
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
import torch

from wherewhat.cli.output import quiet_libraries
from wherewhat.files import write_table
from wherewhat.studies.rotations.experiment import LENGTHS, experiment
from wherewhat.studies.rotations.finetune import finetune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--folder", type=Path, default=Path("runs/rotations"))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--own", action="store_true", help="documents that the model writes itself")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--collect", type=Path, help="only read finished trials, and add them to this table")
    parser.add_argument("--finetune", type=Path, help="fine-tune with each criterion in force, into this table")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    quiet_libraries()

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    for model in given.models:
        if given.finetune is not None:
            write_table(given.finetune, finetune(model, given.folder, steps=given.steps, say=say))
            continue
        rows = experiment(
            model, given.folder, own=given.own, lengths=given.lengths, finished=given.collect is not None,
            say=say,
        )  # fmt: skip
        if given.collect is not None and len(rows):
            if given.collect.exists():
                known = pd.read_parquet(given.collect)
                same = (known["model"] == rows["model"][0]) & (known["documents"] == rows["documents"][0])
                rows = pd.concat([known[~same], rows], ignore_index=True)
            write_table(given.collect, rows)


if __name__ == "__main__":
    main()
