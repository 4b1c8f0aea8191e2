"""Ablate heads and frequencies, and compare the effect of each ablation with that of random ones of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...cells.cells import check_writable, kept, run_cells
from ...errors import BadInput
from ...lab import Transformer
from ...prompts.multihop import multihop
from ...prompts.text import read_text
from ...results import Progress, Result, Say, ignore_progress, ignore_sentence, versions
from ...tracing.gate import gate, mean_outputs
from ...tracing.load import AnyModel, Loading, is_lab_model, open_model
from ..profile.profile import profile as measure_profile
from ..profile.result import Profile
from ..stats import interval, resamples
from .measures import MEASURES, Behaviour, behaviour_of, check_sizes
from .selections import HeadSpec, check_profile, select
from .trials import DRAWS, FRACTIONS, Trial, Trials

VERSION = 2
ABLATIONS = ("zero", "mean")
Words = str | Sequence[str]  # one or several choices, as `select` reads them


@dataclass(frozen=True)
class AblationCell:
    """One gate measured on one model: everything that its numbers depend on."""

    weights: str
    dtype: str
    behaviour: str
    how: str
    choices: tuple[HeadSpec, ...]
    ablation: str | None
    version: int = VERSION


NEEDS = {"about": {"ablation": str, "weights": str}, "effects": ["what", "how", "measure", "before", "after", "change"]}


@dataclass(frozen=True)
class Ablation(Result, file="ablation.json", kind="ablation", remedy="rerun the wherewhat ablate command", needs=NEEDS):
    """The effect of each ablation on each measure.

    `effects` has one row per trial and measure: the value before and after, the change with its interval, the mean
    change of the random controls, and the difference from them with its interval; `counts` is true if that interval
    excludes 0. `layer` and `head` are set where a single head was ablated.
    """

    effects: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)


def ablate(
    model: AnyModel,
    *,
    profile: Profile | str | Path | None = None,
    folder: str | Path | None = None,
    pairs: int = 8,
    samples: int | None = None,
    text: str | Path | None = None,
    fraction: Sequence[float] | None = None,
    draws: int = DRAWS,
    ablation: str = "mean",
    each_head: bool = False,
    drop: Words | None = None,
    keep: Words | None = None,
    freeze: Words | None = None,
    ablate: Words | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Ablation:
    """Effect of ablating heads and frequencies of a model, compared with random ablations of the same size.

    `model` is a model, or whatever `ww.load` takes; `profile` is its profile or the folder of one. Models of the lab
    ("number", "letter" or the folder of a training run) need no profile.

    By default the most positional and the most symbolic heads are ablated, a `fraction` of all heads at a time (0.05,
    0.1, 0.2 and 0.4), and four bands of frequencies are dropped, frozen, and each kept alone. With `drop`, `keep`,
    `freeze` or `ablate` only these are measured: "3.1" (head 1 of layer 3), "3.1.5" (its frequency 5), "*.*.5",
    "fastest quarter", "10 most positional heads", "frequencies with symbolic score above .9". `each_head` adds every
    head by itself. An ablated head outputs its "mean" over other text (models of the lab: over the same
    sequences), or "zero" (`ablation`). Each kind of trial has as many random controls as there are `draws`.

    Language models are measured on `samples` (32) prompts each of binding (with `pairs` statements), induction and
    copying, and on a .txt file (`text`; a story by default); models of the lab on `samples` (200) sequences of their
    task. With a `folder`, the result is saved there, and an interrupted run resumes.

    >>> found = ww.ablate("number", samples=20, draws=2, drop="fastest quarter")
    >>> found.effects.query("measure == 'accuracy'")[["what", "before", "after"]].iloc[0].to_dict()
    {'what': 'fastest quarter', 'before': 1.0, 'after': 0.1}
    """
    check_ablation(ablation)
    check_sizes(pairs, samples, seed)
    if draws < 2:
        raise BadInput(f"draws must be at least 2, got {draws}")
    if fraction is not None and not all(0 < share < 1 for share in fraction):
        raise BadInput(f"a fraction is a share of the heads between 0 and 1, got {list(fraction)}")
    lab = isinstance(model, Transformer) or (isinstance(model, (str, Path)) and is_lab_model(model))
    if lab and text is not None:
        raise BadInput("text does not apply: a model of the lab is measured on sequences of its task")
    if profile is None and not lab:
        name = model if isinstance(model, (str, Path)) else "MODEL"
        raise BadInput(f"a profile is needed: give the folder that `wherewhat profile {name}` saved (--profile FOLDER)")
    given = Profile.load(profile) if isinstance(profile, (str, Path)) else profile
    written = None if text is None else read_text(text)
    if folder is not None:
        check_writable(Path(folder))
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    samples = samples or (200 if lab else 32)
    behaviour = behaviour_of(opened, pairs, samples, written, seed)
    measured = given or measure_profile(opened.model, multihop(opened.task or "", 32, seed), seed=seed)
    weights = check_profile(measured, opened.model)

    makes = Trials(measured.heads, max(measured.frequencies["frequency"], default=0))
    chosen = {
        how: [words] if isinstance(words, str) else list(words or ())
        for how, words in (("drop", drop), ("keep", keep), ("freeze", freeze), ("ablate", ablate))
    }
    trials = [makes.trial(words, how, select(words, measured)) for how, several in chosen.items() for words in several]
    trials = trials or makes.battery(fraction or FRACTIONS)
    if each_head:
        trials += makes.each_head()
    shares = None if any(chosen.values()) else list(fraction or FRACTIONS)
    settings: dict[str, Any] = {"samples": samples, "fraction": shares, "each_head": each_head}
    settings |= {} if lab else {"pairs": pairs, "text": None if text is None else str(text)}
    about = {
        "model": opened.short_name,
        "revision": loading.get("revision"),
        "profile": str(profile) if isinstance(profile, (str, Path)) else None,
        "draws": draws,
        "settings": settings | chosen,
        "versions": versions("transformers"),
    }
    found = run_ablation(
        opened.model, behaviour, [*trials, *makes.controls(trials, draws, seed)], weights=weights, ablation=ablation,
        seed=seed, folder=folder, about=about, progress=progress, say=say,
    )  # fmt: skip
    if folder is not None:
        found.save(folder)
    return found


def run_ablation(
    model: Any,
    behaviour: Behaviour,
    trials: Sequence[Trial],
    *,
    weights: str = "",
    ablation: str = "mean",
    seed: int = 0,
    folder: str | Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Ablation:
    """Measure the intact model and every trial as cells, in `folder`/cells if there is one. Nothing else is saved.

    >>> makes = Trials(profile.heads, planes=64)                                       # doctest: +SKIP
    >>> trials = makes.battery()                                                       # doctest: +SKIP
    >>> run_ablation(model, of_task("number"), [*trials, *makes.controls(trials)])     # doctest: +SKIP
    """
    check_ablation(ablation)
    for trial in trials:  # choices that the model does not have are refused before anything is measured
        selected: dict[str, Any] = {trial.how: trial.choices}
        with gate(model, **selected):
            pass
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    cell = partial(AblationCell, weights, dtype, behaviour.name)
    cells = [cell("nothing", (), None)]
    cells += [cell(one.how, one.choices, ablation if one.how == "ablate" else None) for one in trials]
    keep = None if folder is None else Path(folder) / "cells"
    if before := kept(keep, cells):
        say(f"{before} of {len(cells)} ablations were measured before")

    means: list[Any] = []  # computed once, when the first cell needs them

    def compute(cell: AblationCell) -> dict[str, Tensor]:
        off: dict[str, Any] = {} if cell.how == "nothing" else {cell.how: cell.choices}
        if cell.ablation == "mean" and not means:
            means.append(mean_outputs(model, behaviour.reference))
        with gate(model, **off, mean_of=means[0] if cell.ablation == "mean" else None):
            return behaviour.measure(model)

    results = []
    for result in run_cells(keep, cells, compute, "ablations"):
        results.append(result)
        progress("ablations", len(results), len(cells))
    effects = effect_table(results[0], trials, results[1:], seed)
    return Ablation(effects, {"ablation": ablation, "seed": seed, "dtype": dtype, "weights": weights} | (about or {}))


def check_ablation(ablation: str) -> None:
    """Refuse an unknown kind of ablation."""
    if ablation not in ABLATIONS:
        raise BadInput(f"ablation is {' or '.join(ABLATIONS)}, got {ablation}")


def effect_table(
    plain: dict[str, Tensor], trials: Sequence[Trial], results: Sequence[dict[str, Tensor]], seed: int
) -> pd.DataFrame:
    """One row per trial and measure. Intervals are over prompts, which are the same in all trials, and over the draws
    of the control."""
    rows = []
    for measure, before in plain.items():
        weight = resamples(len(before), seed)
        changes = torch.stack([result[measure] for result in results]).double() - before.double()  # trial unit
        drawn: dict[str, list[int]] = {}
        for at, trial in enumerate(trials):
            if trial.draw is not None:
                drawn.setdefault(trial.kind, []).append(at)
        controls = {kind: Control(changes[like], weight, seed) for kind, like in drawn.items()}
        for trial, change in zip(trials, changes, strict=True):
            layer, head = trial.alone or (None, None)
            row: dict[str, Any] = {"what": trial.what, "how": trial.how, "number": trial.number}
            row |= {"layer": layer, "head": head, "fraction": trial.fraction, "draw": trial.draw}
            row |= {"measure": measure, "better": MEASURES[measure][1], "units": len(before)}
            low, high = interval(weight @ change)
            row |= {"before": float(before.mean()), "after": float((before + change).mean())}
            row |= {"change": float(change.mean()), "low": float(low), "high": float(high)}
            if trial.draw is None and trial.kind in controls:
                row |= controls[trial.kind].against(change)
            rows.append(row)
    table = pd.DataFrame(rows)
    if "counts" in table:  # missing where there is nothing to compare with: None, as it is read back
        table["counts"] = table["counts"].astype(object).where(table["counts"].notna(), None)
    return table


class Control:
    """The changes under random trials. Trials and controls are measured on the same units, so these are resampled
    together."""

    def __init__(self, changes: Float[Tensor, "draws units"], weight: Float[Tensor, "R units"], seed: int) -> None:
        drawn = resamples(len(changes), seed + 1).expand(len(weight), -1)
        self.mean, self.weight = float(changes.mean()), weight
        self.means = torch.einsum("rd,du,ru->r", drawn, changes, weight)

    def against(self, change: Float[Tensor, " units"]) -> dict[str, Any]:
        """A change minus the mean change of the controls, with its interval: units and draws are both resampled."""
        low, high = map(float, interval(self.weight @ change - self.means))
        row = {"control": self.mean, "against": float(change.mean()) - self.mean}
        return row | {"against_low": low, "against_high": high, "counts": low > 0 or high < 0}
