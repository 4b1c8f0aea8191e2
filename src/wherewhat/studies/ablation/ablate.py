"""Ablate heads and frequencies, and compare the effect of each ablation with that of random ones of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
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
from ...tracing import capture
from ...tracing.gate import gate, mean_outputs
from ...tracing.load import AnyModel, Loading, is_lab_model, open_model
from ..profile.profile import profile as measure_profile
from ..profile.result import Profile
from ..stats import interval, resamples
from .measures import MEASURES, PERIOD, Behaviour, Questions, behaviour_of, check_sizes
from .selections import HeadSpec, check_profile, hash_of, head_set_of, named, select, select_heads
from .streaming import SHARES, Streaming, read_stream
from .trials import DRAWS, FRACTIONS, Trial, Trials

VERSION = 3
ABLATIONS = ("zero", "mean")
SAYS = "says"  # in a cell: the tokens of the answers, beside the measures
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
    asked: bool = True
    version: int = VERSION


NEEDS = {"about": {"ablation": str, "weights": str}, "effects": ["what", "how", "measure", "before", "after", "change"]}


@dataclass(frozen=True)
class Ablation(Result, file="ablation.json", kind="ablation", remedy="rerun the wherewhat ablate command", needs=NEEDS):
    """The effect of each ablation on each measure.

    `effects` has one row per trial and measure: the value before and after, the change with its interval, the mean
    change of the random controls, and the difference from them with its interval; `counts` is true if that interval
    excludes 0. `layer` and `head` are set where a single head was ablated; `control_of` names what a random draw is
    compared with.

    `trials` lists what was `chosen` in every trial, random draws included, as `heads` and the other choices are given.
    `answers` has what the model answers to some prompts, `before` and `after`.
    """

    effects: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)
    trials: pd.DataFrame | None = None
    answers: pd.DataFrame | None = None


def ablate(
    model: AnyModel,
    *,
    profile: Profile | str | Path | None = None,
    folder: str | Path | None = None,
    pairs: int = 8,
    samples: int | None = None,
    text: str | Path | None = None,
    stretch: int | None = None,
    fraction: Sequence[float] | None = None,
    draws: int = DRAWS,
    ablation: str = "mean",
    each_head: bool = False,
    heads: Words | None = None,
    drop: Words | None = None,
    keep: Words | None = None,
    freeze: Words | None = None,
    stream: Words | None = None,
    sink: int | None = None,
    recent: int | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Ablation:
    """Effect of ablating heads and frequencies of a model, compared with random ablations of the same size.

    `model` is a model, or whatever `ww.load` takes. `heads` are one or several sets of heads: "16.3, 16.7",
    "@heads.txt", "10 most retrieving heads", "retrieving heads with on_blocks above 0.2". Each set is compared with as
    many other heads drawn at random within the same layers. `drop`, `keep` and `freeze` choose frequencies: "3.1.5"
    (frequency 5 of head 1 of layer 3), "*.*.5", "fastest quarter", "slowest quarter of 10 most retrieving heads",
    "frequencies with symbolic score above .9". See `select` for all words.

    Without any of these, the most positional and the most symbolic heads are ablated, a `fraction` of all heads at a
    time (0.05, 0.1, 0.2 and 0.4), and four bands of frequencies are dropped, frozen, and each kept alone. That, and
    words that speak of scores, need the `profile` of the model or the folder of one; models of the lab ("number",
    "letter" or the folder of a training run) are profiled where needed. `each_head` adds every head by itself.

    `stream` lets heads see the first `sink` (4) and the last `recent` (64) tokens only, as with a bounded key-value
    cache. It names heads, the folder of a pattern (`ww.export`), or a criterion that decides which key heads keep full
    attention: "need" (the score of `ww.export(to="duo")`, from the profile), "distant" (attention beyond the window) or
    "echo" (echo and induction heads, as in RazorAttention); "all" names the three. A `fraction` of the key heads
    streams (0.25, 0.5 and 0.75), compared with as many in each layer drawn at random. Random tokens then repeat after
    `recent` + 32 tokens, and stretches of text have 4 x `recent` tokens, if the model takes as many.

    An ablated head outputs its "mean" over other text (models of the lab: over the same sequences), or "zero"
    (`ablation`). Each trial has as many random controls as there are `draws`.

    Language models are measured on `samples` (32) prompts each of binding (with `pairs` statements), induction and
    copying, and on a .txt file (`text`; a story by default) in stretches of `stretch` tokens (128); models of the lab
    on `samples` (200) sequences of their task. With a `folder`, the result is saved there, and an interrupted run
    resumes.

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
    if lab and (text is not None or stretch is not None):
        raise BadInput("text does not apply: a model of the lab is measured on sequences of its task")
    given = Profile.load(profile) if isinstance(profile, (str, Path)) else profile
    if lab and stream:
        raise BadInput("stream does not apply: heads of a model of the lab cannot stream")
    streams = read_stream([stream] if isinstance(stream, str) else stream, given, sink, recent) if stream else None
    if streams is None and (sink is not None or recent is not None):
        raise BadInput("sink and recent are the window of heads that stream: name these with --stream")
    chosen = {
        how: [words] if isinstance(words, str) else list(words or ())
        for how, words in (("ablate", heads), ("drop", drop), ("keep", keep), ("freeze", freeze))
    }
    battery = not any(chosen.values()) and streams is None
    if given is None and not lab:  # before the model is loaded
        if battery:
            name = model if isinstance(model, (str, Path)) else "MODEL"
            raise BadInput(
                f"a profile is needed: give the folder that `wherewhat profile {name}` saved (--profile FOLDER), or "
                "heads by number (--heads '3.1, 3.2')"
            )
        _select(chosen, None)
    written = None if text is None else read_text(text)
    if folder is not None:
        check_writable(Path(folder))
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    samples = samples or (200 if lab else 32)
    behaviour = behaviour_of(
        opened, pairs, samples, written, seed, stretch or (streams and streams.stretch(opened.model)),
        PERIOD if streams is None else streams.period,
    )  # fmt: skip
    if lab and given is None:
        given = measure_profile(opened.model, multihop(opened.task or "", 32, seed), seed=seed)
    weights = hash_of(opened.model) if given is None else check_profile(given, opened.model)
    for words in (one for several in chosen.values() for one in several):
        if (named_set := head_set_of(words)) is not None:
            named_set.check(weights)
    makes = _trials(opened.model, behaviour, given)
    flow = None if streams is None else Streaming(opened.model, streams, given, behaviour.reference, weights)
    trials = [
        makes.head_set(words, picked) if how == "ablate" else makes.trial(words, how, picked)
        for how, words, picked in _select(chosen, given)
    ]
    trials = makes.battery(fraction or FRACTIONS) if battery else trials
    trials += [] if flow is None else flow.trials(fraction or SHARES, opened.tokenizer, draws, seed)
    if each_head:
        trials += makes.each_head()
    settings: dict[str, Any] = {"samples": samples, "each_head": each_head}
    settings["fraction"] = list(fraction or FRACTIONS) if battery else None
    if streams is not None:
        settings |= {"fraction": list(fraction or SHARES), "stream": list(streams.names)}
        settings |= {"sink": streams.sink, "recent": streams.recent}
    settings |= {} if lab else {"pairs": pairs, "text": None if text is None else str(text), "stretch": stretch}
    about = {
        "model": opened.short_name,
        "revision": loading.get("revision"),
        "profile": str(profile) if isinstance(profile, (str, Path)) else None,
        "draws": draws,
        "settings": settings | {"heads": chosen.pop("ablate")} | chosen,
        "versions": versions("transformers"),
    }
    found = run_ablation(
        opened.model, behaviour, [*trials, *makes.controls(trials, draws, seed)], weights=weights, ablation=ablation,
        seed=seed, folder=folder, about=about, window=None if streams is None else (streams.sink, streams.recent),
        progress=progress, say=say,
    )  # fmt: skip
    found.about["warnings"] += [] if flow is None else flow.warnings(behaviour.longest)
    if folder is not None:
        found.save(folder)
    return found


