"""The result of `ww.dynamics`: scores of every head at every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...results import Explorable

GAMMA = 0.1  # a pure head has at least 1 - gamma on one axis and at most gamma on the other
GAMMAS = (0.2, 0.1, 0.05)


NEEDS = {
    "about": {"prompts": int},
    "heads": ["step", "query", "layer", "head", "positional", "symbolic", "kind"],
    "accuracy": ["step", "hops", "accuracy"],
    "purity": ["gamma", "layer", "head", "kind", "step"],
}


@dataclass(frozen=True)
class Dynamics(Explorable, file="dynamics.json", kind="dynamics", needs=NEEDS):
    """Scores of every head at every step, accuracy by number of hops, and when each head became pure.

    `heads` has one row per step, query (0: the last token, 1: the first position hopped to, ...), layer and head.
    `about["failed"]`, if present, names the checkpoints that could not be measured, and why.

    >>> Dynamics.load("runs/number/dynamics").purity.query("gamma == 0.1")             # doctest: +SKIP
    """

    heads: pd.DataFrame
    accuracy: pd.DataFrame
    purity: pd.DataFrame
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.about.get('task', 'series')}, seed {self.about.get('seed', 0)}"
