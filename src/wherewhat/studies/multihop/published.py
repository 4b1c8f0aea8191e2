"""What the paper on learning dynamics published, as numbers.

The curves were read from the vector drawings of its PDF, exact to about the width of a line (.002). Tables:
dynamics-scores (figure 6), dynamics-accuracy (figure 2A), discrepancy (figure 5A), frequency-use (figure 8),
mean-frequency (table 1).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

FOLDER = Path(__file__).parent / "published"


@cache
def published(name: str) -> pd.DataFrame:
    """A published table by its name.

    >>> published("mean-frequency").query("task == 'letter'")["mean_id"].tolist()
    [18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40]
    """
    return pd.read_csv(FOLDER / f"{name}.csv")


def mean_frequencies(task: str) -> list[int]:
    """The mean frequency ID of each layer; empty for a task that the paper does not have."""
    table = published("mean-frequency")
    return table.loc[table["task"] == task, "mean_id"].tolist()


def steps_to_learn(task: str, learnt: float) -> list[int]:
    """The first step, for 1, 2, ... hops, at which accuracy is at least `learnt`.

    >>> steps_to_learn("number", 0.99)
    [2150, 3000, 3800, 4250]
    """
    table: Any = published("dynamics-accuracy")
    reached = table[(table["task"] == task) & (table["hops"] != "all") & (table["accuracy"] >= learnt)]
    return reached.groupby("hops")["step"].min().tolist()