def _select(chosen: dict[str, list[str]], given: Profile | None) -> list[tuple[str, str, list[HeadSpec]]]:
    """How, in which words, and what: every choice of heads and frequencies."""
    return [
        (how, words, (select_heads if how == "ablate" else select)(words, given))
        for how, several in chosen.items()
        for words in several
    ]


def _trials(model: Any, behaviour: Behaviour, given: Profile | None) -> Trials:
    """Makes trials from a profile or, without one, from the heads that a short capture finds."""
    if given is not None:
        return Trials(given.heads, max(given.frequencies["frequency"], default=0))
    trace = capture(model, behaviour.reference[:1, :2], level="prompt")
    places = [(layer.index, head) for layer in trace.attention for head in range(layer.queries.shape[1])]
    return Trials(pd.DataFrame(places, columns=["layer", "head"]), trace.planes)


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
    window: tuple[int, int] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Ablation:
    """Measure the intact model and every trial as cells, in `folder`/cells if there is one. Nothing else is saved.

    `window` states the first and last tokens that a streaming head sees.

    >>> makes = Trials(profile.heads, planes=64)                                       # doctest: +SKIP
    >>> trials = makes.battery()                                                       # doctest: +SKIP
    >>> run_ablation(model, of_task("number"), [*trials, *makes.controls(trials)])     # doctest: +SKIP
    """
    check_ablation(ablation)
    sight = dict(zip(("sink", "recent"), window or (), strict=False))

    def gated(how: str, choices: Sequence[HeadSpec], **more: Any) -> AbstractContextManager[None]:
        return gate(model, **({} if how == "nothing" else {how: choices}), **(sight if how == "stream" else {}), **more)

    for trial in trials:  # choices that the model does not have are refused before anything is measured
        with gated(trial.how, trial.choices):
            pass
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    cell = partial(AblationCell, weights, dtype, behaviour.name)
    questions = behaviour.questions
    asked = questions is not None and any(one.asked for one in trials)
    cells = [cell("nothing", (), None, asked)]
    ways = {"ablate": ablation, "stream": str(sight)}
    cells += [cell(one.how, one.choices, ways.get(one.how), asked and one.asked) for one in trials]
    keep = None if folder is None else Path(folder) / "cells"
    if before := kept(keep, cells):
        say(f"Resuming: {before} of {len(cells)} ablations were measured before")

    means: list[Any] = []  # computed once, when the first cell needs them

    def compute(cell: AblationCell) -> dict[str, Tensor]:
        if cell.ablation == "mean" and not means:
            means.append(mean_outputs(model, behaviour.reference))
        with gated(cell.how, cell.choices, mean_of=means[0] if cell.ablation == "mean" else None):
            says = {SAYS: questions.ask(model)} if cell.asked and questions is not None else {}
            return behaviour.measure(model) | says

    results = []
    for result in run_cells(keep, cells, compute, "ablations"):
        results.append(result)
        progress("ablations", len(results), len(cells))
    effects = effect_table(results[0], trials, results[1:], seed)
    about = {"ablation": ablation, "seed": seed, "dtype": dtype, "weights": weights} | (about or {})
    about["warnings"] = baseline_warnings(effects)
    answers = None if questions is None or not asked else answer_table(questions, trials, results)
    return Ablation(effects, about, trial_table(trials), answers)


