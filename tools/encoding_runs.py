"""Train the missing runs of `wherewhat reproduce encodings`, one at a time, and add each to the tables in results/.

Unlike the command, it needs no folder of earlier runs: a run whose row is in the table is skipped.

python tools/encoding_runs.py --size medium --folder runs/encodings-medium --minutes 60
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import monotonic

import torch

from products import fast_products
from wherewhat.results import load_prefixed, save_prefixed
from wherewhat.studies.encodings.settings import PLANS, SIZES, plan
from wherewhat.studies.encodings.tables import Encodings, gather


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=PLANS, default="medium")
    parser.add_argument("--folder", type=Path, default=Path("runs/encodings-medium"), help="for unfinished runs")
    parser.add_argument("--results", type=Path, default=Path("results/encodings"), help="prefix of the tables")
    parser.add_argument("--only", choices=SIZES, nargs="+", default=list(SIZES), help="only runs of these sizes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    fast_products()
    begun, wanted = monotonic(), [one for one in plan(given.size) if one.size in given.only]
    for one in load_prefixed(Encodings, given.results).missing(wanted):
        if monotonic() - begun > 60 * given.minutes:
            break
        made = Encodings(*gather(given.folder / "cells", [one]), about={})
        save_prefixed(load_prefixed(Encodings, given.results).with_runs_of(made), given.results)
        print(f"{one}: accuracy {made.runs['accuracy'].item():.3f}", flush=True)


if __name__ == "__main__":
    main()
