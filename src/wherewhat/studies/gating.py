"""Turn heads and frequencies off and see what breaks: every effect beside that of as many chosen at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..capture.gate import gate, mean_outputs
from ..errors import BadInput
from ..files import write_atomically, write_table
from .behaviour import MEASURES, Behaviour
from .cells import kept, run_cells
from .selections import Choice
from .tables import interval, resamples
from .trials import Trial

VERSION = 2


@dataclass(frozen=True)
class GateCell:
    """One gate measured on one model: all that its numbers depend on."""

    weights: str
    dtype: str
    behaviour: str
    how: str
    choices: tuple[Choice, ...]
    ablation: str | None
    version: int = VERSION


@dataclass(frozen=True)
class Gating:
    """What each gate does to each measure. `effects` has a row a trial and measure: before, after, the change with its
    interval, the mean change of the controls, and the change against them with its interval; `counts` says that this
    one excludes 0. `layer` and `head` are given where a single head was turned off.
    """

    effects: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.about.get("model", "a model"))

    @staticmethod
    def load(folder: str | Path) -> Gating:
        """What `wherewhat gate` saved."""
        try:
            about = json.loads((Path(folder) / "gating.json").read_text(encoding="utf-8"))
            del about["effects"]
            effects = pd.read_parquet(Path(folder) / "effects.parquet")
            effects[["layer", "head", "draw", "measure", "before", "units", "control"]]
            return Gating(effects, about)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{folder}: no gates, or damaged; give the wherewhat gate command again") from error

    def save(self, folder: str | Path) -> None:
        write_table(Path(folder) / "effects.parquet", self.effects)
        rows = self.effects.astype(object).where(self.effects.notna(), None).to_dict("records")
        write_atomically(Path(folder) / "gating.json", json.dumps(self.about | {"effects": rows}, indent=1) + "\n")


def run_gating(
    model: Any,
    behaviour: Behaviour,
    trials: Sequence[Trial],
    *,
    weights: str = "",
    ablation: str = "mean",
    seed: int = 0,
    folder: str | Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Gating:
    """Measure the model as it is and under every gate; with a folder, what was measured before is not again.

    >>> made = Trials(profile.heads, planes=64)                                        # doctest: +SKIP
    >>> trials = made.battery()                                                        # doctest: +SKIP
    >>> run_gating(model, of_task("number"), [*trials, *made.controls(trials)])        # doctest: +SKIP
    """
    if ablation not in ("zero", "mean"):
        raise BadInput(f"ablation is zero or mean, got {ablation}")
    for trial in trials:  # what cannot be chosen is refused before anything is measured
        chosen: dict[str, Any] = {trial.how: trial.choices}
        with gate(model, **chosen):
            pass
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    cell = partial(GateCell, weights, dtype, behaviour.name)
    cells = [cell("nothing", (), None)]
    cells += [cell(one.how, one.choices, ablation if one.how == "ablate" else None) for one in trials]
    keep = None if folder is None else Path(folder) / "cells"
    if before := kept(keep, cells):
        say(f"{before} of {len(cells)} gates were measured before")

    means: list[Any] = []  # once, where a gate needs them

    def compute(cell: GateCell) -> dict[str, Tensor]:
        off: dict[str, Any] = {} if cell.how == "nothing" else {cell.how: cell.choices}
        if cell.ablation == "mean" and not means:
            means.append(mean_outputs(model, behaviour.reference))
        with gate(model, **off, mean_of=means[0] if cell.ablation == "mean" else None):
            return behaviour.measure(model)

    results = []
    for result in run_cells(keep, cells, compute, "gates"):
        results.append(result)
        progress("gates", len(results), len(cells))
    effects = effect_table(results[0], trials, results[1:], seed)
    finished = Gating(effects, {"ablation": ablation, "seed": seed, "dtype": dtype, "weights": weights} | (about or {}))
    if folder is not None:
        finished.save(folder)
    return finished


def effect_table(
    plain: dict[str, Tensor], trials: Sequence[Trial], results: Sequence[dict[str, Tensor]], seed: int
) -> pd.DataFrame:
    """A row a trial and measure. Intervals are over prompts, the same in all runs, and over draws of the control."""
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
    return pd.DataFrame(rows)


class Control:
    """What as many at random do. The units of a gate and of its controls are the same, so they are drawn together."""

    def __init__(self, changes: Float[Tensor, "draws units"], weight: Float[Tensor, "R units"], seed: int) -> None:
        drawn = resamples(len(changes), seed + 1).expand(len(weight), -1)
        self.mean, self.weight = float(changes.mean()), weight
        self.means = torch.einsum("rd,du,ru->r", drawn, changes, weight)

    def against(self, change: Float[Tensor, " units"]) -> dict[str, Any]:
        """A change minus the mean change of the controls, with its interval: units and draws are both resampled."""
        low, high = map(float, interval(self.weight @ change - self.means))
        row = {"control": self.mean, "against": float(change.mean()) - self.mean}
        return row | {"against_low": low, "against_high": high, "counts": low > 0 or high < 0}
