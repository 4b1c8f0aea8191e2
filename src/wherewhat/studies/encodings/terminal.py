"""Positional encodings side by side, shown in the terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...display.terminal import show_findings
from ...words import count
from .claims import findings
from .settings import CLEAN, setting_label, variant_label
from .tables import SETTING, Encodings

COLUMNS = ("encoding", "accuracy, %", "published", "steps to 90 %", "largest drop", "effective heads")


def show_encodings(made: Encodings, console: Console) -> None:
    """One table per size, dropout and task, then the claims.

    Columns: training steps until 90 % accuracy, the largest drop of accuracy without one head, and the number of equal
    heads over which the drops would spread as much.
    """
    summary: Any = made.summary()
    for (size, dropout, task), rows in summary.groupby([*SETTING, "task"], sort=False):
        seeds = int(rows["seeds"].max())
        setting = setting_label(size, dropout)
        console.print(Text.assemble((f"{task}", "bold"), f", {setting}: {count(seeds, 'seed')}, 95 % intervals"))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in COLUMNS:
            table.add_column(column, no_wrap=True, justify="left" if column == "encoding" else "right")
        for row in rows.to_dict("records"):
            table.add_row(
                row["encoding"] + ("" if row["variant"] == CLEAN else f": {variant_label(row['variant'])}"),
                percent(row), row["published"],
                "never" if math.isnan(row["steps_to_90"]) else f"{row['steps_to_90']:.0f}",
                f"{row['largest']:.2f}", f"{row['effective']:.1f}",
            )  # fmt: skip
        console.print(Padding(table, (0, 2, 1, 2)))
    claims: Any = findings(made)
    for (size, dropout), rows in claims.groupby(SETTING, sort=False):
        console.print(Text(f"Claims, {setting_label(size, dropout)}", "bold"))
        show_findings(rows, "mean and range over seeds", console)


def percent(row: dict[str, Any]) -> str:
    """The accuracy with its interval, if there is one."""
    value, low = 100 * row["accuracy"], 100 * row["accuracy_low"]
    return f"{value:.1f}" if math.isnan(low) else f"{value:.1f} ± {value - low:.1f}"
