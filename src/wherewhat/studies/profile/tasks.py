"""The same heads on further tasks: one table of heads per task, and which heads keep their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from ...prompts import Prompt
from .roles import rests_on_little
from .summary import summarise
from .tables import Measured, head_table

SUMMARY = ("correlation", "medians", "accuracy", "sinks", "little", "warnings")


@dataclass(frozen=True)
class TaskResult:
    """The settings and prompts of a task, and what was measured on each prompt."""

    settings: dict[str, Any]
    prompts: Sequence[Prompt]
    results: Measured


def task_tables(
    heads: pd.DataFrame, others: Sequence[TaskResult], signature: dict[str, Tensor], tau: float, seed: int, dtype: str
) -> tuple[pd.DataFrame | None, list[dict[str, Any]]]:
    """The table of heads on every further task; and for each a summary, and how many heads kept their kind."""
    tables, summaries = [], []
    for other in others:
        table = head_table(other.results, signature, seed)
        numbers = summarise(other.results, other.prompts, tau, seed, dtype)
        described = {"settings": other.settings, "prompts": len(other.prompts), "kept": kept_kinds(heads, table)}
        summaries.append(described | {name: numbers[name] for name in SUMMARY})
        table.insert(0, "task", other.settings["task"])
        tables.append(table)
    return (pd.concat(tables, ignore_index=True) if tables else None), summaries


def kept_kinds(one: pd.DataFrame, other: pd.DataFrame) -> dict[str, Any]:
    """How many heads have the same kind in two tables: of all, and of those that rest on attention in both.

    `by_chance` is the share to expect if the kinds of one table were assigned to the heads of the other at random.
    """

    def kept(rows: Any) -> dict[str, Any]:
        a, b = one.loc[rows, "kind"], other.loc[rows, "kind"]
        shares = [kinds.value_counts(normalize=True) for kinds in (a, b)]
        chance = float((shares[0] * shares[1]).sum()) if len(a) else None
        moved = pd.crosstab(a, b)
        table = {str(row): {str(to): int(moved.loc[row, to]) for to in moved.columns} for row in moved.index}
        return {"same": int((a == b).sum()), "of": len(a), "by_chance": chance, "moved": table}

    rest = ~(rests_on_little(one) | rests_on_little(other))
    return {"all": kept(rest | True), "resting_on_attention": kept(rest)}
