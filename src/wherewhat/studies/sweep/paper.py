"""The causal half of "Decoupling Positional and Symbolic Attention": the angles that a head may use decide what it can
learn. Every published claim beside what is found over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ...errors import BadInput
from ...lab.ensemble import RECIPE
from ...lab.train import Recipe
from ...results import Progress, ignore_progress
from .sweep import FREQUENCIES, Sweep, SweepSetting, TransformerSetting, run_sweeps

SETTINGS = (
    SweepSetting("index"),
    SweepSetting("retrieval"),
    SweepSetting("induction"),
    SweepSetting("induction", second_plane=True),
    SweepSetting("induction", symbols=8),
)
# The toy models as the paper describes them, one-layer attention-only Transformers with embeddings; the sizes are ours.
TRANSFORMERS = (
    TransformerSetting("index"),
    TransformerSetting("retrieval"),
    TransformerSetting("induction"),
    TransformerSetting("induction", second_plane=True),
)
TRANSFORMER_RECIPE = replace(RECIPE, batch=128, rate=3e-3)
TRANSFORMER_INIT_STD, TRANSFORMER_SEEDS = 0.5, 3
TRAJECTORIES = {("index", 7), ("index", 13), ("retrieval", 17)}  # (setting, frequency ID) whose keys and queries stay
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class AccuracyClaim:
    """The mean accuracy over seeds is within bounds at every angle of a range."""

    words: str
    setting: SweepSetting
    angles: tuple[float, float]
    at_least: float = 0.0
    at_most: float = 1.0

    def against(self, means: Any) -> dict[str, Any]:
        """The claim beside the angle that comes closest to breaking it, or breaks it most."""
        within = means[(means["setting"] == self.setting.name) & means["angle"].between(*self.angles)]
        worst = within.nlargest(1, "accuracy") if self.at_most < 1 else within.nsmallest(1, "accuracy")
        row = worst.to_dict("records")[0]
        found = f"{row['accuracy']:.1%} at ID {row['frequency']} (angle {row['angle']:.2g})"
        return {"claim": self.words, "found": found, "holds": self.at_least <= row["accuracy"] <= self.at_most}


INDEX, RETRIEVAL, ONE_ANGLE, TWO_ANGLES, FEW_SYMBOLS = SETTINGS
CLAIMS = (
    AccuracyClaim("Index: at least 99 % from angle 0.17", INDEX, (0.17, 1.0), at_least=0.99),
    AccuracyClaim("Index: below 40 % up to angle 0.03", INDEX, (0.0, 0.03), at_most=0.4),
    AccuracyClaim("Retrieval: at least 99 % up to angle 0.03", RETRIEVAL, (0.0, 0.03), at_least=0.99),
    AccuracyClaim("Retrieval: below 40 % from angle 0.17", RETRIEVAL, (0.17, 1.0), at_most=0.4),
    AccuracyClaim("Partial induction, any single angle: at most 95 %", ONE_ANGLE, (0.0, 1.0), at_most=0.95),
    AccuracyClaim(
        "Partial induction, angles (0, 0.018 to 0.056): at least 99 %", TWO_ANGLES, (0.017, 0.06), at_least=0.99
    ),
    AccuracyClaim(
        "Partial induction with 8 symbols, any single angle: at most 95 %", FEW_SYMBOLS, (0.0, 1.0), at_most=0.95
    ),
)
# Setting, frequency ID, sign and name of the curve: heads that have half learnt a task, just too slow or too fast.
BENDS = ((INDEX, 13, 1, "a U"), (RETRIEVAL, 7, -1, "an inverse U"))


@dataclass(frozen=True)
class Decoupling(Sweep, file="decoupling.json", kind="reproduction of the decoupling paper"):
    """The sweeps of all settings, and what they say about the claims.

    `findings` has one row per claim, `curvature` one row per setting and frequency: how accuracy bends over the
    position of the answer.
    """

    findings: pd.DataFrame
    curvature: pd.DataFrame

    @property
    def sweeps(self) -> Sweep:
        """The sweeps alone."""
        return Sweep(self.members, self.training, self.positions, self.trajectories, self.epochs, self.about)


def reproduce_decoupling(
    folder: str | Path,
    seeds: Sequence[int] = range(5),
    *,
    frequencies: Sequence[int] = range(1, FREQUENCIES + 1),
    recipe: Recipe = RECIPE,
    progress: Progress = ignore_progress,
) -> Decoupling:
    """Every setting trained, or read from the folder, and compared with the claims; saved in the folder.

    >>> reproduce_decoupling("runs").findings                            # doctest: +SKIP
    """
    if missed := {frequency for _, frequency, _, _ in BENDS} - set(frequencies):
        raise BadInput(f"the claims include IDs 7 and 13; missing from the frequencies: {sorted(missed)}")
    found = run_sweeps(SETTINGS, folder, frequencies=frequencies, seeds=seeds, recipe=recipe, progress=progress)
    bent = curvature(found.positions)
    made = Decoupling(
        found.members, found.training, found.positions, _chosen(found.trajectories), found.epochs,
        found.about, findings(found.members, bent), bent,
    )  # fmt: skip
    made.save(folder)
    return made


def train_transformers(
    folder: str | Path,
    seeds: Sequence[int] = range(TRANSFORMER_SEEDS),
    *,
    frequencies: Sequence[int] = range(1, FREQUENCIES + 1),
    recipe: Recipe = TRANSFORMER_RECIPE,
    progress: Progress = ignore_progress,
) -> Sweep:
    """The attention-only Transformers on all three tasks, trained or read from the folder, and saved there.

    >>> train_transformers("runs/decoupling-toy").members                # doctest: +SKIP
    """
    made = run_sweeps(
        TRANSFORMERS, folder, frequencies=frequencies, seeds=seeds, recipe=recipe, init_std=TRANSFORMER_INIT_STD,
        seeds_apart=True, progress=progress,
    )  # fmt: skip
    made = replace(made, trajectories=_chosen(made.trajectories))
    made.save(folder)
    return made


def _chosen(trajectories: Any) -> pd.DataFrame:
    """Those of the settings and frequencies that figures show, of the first seed."""
    pairs = zip(trajectories["task"], trajectories["frequency"], strict=True)
    return trajectories[[pair in TRAJECTORIES for pair in pairs]].reset_index(drop=True)


def curvature(positions: pd.DataFrame) -> pd.DataFrame:
    """How accuracy bends over the position of the answer, one row per setting and frequency.

    `bend` is the quadratic term of a least-squares parabola over positions scaled to -1 to 1, averaged over seeds,
    `error` its standard error, and `p` the p-value of a two-sided t-test over seeds that it is 0.

    >>> accuracy = [1.0, 0.1, 1.0, 0.9, 0.0, 0.7]
    >>> places = pd.DataFrame({"place": [1, 2, 3] * 2, "seed": [0] * 3 + [1] * 3, "accuracy": accuracy})
    >>> curvature(places.assign(setting="index", frequency=13)).round(2).to_dict("records")
    [{'setting': 'index', 'frequency': 13, 'bend': 0.85, 'error': 0.05, 'p': 0.04}]
    """
    wide: Any = positions.pivot(index=["setting", "frequency", "seed"], columns="place", values="accuracy")
    x = np.linspace(-1, 1, wide.shape[1])
    bends = pd.Series(np.polynomial.polynomial.polyfit(x, wide.to_numpy().T, 2)[2].round(12), wide.index)
    over_seeds = bends.groupby(["setting", "frequency"], sort=False)
    table = pd.DataFrame({"bend": over_seeds.mean(), "error": over_seeds.sem()})
    t = table["bend"].abs() / table["error"]
    return table.assign(p=2 * stats.t.sf(t, over_seeds.size() - 1)).reset_index()


def findings(members: pd.DataFrame, bent: pd.DataFrame) -> pd.DataFrame:
    """Every claim, what is found, and whether the claim holds."""
    means: Any = members.groupby(["setting", "frequency"], as_index=False)[["accuracy", "angle"]].mean()
    rows = [claim.against(means) for claim in CLAIMS]
    for setting, frequency, sign, shape in BENDS:
        half = means[(means["setting"] == setting.name) & means["accuracy"].between(0.3, 0.95)]
        bends: Any = bent.assign(as_claimed=bent["bend"] * sign > 0)[bent["setting"] == setting.name]
        row = bends[bends["frequency"] == frequency].to_dict("records")[0]
        alike = bends[bends["frequency"].isin(half["frequency"]) & bends["as_claimed"] & (bends["p"] < SIGNIFICANT)]
        found = f"bend {row['bend']:+.2f} ± {row['error']:.2f}, p = {row['p']:.0e}"
        found += f"; the same at {len(alike)} of {len(half)} IDs with 30 to 95 % accuracy"
        words = f"{setting.name.capitalize()} at ID {frequency}: accuracy by position of the answer is {shape}"
        rows.append({"claim": words, "found": found, "holds": row["as_claimed"] and row["p"] < SIGNIFICANT})
    return pd.DataFrame(rows)
