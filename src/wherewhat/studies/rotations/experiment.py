"""The experiment behind the plans: five sets of documents, several lengths and numbers of planes, all criteria.

Each set is calibrated on one text and tested on the next one. Results are rows, one per document, sequence or question.
An interrupted experiment resumes from the table of these rows, and a wider one adds the rows that are missing; the
folder only holds calibrations and samples, which can be made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any, NamedTuple

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
from .evaluate import Material, copies, lists_that_fit, measure_plans, probabilities
from .plan import BASELINES, CONTROLS, Kept, baseline, most_needed, shuffled

LENGTHS = (256, 1024, 2048)
SHARES = (2, 4, 8)  # one half, a quarter, an eighth of the planes are kept
SETS = 5
TOKENS = 1024  # read per set, or one document if it is longer
VERSIONS = {"text": 1, "copying": 1, "binding": 2, "copies": 1}  # of trials; rows of another version are not reused
CHECKED = {
    "text": "loss",
    "copying": "copy_loss",
    "binding": "binding",
    "copies": "copy_loss",
}  # one measure each
TOLERANCE = 1e-3  # between the unmodified model here and in the table, which may come from another machine
QUESTIONS = 16  # about every list of the binding task
ANSWERED = 0.1  # plans are tested on lists whose right answers have this mean probability, or more, unmodified
DRAWS = 5  # of random planes per set, at the shortest length; at the others 1
CRITERIA = ("plan", "plan per head", "norm over the model", *BASELINES, *CONTROLS)
CRITERIA_ACROSS_LENGTHS = ("plan", "plan per head", "norm")
CRITERIA_FOR_COPIES = ("plan", "plan per head", "plan for both", "plan per head for both")


class Variant(NamedTuple):
    """A criterion, the share of planes that it keeps, and which draw it is if it is random."""

    criterion: str
    share: int
    draw: int = 0


UNMODIFIED = Variant("none", 1)


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
    """Calibrated on one set, at one length, and tested on text of the next set, on copying or on binding, at the same
    or another length. Trials of the kind "copies" are calibrated on other random tokens and their copy, and tested on
    text and copies."""

    number: int  # of the set
    calibrated: int
    length: int
    kind: str = "text"

    def __str__(self) -> str:
        return f"set {self.number}, calibrated at {self.calibrated}, {self.kind} of {self.length} tokens"


def trials(lengths: Sequence[int]) -> Iterator[Trial]:
    """In the order of importance: all kinds at every length; plans for copies at the shortest one; all kinds where
    calibration and test have the shortest and the longest length; text for all other pairs of lengths."""
    lengths = sorted(lengths)
    order = [(one, one, kind) for one, kind in product(lengths, ("text", "copying", "binding"))]
    order += [(lengths[0], lengths[0], "copies")]
    across = list(permutations(lengths, 2))
    extremes = [pair for pair in across if set(pair) == {lengths[0], lengths[-1]}]
    order += [(*pair, kind) for pair, kind in product(extremes, ("text", "copying", "binding"))]
    order += [(*pair, "text") for pair in across if pair not in extremes]
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
        if not self.lengths:
            raise BadInput(f"{self.name} takes {context} tokens, fewer than any of the lengths")
        self.identity = (model_hash(self.model), dtype_name(self.model))
        self.calibrations: dict[tuple[int, int, str], Calibration] = {}
        self.answered: dict[int, bool] = {}  # by length of the lists
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

    def variants(self, trial: Trial) -> list[Variant]:
        """What is compared in a trial: the unmodified model, and every criterion with every share of planes."""
        criteria = CRITERIA_FOR_COPIES if trial.kind == "copies" else CRITERIA
        if trial.calibrated != trial.length:
            criteria = CRITERIA_ACROSS_LENGTHS
        draws = DRAWS if trial.length == self.lengths[0] else 1
        return [UNMODIFIED] + [
            Variant(criterion, share, draw)
            for share, criterion in product(SHARES, criteria)
            for draw in range(draws if criterion == "random" else 1)
        ]

    def kept(self, trial: Trial, variant: Variant) -> Kept:
        """The planes that a criterion keeps."""
        criterion, share, draw = variant
        found = self.calibration(trial.number, trial.calibrated)
        keep = found.effect.shape[-1] // share
        if criterion in BASELINES:
            return baseline(criterion, found.norm, keep, trial.number + SETS * draw)
        if criterion == "norm over the model":
            return most_needed(found.norm, keep, "model")
        effect = found.effect
        if trial.kind == "copies":
            on_text = effect if criterion.endswith("for both") else 0
            effect = self.calibration(trial.number, trial.calibrated, "copies").effect + on_text
        elif criterion == "shuffled text":
            effect = self.calibration(trial.number, trial.calibrated, "shuffled text").effect
        elif criterion == "shuffled heads":
            effect = shuffled(effect, trial.number)
        return most_needed(effect, keep, "head" if criterion.startswith("plan per head") else "model")

    def material(self, trial: Trial) -> Material:
        """What the model reads in a trial."""
        length, count = trial.length, self.count(trial.length)
        if trial.kind == "binding":
            asked = lists_that_fit(self.tokenizer, length, count, trial.number, QUESTIONS)
            return Material(asked=asked, questions=QUESTIONS)
        repeated = None if trial.kind == "text" else self.copies(trial.number, length)
        if trial.kind == "copying":
            return Material(copies=repeated)
        return Material(torch.tensor(self.documents(trial.number + 1, length)), repeated)

    def can_answer(self, length: int) -> bool:
        """Whether the unmodified model answers lists of this length well enough to test plans on them."""
        if length not in self.answered:
            lists = [self.material(Trial(number, length, length, "binding")).asked for number in range(SETS)]
            means = [probabilities(self.model, asked, QUESTIONS).mean() if asked else 0.0 for asked in lists]
            self.answered[length] = float(sum(means)) / SETS >= ANSWERED
        return self.answered[length]

    def run(self, trial: Trial, known: pd.DataFrame | None = None) -> pd.DataFrame:
        """The rows of a trial that are not among the known ones."""
        there: Any = None if known is None else known[self.in_table(trial, known)]
        done = set() if there is None else set(zip(there["criterion"], there["share"], there["draw"], strict=True))
        missing = [variant for variant in self.variants(trial) if variant not in done]
        if missing and trial.kind == "binding" and not self.can_answer(trial.length):
            missing = [variant for variant in missing if variant == UNMODIFIED]
        if not missing:
            return pd.DataFrame()
        measured = [variant for variant in missing if variant != UNMODIFIED]
        plans, found = [self.kept(trial, one) for one in measured], self.calibration(trial.number, trial.calibrated)
        result = measure_plans(self.model, self.material(trial), plans, found)
        rows = pd.DataFrame(
            [
                self.about(trial) | variant._asdict() | {"measure": measure, "unit": unit, "value": value}
                for measure, values in result.items()
                for variant, row in zip((UNMODIFIED, *measured), values.tolist(), strict=True)
                for unit, value in enumerate(row)
            ]
        )
        if there is None or UNMODIFIED in missing:
            return rows
        check_unmodified(trial, there, rows)
        return rows.loc[rows["criterion"] != UNMODIFIED.criterion]

    def about(self, trial: Trial) -> dict[str, Any]:
        """What the rows of a trial have in common."""
        weights, dtype = self.identity
        about = {"model": self.name, "weights": weights, "dtype": dtype, "version": VERSIONS[trial.kind]}
        documents = "copies" if trial.kind == "copies" else "own samples" if self.own else "packaged"
        about |= {"documents": documents, "tokens": self.tokens, "set": trial.number}
        return about | {"calibrated": trial.calibrated, "length": trial.length}

    def in_table(self, trial: Trial, known: pd.DataFrame) -> Any:
        """Which rows of a table are those of a trial, one of its measures only."""
        rows = known["measure"] == CHECKED[trial.kind]
        for column, value in self.about(trial).items():
            rows &= known[column] == value
        return rows


def check_unmodified(trial: Trial, known: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Refuse to add rows to a table in which the unmodified model has other values."""
    before, now = (
        found[(found["criterion"] == UNMODIFIED.criterion) & (found["measure"] == CHECKED[trial.kind])]
        for found in (known, rows)
    )
    difference: Any = (now.set_index("unit")["value"] - before.set_index("unit")["value"]).abs().max(skipna=False)
    if not difference <= TOLERANCE:
        raise BadInput(
            f"{trial}: the {CHECKED[trial.kind]} of the unmodified model differs from that of the table by "
            f"{difference:.2g}; was it measured on another text? Measure into a table of its own"
        )


def experiment(
    model: str, folder: str | Path, *, own: bool = False, lengths: Sequence[int] = LENGTHS, tokens: int = TOKENS,
    known: pd.DataFrame | None = None, part: tuple[int, int] = (0, 1), say: Say = ignore_sentence,
) -> Iterator[pd.DataFrame]:  # fmt: skip
    """The rows that are not in the table of `known` ones, trial by trial: one per document, sequence or question and
    measure. Of several processes that share the work, `part` is the number of this one and how many there are."""
    running = Experiment(model, Path(folder), own, lengths, tokens)
    for trial in islice(trials(running.lengths), part[0], None, part[1]):
        if own and trial.kind == "copies":
            continue
        rows = running.run(trial, known)
        if len(rows):
            yield rows
            say(f"{running.name}: {trial}, {len(rows)} rows")


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
