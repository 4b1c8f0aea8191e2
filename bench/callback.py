"""What `ww.HeadCallback` costs: processor time of a measurement in steps of training, measured in turn in one run.

Usage: python -m bench.callback [--write]   (prints a table; --write: also results/callback.parquet)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from transformers import Trainer, TrainerCallback, TrainingArguments

import wherewhat as ww
from wherewhat.prompts.text import included_story

MODEL = Path(os.environ.get("WHEREWHAT_WEIGHTS", "../shared/weights")) / "stories15M"
STEPS, BATCH, TOKENS = 8, 4, 128
PROMPTS = ((4, 2), (8, 4), (16, 8))  # pairs and samples of the binding task
TABLE = Path(__file__).parents[1] / "results" / "callback.parquet"


class Clock(TrainerCallback):
    """Processor time of every step."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps.append(time.process_time() - self.began)


class Timed(ww.HeadCallback):
    """Processor time of every measurement."""

    def _measure(self, model: Any, state: Any) -> None:
        before, known = time.process_time(), len(self.measured)
        super()._measure(model, state)
        if len(self.measured) > known:
            self.costs = [*getattr(self, "costs", ()), time.process_time() - before]


def compare(pairs: int, samples: int) -> dict[str, Any]:
    """A fine-tuning that measures after every step: a step, a measurement, a step, and so on."""
    tokenizer, model = ww.load_tokenizer(MODEL), ww.load(MODEL)
    ids = tokenizer(included_story())["input_ids"]
    rows = [
        {"input_ids": ids[at : at + TOKENS], "labels": ids[at : at + TOKENS]} for at in range(0, 12 * TOKENS, TOKENS)
    ]
    with TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True, save_strategy="no",
            disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer, clock = Trainer(model, settings, train_dataset=rows), Clock()
        trainer.add_callback(clock)  # before the other, so that no measurement is part of a step
        timed = Timed(ww.binding(tokenizer, pairs, samples), every=1, share=1e9)
        timed.attach(trainer)
        trainer.train()
    step, later = median(clock.steps[1:]), median(timed.costs[1:])
    tokens = max(len(prompt.ids) for prompt in ww.binding(tokenizer, pairs, samples))
    row = {"pairs": pairs, "prompts": samples, "tokens": tokens, "batch": BATCH, "batch_tokens": TOKENS}
    row |= {"steps": STEPS, "step_seconds": step, "measurement_seconds": later, "first_seconds": timed.costs[0]}
    return row | {"ratio": later / step, "first_ratio": timed.costs[0] / step}


def main() -> None:
    table = pd.DataFrame([compare(*one) for one in PROMPTS])
    print(table.to_string())
    if "--write" in sys.argv:
        table.to_parquet(TABLE, index=False)


if __name__ == "__main__":
    main()
