"""The paper on positional and symbolic attention again, its causal half: which angles a head may use decides what it
can learn. What was claimed beside what is found, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

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
FAST, SLOW = 0.17, 0.03  # angles from which on, and up to which, a pure task is learnt or not
LEARNT, FAILED = 0.99, 0.4
MIXED = 0.95  # of partial induction, which no single angle should exceed
MODERATE = (0.03, 0.08)  # second angles with which partial induction is learnt
KEPT = {("index", 7), ("index", 13), ("retrieval", 17)}  # whose keys and queries are kept over training
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class Decoupling:
    """The sweeps, a row a claim, and for every head whether accuracy sags or bulges over the place of the answer."""

    sweeps: Sweeps
    findings: pd.DataFrame
    curvature: pd.DataFrame

    def save(self, prefix: str | Path) -> None:
        self.sweeps.save(prefix)


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
    made = sweep(SETTINGS, folder, frequencies=frequencies, seeds=seeds, recipe=recipe, progress=progress)
    moving = made.trajectories
    chosen = [pair in KEPT for pair in zip(moving["setting"], moving["frequency"], strict=True)]
    made = Sweeps(made.members, made.training, made.positions, moving[chosen].reset_index(drop=True))
    bent = curvature(made.positions)
    return Decoupling(made, findings(made.members, bent), bent)


def curvature(positions: pd.DataFrame) -> pd.DataFrame:
    """How accuracy bends over the places, a row a setting and frequency: the mean over seeds of the quadratic term of
    a least-squares parabola over places from -1 to 1, and the p of a two-sided t-test over seeds that it is 0.

    >>> places = [{"setting": "s", "frequency": 1, "seed": seed, "place": place, "accuracy": (place - 2) ** 2 + seed % 2}
    ...           for seed in range(4) for place in (1, 2, 3)]
    >>> curvature(pd.DataFrame(places))[["setting", "frequency", "bend"]].to_dict("records")
    [{'setting': 's', 'frequency': 1, 'bend': 1.0}]
    """
    rows = []
    for (setting, frequency), table in positions.groupby(["setting", "frequency"]):
        by_seed = table.pivot(index="place", columns="seed", values="accuracy")
        x = np.linspace(-1, 1, len(by_seed))
        bends = np.polynomial.polynomial.polyfit(x, by_seed.to_numpy(), 2)[2].round(12)
        still = len(bends) < 2 or np.ptp(bends) == 0
        p = (0.0 if bends[0] else 1.0) if still else stats.ttest_1samp(bends, 0).pvalue
        rows.append({"setting": setting, "frequency": frequency, "bend": bends.mean(), "bends": bends.tolist(), "p": p})
    return pd.DataFrame(rows)


def findings(members: pd.DataFrame, bent: pd.DataFrame) -> pd.DataFrame:
    """What was claimed, what was found, and whether the claim holds."""
    means = members.groupby(["setting", "frequency"], as_index=False)[["accuracy", "angle"]].mean()
    index, retrieval, one, two, few = (means.query("setting == @name") for name in (s.name for s in SETTINGS))
    rows = []

    def claim(
        words: str, table: pd.DataFrame, condition: str, low: float | None = None, high: float | None = None
    ) -> None:
        seen = table.query(condition) if condition else table
        worst = seen.nsmallest(1, "accuracy") if low is not None else seen.nlargest(1, "accuracy")
        for row in worst.to_dict("records"):
            holds = row["accuracy"] >= low if low is not None else row["accuracy"] <= (high or 0)
            found = f"{row['accuracy']:.1%} at ID {row['frequency']} (angle {row['angle']:.4f})"
            rows.append({"claim": words, "found": found, "holds": bool(holds)})

    claim(f"Index: at least 99 % from angle {FAST}", index, f"angle >= {FAST}", low=LEARNT)
    claim(f"Index: below 40 % up to angle {SLOW}", index, f"angle <= {SLOW}", high=FAILED)
    claim(f"Retrieval: at least 99 % up to angle {SLOW}", retrieval, f"angle <= {SLOW}", low=LEARNT)
    claim(f"Retrieval: below 40 % from angle {FAST}", retrieval, f"angle >= {FAST}", high=FAILED)
    claim("Partial induction, one angle: at most 95 %", one, "", high=MIXED)
    claim(
        f"Partial induction, angles (0, {MODERATE[0]} to {MODERATE[1]}): at least 99 %", two,
        f"{MODERATE[0]} <= angle <= {MODERATE[1]}", low=LEARNT,
    )  # fmt: skip
    claim("Partial induction with 8 symbols, one angle: at most 95 %", few, "", high=MIXED)
    for task, sign, shape, part in (("index", 1, "a U", SLOW), ("retrieval", -1, "an inverse U", FAST)):
        # Between learnt and at chance: where the angle is just too slow, or just too fast, for the task.
        between = means.query("setting == @task and 0.3 < accuracy < 0.95")
        seen = bent.merge(between, on=["setting", "frequency"])
        as_said = seen[(np.sign(seen["bend"]) == sign) & (seen["p"] < SIGNIFICANT)]
        ids = ", ".join(map(str, as_said["frequency"])) or "none"
        rows.append({
            "claim": f"{task.capitalize()} half learnt: accuracy by place is {shape}",
            "found": f"p < {SIGNIFICANT} at {len(as_said)} of {len(seen)} IDs: {ids}",
            "holds": len(as_said) == len(seen) > 0,
        })  # fmt: skip
    return pd.DataFrame(rows)
