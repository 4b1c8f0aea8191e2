"""The experiment on rotations: every trial that is missing in the table of results is run and added to it.

python tools/rotations.py MODEL ... --folder runs/rotations --minutes 60
python tools/rotations.py MODEL --folder runs/rotations --finetune results/rotations-finetuned.parquet
python tools/rotations.py SMOLLM2 STORIES15M --relation results/rotations-relation.parquet
python tools/rotations.py MODEL --part 0 2 --results rows-0.parquet     # one of two processes, each with its table
python tools/rotations.py --add rows-0.parquet rows-1.parquet
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
import torch

from products import fast_products
from wherewhat.cli.output import quiet_libraries
from wherewhat.files import write_table
from wherewhat.prompts import Prompt, binding
from wherewhat.prompts.request import pairs_that_fit
from wherewhat.studies.rotations.experiment import LENGTHS, TOKENS, experiment
from wherewhat.studies.rotations.finetune import finetune
from wherewhat.studies.rotations.relation import relation
from wherewhat.tracing.load import open_model


def effects_and_scores(model: str, longest: int = 220) -> pd.DataFrame:
    """Means over two binding prompts of at most this many tokens, one row per plane of every head."""
    opened = open_model(model)

    def lists(pairs: int) -> list[Prompt]:
        return binding(opened.tokenizer, pairs, 2, 0)

    prompts = lists(pairs_that_fit(lists, longest, 64))
    both = pd.concat([relation(opened.model, prompt) for prompt in prompts])
    means: Any = both.groupby(["layer", "head", "frequency"], as_index=False).mean()
    tokens = max(len(prompt.ids) for prompt in prompts)
    return means.assign(model=opened.short_name, tokens=tokens, pairs=len(prompts[0].blocks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("runs/rotations"))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="read per set, or one document if it is longer")
    parser.add_argument("--own", action="store_true", help="documents that the model writes itself")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("results/rotations.parquet"), help="the table")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="number, from 0, and count of processes")
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="tables whose rows are added to --results")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no trial after this time")
    parser.add_argument("--finetune", type=Path, help="fine-tune with each criterion in force, into this table")
    parser.add_argument("--relation", type=Path, help="effects beside scores on two binding prompts, into this table")
    parser.add_argument("--steps", type=int, default=300, help="of fine-tuning")
    parser.add_argument("--seeds", type=int, default=2, help="of fine-tuning")
    given = parser.parse_args()
    if not 0 <= given.part[0] < given.part[1]:
        parser.error(f"--part {given.part[0]} {given.part[1]}: processes are counted from 0")
    if not given.models and not given.add:
        parser.error("a model, or tables to --add")
    torch.set_num_threads(given.threads)
    begun = monotonic()
    fast_products()
    quiet_libraries()

    if given.add:
        table = pd.concat([pd.read_parquet(path) for path in (given.results, *given.add)], ignore_index=True)
        write_table(
            given.results, table.drop_duplicates([name for name in table if name != "value"], ignore_index=True)
        )
        return

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    if given.relation is not None:
        write_table(given.relation, pd.concat([effects_and_scores(model) for model in given.models]))
        return
    for model in given.models:
        if given.finetune is not None:
            for seed in range(given.seeds):
                rows = finetune(model, given.folder, steps=given.steps, seed=seed, say=say)
                known = [pd.read_parquet(given.finetune)] if given.finetune.exists() else []
                by = [name for name in rows if name not in ("loss", "kl")]
                write_table(given.finetune, pd.concat([*known, rows]).drop_duplicates(by, keep="last"))
            continue
        table = pd.read_parquet(given.results) if given.results.exists() else None
        trials = experiment(
            model, given.folder, own=given.own, lengths=given.lengths, tokens=given.tokens, known=table,
            part=tuple(given.part), say=say,
        )  # fmt: skip
        for rows in trials:
            table = rows if table is None else pd.concat([table, rows], ignore_index=True)
            write_table(given.results, table)
            if monotonic() - begun > 60 * given.minutes:
                return


if __name__ == "__main__":
    main()
