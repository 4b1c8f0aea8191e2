"""The experiment behind the plans: five sets of documents, several lengths and numbers of planes, all criteria.

Each set is calibrated on one text and tested on the next one. Results are rows, one per document, sequence or prompt.
An interrupted experiment resumes from the table of these rows; the folder only holds calibrations and samples, which
can be made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ...cells.cells import run_cells
from ...errors import BadInput
from ...prompts.documents import packaged_documents
from ...results import Say, ignore_sentence
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import open_model
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from ..stats import mean_interval
from .calibrate import Calibration, Ids, calibrate, cut, opening, shuffled_text, tokens_of
from .evaluate import Material, copies, measure_plans, tasks
from .plan import Kept, baseline, most_needed, shuffled

LENGTHS = (256, 1024, 2048)
SHARES = (2, 4, 8)  # one half, a quarter, an eighth of the planes are kept
SETS = 5
TOKENS = 1024  # read per set, or one document if it is longer
VERSION = 1  # of the trials; rows of another version are not reused
FIXED = ("highest", "uniform", "random")


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
    """Calibrated on one set at one length, tested on the next set: text, or copying and binding. Trials of the kind
    "copies" are calibrated on other random tokens and their copy, and tested on both."""

    number: int  # of the set
    calibrated: int
    length: int
    kind: str = "text"

    def __str__(self) -> str:
        return f"set {self.number}, calibrated at {self.calibrated}, {self.kind} of {self.length} tokens"


def trials(lengths: Sequence[int]) -> Iterator[Trial]:
    """Text at every length, text across the shortest and the longest, tasks at every length, plans for copies."""
    shortest, *longer = sorted(lengths)
    order = [(shortest, shortest, "text"), (shortest, shortest, "tasks")]
    order += [(length, length, "text") for length in longer]
    order += [(one, other, "text") for one, other in ((shortest, longer[-1]), (longer[-1], shortest))] if longer else []
    order += [(length, length, "tasks") for length in longer]
    order += [(shortest, shortest, "copies")]
    yield from (Trial(number, *which) for which in order for number in range(SETS))


class Experiment:
    """One model on the packaged documents, or on samples that it wrote itself."""

    def __init__(
        self, model: str, folder: Path, own: bool = False, lengths: Sequence[int] = LENGTHS, tokens: int = TOKENS
    ) -> None:
        opened = open_model(model)
        self.model, self.tokenizer, self.name = opened.model, opened.tokenizer, opened.short_name
        self.folder, self.own, self.tokens = folder, own, tokens
        context = stated_context(self.model) or max(lengths)
        self.lengths = sorted(length for length in lengths if length <= context)
        self.identity = (model_hash(self.model), dtype_name(self.model))
        self.calibrations: dict[tuple[int, int, str], Calibration] = {}
        self.texts = [tokens_of(self.tokenizer, text) for text in packaged_documents().values()]

    def count(self, length: int) -> int:
        """How many documents or sequences of this length a set has."""
        return max(1, self.tokens // length)

    def documents(self, number: int, length: int) -> list[Ids]:
        """The documents of a set."""
        count = self.count(length)
        if not self.own:
            return cut(self.tokenizer, self.texts[number % SETS], length, count)
        cell = SampleCell(*self.identity, count, length, number % SETS)
        (found,) = run_cells(self.folder / "cells", [cell], self.sample, "samples")
        return [tuple(row) for row in found["ids"].tolist()]

    def sample(self, cell: SampleCell) -> dict[str, Tensor]:
        return {"ids": sample(self.model, self.tokenizer, cell.number, cell.tokens, cell.seed)}

    def calibration(self, number: int, length: int, on: str = "text") -> Calibration:
        """On text, on shuffled text, or on copies."""
        key = (number, length, on)
        if key not in self.calibrations:
            self.calibrations[key] = calibrate(self.model, self._calibrated_on(*key), self.folder)
        return self.calibrations[key]

    def _calibrated_on(self, number: int, length: int, on: str) -> list[Ids]:
        if on == "copies":
            return [tuple(row) for row in self.copies(SETS + number, length).tolist()]
        first, documents = len(opening(self.tokenizer)), self.documents(number, length)
        return documents if on == "text" else [shuffled_text(one, first, number) for one in documents]

    def copies(self, seed: int, length: int) -> Tensor:
        return copies(self.tokenizer, length, self.count(length), seed)

    def plans(self, trial: Trial) -> dict[tuple[str, int], Kept]:
        """By criterion and share of planes: fewer criteria at longer lengths and on tasks, where they cost more, and
        three of them across lengths."""
        if trial.kind == "copies":
            return self.plans_for_copies(trial)
        found = self.calibration(trial.number, trial.calibrated)
        matched, shortest = trial.calibrated == trial.length, trial.length == self.lengths[0]
        text = trial.kind == "text"
        kept: dict[tuple[str, int], Kept] = {}
        for share in SHARES:
            keep = found.effect.shape[-1] // share
            kept["plan", share] = most_needed(found.effect, keep, "model")
            kept["plan per head", share] = most_needed(found.effect, keep, "head")
            kept["norm", share] = baseline("norm", found.norm, keep)
            if matched:
                fixed = FIXED if text or shortest else ("highest",)
                kept |= {(name, share): baseline(name, found.norm, keep, trial.number) for name in fixed}
            if matched and text:
                kept["norm over the model", share] = most_needed(found.norm, keep, "model")
            if matched and text and shortest:
                kept["lowest", share] = baseline("lowest", found.norm, keep)
                kept["shuffled heads", share] = most_needed(shuffled(found.effect, trial.number), keep, "model")
                control = self.calibration(trial.number, trial.calibrated, "shuffled text")
                kept["shuffled text", share] = most_needed(control.effect, keep, "model")
        return kept

    def plans_for_copies(self, trial: Trial) -> dict[tuple[str, int], Kept]:
        """By their effect on copies alone, and on copies and text together."""
        on = self.calibration(trial.number, trial.calibrated, "copies").effect
        both = on + self.calibration(trial.number, trial.calibrated).effect
        return {
            (name + suffix, share): most_needed(effect, effect.shape[-1] // share, budget)
            for share in SHARES
            for suffix, effect in (("", on), (" for both", both))
            for name, budget in (("plan", "model"), ("plan per head", "head"))
        }

    def material(self, trial: Trial) -> Material:
        """Longer lists cost as much as text and have one question each: binding is asked at the shortest length."""
        if trial.kind == "tasks":
            found = tasks(self.tokenizer, trial.length, self.count(trial.length), trial.number)
            return found if trial.length == self.lengths[0] else replace(found, asked=())
        documents = torch.tensor(self.documents(trial.number + 1, trial.length))
        return Material(documents, self.copies(trial.number, trial.length) if trial.kind == "copies" else None)

    def run(self, trial: Trial) -> pd.DataFrame:
        """The rows of a trial."""
        plans, found = self.plans(trial), self.calibration(trial.number, trial.calibrated)
        result = measure_plans(self.model, self.material(trial), [*plans.values()], found)
        return pd.DataFrame(
            [
                self.about(trial)
                | {"criterion": criterion, "share": share, "measure": measure, "unit": unit, "value": value}
                for measure, values in result.items()
                for (criterion, share), row in zip((("none", 1), *plans), values.tolist(), strict=True)
                for unit, value in enumerate(row)
            ]
        )

    def about(self, trial: Trial) -> dict[str, Any]:
        """What the rows of a trial have in common."""
        weights, dtype = self.identity
        about = {"model": self.name, "weights": weights, "dtype": dtype, "version": VERSION}
        documents = "copies" if trial.kind == "copies" else "own samples" if self.own else "packaged"
        about |= {"documents": documents, "tokens": self.tokens, "set": trial.number}
        return about | {"calibrated": trial.calibrated, "length": trial.length}

    def in_table(self, trial: Trial, known: pd.DataFrame) -> bool:
        """Whether a table has the rows of a trial."""
        rows = known["measure"] == ("kl" if trial.kind == "text" else "copy_loss")
        for column, value in self.about(trial).items():
            rows &= known[column] == value
        return bool(rows.any())


def experiment(
    model: str, folder: str | Path, *, own: bool = False, lengths: Sequence[int] = LENGTHS,
    tokens: int = TOKENS, known: pd.DataFrame | None = None, say: Say = ignore_sentence,
) -> Iterator[pd.DataFrame]:  # fmt: skip
    """Every trial of one model that is not in the table of `known` rows: one row per document, sequence or prompt and
    measure."""
    running = Experiment(model, Path(folder), own, lengths, tokens)
    for trial in trials(running.lengths):
        if own and trial.kind == "copies":
            continue
        if known is None or not running.in_table(trial, known):
            yield running.run(trial)
            say(f"{running.name}: {trial}")


def sample(model: Any, tokenizer: Any, number: int, tokens: int, seed: int) -> Tensor:
    """Documents that a model writes itself, at temperature 1, from its first token on, none of which ends early:
    (number, tokens)."""
    if tokenizer.bos_token_id is None:
        raise BadInput("samples start with the first token of a text, and this tokenizer has none")
    first = torch.full((number, 1), tokenizer.bos_token_id, device=entry_device(model))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        return model.generate(
            first, attention_mask=torch.ones_like(first), min_new_tokens=tokens - 1, max_new_tokens=tokens - 1,
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0,
            pad_token_id=tokenizer.bos_token_id,
        ).cpu()  # fmt: skip


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean of every measure by model, documents, lengths, criterion and share.

    The documents of a set come from one text and share one plan, so they are averaged first; the 95 % interval is
    Student's t over sets, NaN for one set.
    """
    by = ["model", "documents", "calibrated", "length", "measure", "share", "criterion"]
    sets: Any = rows.groupby([*by, "set"], sort=False)["value"].mean()
    found = []
    for key, values in sets.groupby(by, sort=False):
        value, low, high = mean_interval(values)
        found.append(dict(zip(by, key, strict=True)) | {"value": value, "low": low, "high": high, "sets": len(values)})
    return pd.DataFrame(found)
