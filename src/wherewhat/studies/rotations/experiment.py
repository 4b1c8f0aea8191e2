"""The experiment behind the plans: five sets of documents, several lengths and numbers of planes, all criteria.

Each set is calibrated on one text and tested on the next one. Results are rows, one per document, sequence or prompt;
each trial is a cell, so an interrupted experiment resumes and what is finished can be read at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ...cells.cells import cell_path, run_cells
from ...prompts.documents import packaged_documents
from ...results import Say, ignore_sentence
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import open_model
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from ..stats import interval, resamples
from .calibrate import Calibration, EffectCell, Ids, calibrate, cut, opening, shuffled_text, tokens_of
from .evaluate import Material, TrialCell, digest_of_plans, measure_plans, tasks
from .plan import Kept, baseline, most_needed, shuffled

LENGTHS = (256, 1024, 2048)
SHARES = (2, 4, 8)  # one half, a quarter, an eighth of the planes are kept
SETS = 5
TOKENS = 1024  # read per set, or one document if it is longer
FIXED = ("highest", "lowest", "uniform", "random")


@dataclass(frozen=True)
class SampleCell:
    """Documents that a model writes itself, at temperature 1, behind its first token."""

    weights: str
    dtype: str
    number: int
    tokens: int
    seed: int


@dataclass(frozen=True)
class Trial:
    """Calibrated on one set at one length, tested on the next set: text, or copying and binding."""

    number: int  # of the set
    calibrated: int
    length: int
    kind: str = "text"

    def __str__(self) -> str:
        return f"set {self.number}, calibrated at {self.calibrated}, {self.kind} of {self.length} tokens"


def trials(lengths: Sequence[int]) -> Iterator[Trial]:
    """First what is calibrated and tested at one length, text before tasks, short before long; then across lengths."""
    for length in lengths:
        for kind in ("text", "tasks"):
            yield from (Trial(number, length, length, kind) for number in range(SETS))
    for length in lengths:
        for other in lengths:
            if other != length:
                yield from (Trial(number, other, length) for number in range(SETS))


class Experiment:
    """One model on the packaged documents, or on samples that it wrote itself."""

    def __init__(self, model: str, folder: Path, own: bool = False, lengths: Sequence[int] = LENGTHS) -> None:
        opened = open_model(model)
        self.model, self.tokenizer, self.name = opened.model, opened.tokenizer, opened.short_name
        self.folder, self.own = folder, own
        context = stated_context(self.model) or max(lengths)
        self.lengths = [length for length in lengths if length <= context]
        self.identity = (model_hash(self.model), dtype_name(self.model))
        self.calibrations: dict[tuple[int, int, bool], Calibration] = {}
        self.texts = [tokens_of(self.tokenizer, text) for text in packaged_documents().values()]

    def documents(self, number: int, length: int) -> list[Ids]:
        """The documents of a set."""
        count = max(1, TOKENS // length)
        if not self.own:
            return cut(self.tokenizer, self.texts[number % SETS], length, count)
        cell = SampleCell(*self.identity, count, length, number % SETS)
        (found,) = run_cells(self.folder / "cells", [cell], self.sample, "samples")
        return [tuple(row) for row in found["ids"].tolist()]

    def sample(self, cell: SampleCell) -> dict[str, Tensor]:
        return {"ids": sample(self.model, self.tokenizer, cell.number, cell.tokens, cell.seed)}

    def calibration(self, number: int, length: int, in_order: bool = True) -> Calibration:
        key = (number, length, in_order)
        if key not in self.calibrations:
            self.calibrations[key] = calibrate(self.model, self._calibrated_on(*key), self.folder)
        return self.calibrations[key]

    def _calibrated_on(self, number: int, length: int, in_order: bool) -> list[Ids]:
        first, documents = len(opening(self.tokenizer)), self.documents(number, length)
        return documents if in_order else [shuffled_text(one, first, number) for one in documents]

    def plans(self, trial: Trial) -> dict[tuple[str, int], Kept]:
        """By criterion and share of planes; baselines and controls only where calibration and test have one length."""
        found = self.calibration(trial.number, trial.calibrated)
        matched = trial.calibrated == trial.length
        kept: dict[tuple[str, int], Kept] = {}
        for share in SHARES:
            keep = found.effect.shape[-1] // share
            kept["plan", share] = most_needed(found.effect, keep, "model")
            kept["plan per head", share] = most_needed(found.effect, keep, "head")
            kept["norm", share] = baseline("norm", found.norm, keep)
            if matched:
                kept |= {(name, share): baseline(name, found.norm, keep, trial.number) for name in FIXED}
                kept["shuffled heads", share] = most_needed(shuffled(found.effect, trial.number), keep, "model")
                control = self.calibration(trial.number, trial.calibrated, in_order=False)
                kept["shuffled text", share] = most_needed(control.effect, keep, "model")
        return kept

    def material(self, trial: Trial) -> Material:
        if trial.kind == "text":
            return Material(documents=torch.tensor(self.documents(trial.number + 1, trial.length)))
        return tasks(self.tokenizer, trial.length, max(1, TOKENS // trial.length), trial.number)

    def ready(self, trial: Trial) -> bool:
        """Whether the calibration of a trial was measured."""
        orders = (True, False) if trial.calibrated == trial.length else (True,)
        return all(
            cell_path(self.folder / "cells", EffectCell(*self.identity, ids)).exists()
            for in_order in orders
            for ids in self._calibrated_on(trial.number, trial.calibrated, in_order)
        )

    def run(self, trial: Trial, finished: bool = False) -> list[dict[str, Any]]:
        """The rows of a trial; none if only finished trials are wanted and this one is not."""
        if finished and not self.ready(trial):
            return []
        plans, material = self.plans(trial), self.material(trial)
        cell = TrialCell(*self.identity, material.digest, digest_of_plans([*plans.values()]))
        if finished and not cell_path(self.folder / "cells", cell).exists():
            return []
        found = self.calibration(trial.number, trial.calibrated)

        def compute(_: TrialCell) -> dict[str, Tensor]:
            return measure_plans(self.model, material, [*plans.values()], found.layers, found.groups)

        (result,) = run_cells(self.folder / "cells", [cell], compute, "trials")
        about = {"model": self.name, "documents": "own samples" if self.own else "packaged", "set": trial.number}
        about |= {"calibrated": trial.calibrated, "length": trial.length}
        return [
            about | {"criterion": criterion, "share": share, "measure": measure, "unit": unit, "value": value}
            for measure, values in result.items()
            for (criterion, share), row in zip((("none", 1), *plans), values.tolist(), strict=True)
            for unit, value in enumerate(row)
        ]


def experiment(
    model: str, folder: str | Path, *, own: bool = False, lengths: Sequence[int] = LENGTHS, finished: bool = False,
    say: Say = ignore_sentence,
) -> pd.DataFrame:  # fmt: skip
    """All trials of one model, or those that are `finished`: one row per document, sequence or prompt and measure."""
    running = Experiment(model, Path(folder), own, lengths)
    rows: list[dict[str, Any]] = []
    for trial in trials(running.lengths):
        rows += running.run(trial, finished)
        say(f"{running.name}: {trial}")
    return pd.DataFrame(rows)


def sample(model: Any, tokenizer: Any, number: int, tokens: int, seed: int) -> Tensor:
    """Documents that a model writes itself, at temperature 1, from its first token on: (number, tokens)."""
    first = torch.full((number, 1), tokenizer.bos_token_id, device=entry_device(model))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        return model.generate(
            first, attention_mask=torch.ones_like(first), min_new_tokens=tokens - 1, max_new_tokens=tokens - 1,
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=tokenizer.bos_token_id,
        ).cpu()  # fmt: skip


def summarise(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The mean of every measure by model, documents, lengths, criterion and share, with 95 % intervals over units."""
    by = ["model", "documents", "calibrated", "length", "measure", "share", "criterion"]
    found = []
    groups: Any = rows.groupby(by, sort=False)["value"]
    for key, values in groups:
        low, high = interval(resamples(len(values), seed) @ torch.tensor(values.to_numpy()))
        row = dict(zip(by, key, strict=True))
        found.append(row | {"value": values.mean(), "low": float(low), "high": float(high), "units": len(values)})
    return pd.DataFrame(found)
