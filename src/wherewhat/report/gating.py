"""What breaks without some heads or frequencies: a table for the terminal, and a figure."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.behaviour import MEASURES
from ..studies.gating import Gating
from ..studies.trials import RANDOM
from .figures import NEITHER, WHAT, WHERE, new_figure, save_drawn

FEW = 5  # single heads in the table of a measure
LINES = {"positional heads": (WHERE, "o"), "symbolic heads": (WHAT, "s"), RANDOM: (NEITHER, "x")}


def show_gating(made: Gating, console: Console) -> None:
    """A table a measure: each gate, the change with its interval, and the change against as many at random."""
    console.print(Text.assemble((made.name, "bold"), f": {made.about['ablation']} ablation"))
    trials: Any = made.effects[made.effects["draw"].isna()]
    for measure, rows in trials.groupby("measure", sort=False):
        name, more = MEASURES[str(measure)]
        before = f"{rows['before'].iloc[0]:.3f} with nothing turned off"
        console.print(f"\n{name} ({measure}): {before}; {'more' if more else 'less'} is better")
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("turned off", "after", "change", "against random"):
            table.add_column(column, no_wrap=True, justify="left" if column == "turned off" else "right")
        by_itself = rows["what"].str.match("head ")
        counting = rows[by_itself & (rows["counts"] == True)]  # noqa: E712 - some are missing
        largest = counting.sort_values("against", key=abs, ascending=False, kind="stable")[:FEW]
        for row in pd.concat([rows[~by_itself], largest]).to_dict("records"):
            table.add_row(*_cells(row), style="bold" if row.get("counts") is True else None)
        console.print(Padding(table, (0, 2)))
        if by_itself.any():
            console.print(
                f"  {len(counting)} of {by_itself.sum()} heads by themselves count; shown: the {len(largest)} most"
            )
    console.print(
        "\nAgainst random: the change minus that of as many chosen at random; *: its 95 % interval excludes 0."
    )


def _cells(row: dict[str, Any]) -> list[str]:
    much = "" if re.match(r"\d|head ", row["what"]) else f"{row['number']} "
    told = [f"{row['how']} {much}{row['what']}", f"{row['after']:.3f}", f"{row['change']:+.3f}"]
    if (beyond := row.get("against", math.nan)) == beyond:
        ends = f"{row['against_low']:+.2f} to {row['against_high']:+.2f}"
        told.append(f"{beyond:+.2f} ({ends}){'*' if row['counts'] else ' '}")
    return told


def draw_gating(made: Gating) -> Figure:
    """Each measure against the share of heads turned off: positional first, symbolic first, and at random."""
    heads: Any = made.effects.query("how == 'ablate'")
    measures = list(heads["measure"].unique())
    columns = min(3, len(measures))
    lines = -(-len(measures) // columns)
    figure = new_figure(2.9 * columns, 2.5 * lines)
    for place, (measure, rows) in enumerate(heads.groupby("measure", sort=False)):
        axes = figure.add_subplot(lines, columns, place + 1)
        before = rows["before"].iloc[0]
        for what, (colour, mark) in LINES.items():
            part = rows[rows["what"] == what].groupby("fraction")[["after", "low", "high"]].mean()
            across, up = [0, *part.index], [before, *part["after"]]
            axes.plot(across, up, color=colour, marker=mark, ms=3, lw=1.3, label=what)
            if what == RANDOM:
                drawn = rows[rows["what"] == RANDOM]
                axes.scatter(drawn["fraction"], drawn["after"], s=4, color=colour)
            else:
                low, high = ([before, *(before + part[end])] for end in ("low", "high"))
                axes.fill_between(across, low, high, color=colour, alpha=0.15, lw=0)
        axes.set(title=MEASURES[str(measure)][0])
        if str(measure).endswith(("accuracy", "probability")):
            axes.set_ylim(bottom=-0.02 * before)  # the interval is that of the change; no share is below none
        if place >= len(measures) - columns:
            axes.set_xlabel("share of heads turned off")
    figure.axes[0].legend(frameon=False, fontsize=6.5)
    figure.suptitle(made.name, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def save_gating_figure(made: Gating, path: str | Path) -> None:
    """Where heads were turned off, the figure of it as .png, .pdf or .svg."""
    if "ablate" in set(made.effects["how"]):
        save_drawn(path, lambda: draw_gating(made))
