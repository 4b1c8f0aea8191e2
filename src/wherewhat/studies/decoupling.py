"""The paper on positional and symbolic attention again, its causal half: which angles a head may use decides what it
can learn. What was claimed beside what is found, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ..errors import BadInput
from ..files import write_table
from ..lab.ensemble import RECIPE
from ..lab.train import Recipe
from .canonical import FREQUENCIES, Progress, Setting, Sweeps, sweep

SETTINGS = (
    Setting("index"),
    Setting("retrieval"),
    Setting("induction"),
    Setting("induction", still=True),
    Setting("induction", symbols=8),
)
KEPT = {("index", 7), ("index", 13), ("retrieval", 17)}  # whose keys and queries are kept over training
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class Claim:
    """Accuracy, a mean over seeds, at every angle of a range: at least or at most so much."""

    words: str
    setting: Setting
    angles: tuple[float, float]
    at_least: float = 0.0
    at_most: float = 1.0

    def against(self, means: Any) -> dict[str, Any]:
        """The angle that comes closest to breaking the claim, or breaks it most."""
        seen = means[(means["setting"] == self.setting.name) & means["angle"].between(*self.angles)]
        worst = seen.nlargest(1, "accuracy") if self.at_most < 1 else seen.nsmallest(1, "accuracy")
        row = worst.to_dict("records")[0]
        found = f"{row['accuracy']:.1%} at ID {row['frequency']} (angle {row['angle']:.2g})"
        return {"claim": self.words, "found": found, "holds": self.at_least <= row["accuracy"] <= self.at_most}


INDEX, RETRIEVAL, ONE_ANGLE, TWO_ANGLES, FEW_SYMBOLS = SETTINGS
CLAIMS = (
    Claim("Index: at least 99 % from angle 0.17", INDEX, (0.17, 1.0), at_least=0.99),
    Claim("Index: below 40 % up to angle 0.03", INDEX, (0.0, 0.03), at_most=0.4),
    Claim("Retrieval: at least 99 % up to angle 0.03", RETRIEVAL, (0.0, 0.03), at_least=0.99),
    Claim("Retrieval: below 40 % from angle 0.17", RETRIEVAL, (0.17, 1.0), at_most=0.4),
    Claim("Partial induction, any single angle: at most 95 %", ONE_ANGLE, (0.0, 1.0), at_most=0.95),
    Claim("Partial induction, angles (0, 0.018 to 0.056): at least 99 %", TWO_ANGLES, (0.017, 0.06), at_least=0.99),
    Claim("Partial induction with 8 symbols, any single angle: at most 95 %", FEW_SYMBOLS, (0.0, 1.0), at_most=0.95),
)
BENDS = ((INDEX, 13, 1, "a U"), (RETRIEVAL, 7, -1, "an inverse U"))  # half learnt: just too slow, just too fast


@dataclass(frozen=True)
class Decoupling:
    """The sweeps, a row a claim, and for every head whether accuracy sags or bulges over the place of the answer."""

    sweeps: Sweeps
    findings: pd.DataFrame
    curvature: pd.DataFrame

    def save(self, prefix: str | Path) -> None:
        self.sweeps.save(prefix)
        write_table(Path(f"{prefix}-findings.parquet"), self.findings)
        write_table(Path(f"{prefix}-curvature.parquet"), self.curvature)


def reproduce_decoupling(
    folder: str | Path,
    seeds: Sequence[int] = range(5),
    *,
    frequencies: Sequence[int] = range(1, FREQUENCIES + 1),
    recipe: Recipe = RECIPE,
    progress: Progress = lambda what, done, total: None,
) -> Decoupling:
    """Train every setting, or read what is in the folder, and hold it against the claims.

    >>> reproduce_decoupling("runs").findings                            # doctest: +SKIP
    """
    if missed := {13, 7} - set(frequencies):
        raise BadInput(f"the claims speak of IDs 7 and 13 among others; not among the frequencies: {sorted(missed)}")
    made = sweep(SETTINGS, folder, frequencies=frequencies, seeds=seeds, recipe=recipe, progress=progress)
    moving = made.trajectories
    chosen = [pair in KEPT for pair in zip(moving["setting"], moving["frequency"], strict=True)]
    made = Sweeps(made.members, made.training, made.positions, moving.iloc[np.flatnonzero(chosen)])
    bent = curvature(made.positions)
    return Decoupling(made, findings(made.members, bent), bent)


def curvature(positions: pd.DataFrame) -> pd.DataFrame:
    """How accuracy bends over the places, a row a setting and frequency.

    `bend` is the quadratic term of a least-squares parabola over places from -1 to 1, the mean over seeds; `p` that
    of a two-sided t-test over seeds that it is 0.

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
    """What was claimed, what was found, and whether the claim holds."""
    means: Any = members.groupby(["setting", "frequency"], as_index=False)[["accuracy", "angle"]].mean()
    rows = [claim.against(means) for claim in CLAIMS]
    for setting, frequency, sign, shape in BENDS:
        half = means[(means["setting"] == setting.name) & means["accuracy"].between(0.3, 0.95)]
        seen: Any = bent.assign(as_said=bent["bend"] * sign > 0)[bent["setting"] == setting.name]
        row = seen[seen["frequency"] == frequency].to_dict("records")[0]
        alike = seen[seen["frequency"].isin(half["frequency"]) & seen["as_said"] & (seen["p"] < SIGNIFICANT)]
        found = f"bend {row['bend']:+.2f} ± {row['error']:.2f}, p = {row['p']:.0e}"
        found += f"; so at {len(alike)} of {len(half)} IDs between 30 and 95 %"
        words = f"{setting.name.capitalize()} at ID {frequency}: accuracy by place is {shape}"
        rows.append({"claim": words, "found": found, "holds": row["as_said"] and row["p"] < SIGNIFICANT})
    return pd.DataFrame(rows)
