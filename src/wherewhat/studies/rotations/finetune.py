"""Does the advantage of a plan survive training? Fine-tuning on a model's own samples, with a plan in force."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import get_linear_schedule_with_warmup

from ...cells.cells import run_cells
from ...results import Say, ignore_sentence
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.gate import gate
from ...tracing.load import open_model
from .calibrate import calibrate
from .evaluate import log_probabilities, next_token_loss
from .experiment import SampleCell, sample
from .plan import Kept, baseline, frozen, most_needed

CRITERIA = ("all", "plan", "plan per head", "norm", "uniform", "highest")
TOKENS, BATCH, EVERY = 256, 4, 50
DRAWN, TEST, CALIBRATION = 240, 16, 4  # documents
RATE, WARMUP = 1e-4, 0.1


@dataclass(frozen=True)
class FinetuneCell:
    """One training run: which criterion chose the planes, how many of them, and for how many steps."""

    weights: str
    dtype: str
    criterion: str
    share: int
    steps: int
    seed: int = 0
    version: int = 2


def finetune(
    model: str, folder: str | Path, *, share: int = 4, steps: int = 300, seed: int = 0, say: Say = ignore_sentence
) -> pd.DataFrame:
    """One row per criterion and step: loss on held-out samples of the model, and KL to the unmodified model.

    All runs of a seed read the same samples in the same order, each sample once. Criterion "all" keeps every rotation:
    what training alone does.
    """
    opened = open_model(model)
    identity = model_hash(opened.model), dtype_name(opened.model)
    cells = Path(folder) / "cells"
    wanted = (CALIBRATION, TEST, *[DRAWN] * math.ceil(steps * BATCH / DRAWN))
    drawn = [SampleCell(*identity, number, TOKENS, 100 * (1 + seed) + at) for at, number in enumerate(wanted)]

    def draw(cell: SampleCell) -> dict[str, Tensor]:
        return {"ids": sample(opened.model, opened.tokenizer, cell.number, cell.tokens, cell.seed)}

    calibration, test, *parts = (found["ids"] for found in run_cells(cells, drawn, draw, "samples"))
    batches = torch.cat(parts).split(BATCH)[:steps]
    found = calibrate(opened.model, [tuple(row) for row in calibration.tolist()], folder)
    keep = found.effect.shape[-1] // share
    kept: dict[str, Kept | None] = {
        "all": None,
        "plan": most_needed(found.effect, keep, "model"),
        "plan per head": most_needed(found.effect, keep, "head"),
    } | {name: baseline(name, found.norm, keep) for name in ("norm", "uniform", "highest")}
    runs = [FinetuneCell(*identity, name, share, steps, seed) for name in CRITERIA]

    def compute(cell: FinetuneCell) -> dict[str, Tensor]:
        plan = kept[cell.criterion]
        changes = [] if plan is None else list(frozen(plan, found.present, found.layers, found.groups))
        return train(open_model(model).model, opened.model, changes, batches, test)

    rows: list[dict[str, Any]] = []
    for cell, result in zip(runs, run_cells(cells, runs, compute, "runs"), strict=True):
        say(f"{opened.short_name}: fine-tuned with {cell.criterion}, 1/{share} of the planes")
        about = {"model": opened.short_name, "seed": seed, "criterion": cell.criterion, "share": share}
        numbers = zip(*(result[name].tolist() for name in ("step", "loss", "kl")), strict=True)
        rows += [about | {"step": step, "loss": loss, "kl": kl} for step, loss, kl in numbers]
    return pd.DataFrame(rows)


def train(
    model: Any, original: Any, changes: list[Any], batches: Sequence[Int[Tensor, "B T"]], test: Int[Tensor, "M T"]
) -> dict[str, Tensor]:
    """Train a model without some rotations, one step per batch; loss and KL on the test documents, at the start and
    every `EVERY` steps."""
    positions = torch.arange(0, test.shape[1] - 1, 4)
    own = [log_probabilities(original, some, positions) for some in test.split(BATCH)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimiser, round(WARMUP * len(batches)), len(batches))
    found: list[tuple[int, float, float]] = []

    def measure(step: int) -> None:
        losses, divergences = [], []
        for before, some in zip(own, test.split(BATCH), strict=True):
            after = log_probabilities(model, some, positions)
            losses.append(next_token_loss(after, some, positions))
            divergences.append((before.exp() * (before - after)).sum(-1).mean(1))
        found.append((step, float(torch.cat(losses).mean()), float(torch.cat(divergences).mean())))

    with gate(model, freeze=changes):
        measure(0)
        for step, chosen in enumerate(batches, 1):
            logits = model(input_ids=chosen[:, :-1], use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            if step % EVERY == 0:
                measure(step)
    step, loss, kl = (torch.tensor(column) for column in zip(*found, strict=True))
    return {"step": step, "loss": loss.double(), "kl": kl.double()}
