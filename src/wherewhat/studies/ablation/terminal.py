"""Ablations and deposits in the terminal."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .ablate import Ablation
from .deposit import Deposit
from .measures import MEASURES

FEW = 5  # single heads in the table of a measure


def show_ablation(found: Ablation, console: Console) -> None:
    """One table per measure: each ablation, the change, and the difference from random controls with its interval."""
    console.print(Text.assemble((found.name, "bold"), f": {found.about['ablation']} ablation"))
    for warning in found.about.get("warnings", ()):
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning + "."))
    trials: Any = found.effects[found.effects["draw"].isna()]
    for measure, rows in trials.groupby("measure", sort=False):
        name, more = MEASURES[str(measure)]
        before = f"{rows['before'].iloc[0]:.3f} for the intact model"
        console.print(f"\n{name} ({measure}): {before}; {'higher' if more else 'lower'} is better")
        table = _table("ablation", "after", "change", "against random")
        by_itself = rows["what"].str.match("head ")
        counting = rows[by_itself & (rows["counts"] == True)]  # noqa: E712 - some are missing
        largest = counting.sort_values("against", key=abs, ascending=False, kind="stable")[:FEW]
        for row in pd.concat([rows[~by_itself], largest]).to_dict("records"):
            table.add_row(*_cells(row), style="bold" if row.get("counts") is True else None)
        console.print(Padding(table, (0, 2)))
        if by_itself.any():
            shown = f"; the {len(largest)} largest effects are shown" if len(largest) else ""
            console.print(f"  {len(counting)} of {by_itself.sum()} single heads differ from random{shown}")
    console.print(
        "\nAgainst random: the change minus the mean change of random ablations of the same size, for sets of heads "
        "within the same layers. *: its 95 % interval excludes 0."
    )
    if found.answers is not None and len(found.answers):
        _show_answers(found.answers, console)


def _show_answers(answers: pd.DataFrame, console: Console) -> None:
    """What the model answers to each prompt: intact, after every ablation, and after the first draw of its control."""
    shown: Any = answers[answers["draw"].isna() | (answers["draw"] == 0)]
    for number, rows in shown.groupby("prompt"):
        first = rows.iloc[0]
        console.print(Text.assemble((f"\nPrompt {int(number) + 1}: ", "bold"), first["text"]))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(max_width=40)
        table.add_column()
        table.add_row("right answer", first["right"])
        table.add_row("intact model", _one_line(first["before"]))
        for row in rows.to_dict("records"):
            of = f", as control of {row['control_of']}" if row["draw"] == 0 and len(set(rows["control_of"])) > 2 else ""
            table.add_row(f"{row['how']} {row['what']}{of}", _one_line(row["after"]))
        console.print(Padding(table, (0, 2)))


def _one_line(text: str) -> Text:
    return Text(" ".join(text.split()))


def _cells(row: dict[str, Any]) -> list[str]:
    size = "" if re.match(r"\d|head ", row["what"]) else f"{row['number']} "
    cells = [f"{row['how']} {size}{row['what']}", f"{row['after']:.3f}", f"{row['change']:+.3f}"]
    if (beyond := row.get("against", math.nan)) == beyond:
        ends = f"{row['against_low']:+.2f} to {row['against_high']:+.2f}"
        cells.append(f"{beyond:+.2f} ({ends}){'*' if row['counts'] else ' '}")
    return cells


def show_deposit(found: Deposit, console: Console) -> None:
    """One row per measure."""
    console.print(Text.assemble((found.name, "bold"), f": {found.about['ablation']} ablation of single heads"))
    table = _table("measure", "before", "head", "cost", "share", "effective")
    for row in found.measures.to_dict("records"):
        costliest = (
            f"{row['layer']}.{row['head']}", f"{row['largest']:.3f} ({row['low']:.3f}-{row['high']:.3f})",
            f"{row['share']:.0%}", f"{row['effective']:.1f}",
        )  # fmt: skip
        table.add_row(row["measure"], f"{row['before']:.3f}", *(costliest if row["largest"] > 0 else ("none",)))
    console.print(Padding(table, (0, 2, 1, 2)))
    console.print(
        "For each measure: its value for the intact model, the costliest head (layer.head), how much worse the measure "
        "is without that head (95 % interval over prompts), that head's share of the costs of all heads, and the "
        "effective number of heads: n if n heads had equal costs and all others none."
    )


def _table(first: str, *others: str) -> Table:
    """A table without lines whose first column holds names, wrapped if they are long, and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for column in others:
        table.add_column(column, no_wrap=True, justify="right")
    return table