def baseline_warnings(effects: pd.DataFrame) -> list[str]:
    """One sentence for every measure that is 0 before anything is ablated, so that no ablation can lower it."""
    return [
        f"{MEASURES[str(measure)][0]} ({measure}) is 0 for the intact model: no ablation can lower it"
        for measure, rows in effects.groupby("measure", sort=False)
        if MEASURES[str(measure)][1] and not rows["before"].iloc[0]
    ]


def trial_table(trials: Sequence[Trial]) -> pd.DataFrame:
    """What was chosen in every trial; random draws name what they are the control of."""
    rows = [
        {"what": one.what, "how": one.how, "draw": one.draw, "control_of": control_of}
        | {"number": one.number, "fraction": one.fraction, "chosen": named(one.choices)}
        for one, control_of in zip(trials, compared_with(trials), strict=True)
    ]
    return pd.DataFrame(rows)


def answer_table(questions: Questions, trials: Sequence[Trial], results: Sequence[dict[str, Tensor]]) -> pd.DataFrame:
    """What the intact model and the model of every trial answer to the same prompts."""
    plain, *others = (
        [] if SAYS not in one else [questions.decode(row) for row in one[SAYS].tolist()] for one in results
    )
    return pd.DataFrame(
        [
            {"what": trial.what, "how": trial.how, "draw": trial.draw, "control_of": control_of}
            | {"prompt": number, "text": prompt.text, "right": prompt.says, "before": before, "after": after}
            for trial, control_of, says in zip(trials, compared_with(trials), others, strict=True)
            for number, (prompt, before, after) in enumerate(zip(questions.prompts, plain, says, strict=False))
        ]
    )


def compared_with(trials: Sequence[Trial]) -> list[str | None]:
    """For every trial that is a random draw, what it is the control of."""
    names: dict[str, dict[str, None]] = {}
    for one in trials:
        if one.draw is None:
            names.setdefault(one.kind, {})[one.what] = None
    return [None if one.draw is None else ", ".join(names.get(one.kind, ())) for one in trials]


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
        if measure == SAYS:
            continue
        weight = resamples(len(before), seed)
        changes = torch.stack([result[measure] for result in results]).double() - before.double()  # trial unit
        drawn: dict[str, list[int]] = {}
        for at, trial in enumerate(trials):
            if trial.draw is not None:
                drawn.setdefault(trial.kind, []).append(at)
        controls = {kind: Control(changes[like], weight, seed) for kind, like in drawn.items()}
        for trial, change, control_of in zip(trials, changes, compared_with(trials), strict=True):
            layer, head = trial.alone or (None, None)
            row: dict[str, Any] = {"what": trial.what, "how": trial.how, "number": trial.number}
            row |= {"layer": layer, "head": head, "fraction": trial.fraction, "draw": trial.draw}
            row |= {"control_of": control_of}
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
