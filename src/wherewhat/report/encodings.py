"""Positional encodings side by side, as a person reads them in a terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.encoding_findings import findings
from ..studies.encoding_tables import Encodings
from ..studies.encodings import CLEAN

COLUMNS = ("encoding", "accuracy, %", "published", "to 90 %", "drop", "heads")


def show_encodings(made: Encodings, console: Console) -> None:
    """A table a task, then the claims.

    Columns: steps until 90 % are right, the drop without the head that costs most, over how many heads drops spread.
    """
    summary: Any = made.summary()
    for task, rows in summary.groupby("task", sort=False):
        seeds = rows["seeds"].max()
        console.print(Text.assemble((str(task), "bold"), f": {seeds} seed{'s' if seeds > 1 else ''}, 95 % intervals"))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in COLUMNS:
            table.add_column(column, no_wrap=True, justify="left" if column == "encoding" else "right")
        for row in rows.to_dict("records"):
            table.add_row(
                row["encoding"] if row["variant"] == CLEAN else f"{row['encoding']}: {row['variant']}",
                percent(row), row["published"],
                "never" if math.isnan(row["steps_to_90"]) else f"{row['steps_to_90']:.0f}",
                f"{row['largest']:.2f}", f"{row['effective']:.1f}",
            )  # fmt: skip
        console.print(Padding(table, (0, 2, 1, 2)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("claim", "found, mean and range of seeds", "holds"):
        table.add_column(column)
    for row in findings(made).to_dict("records"):
        table.add_row(row["claim"], row["found"], "yes" if row["holds"] else Text("NO", "bold red"))
    console.print(Padding(table, (0, 2, 1, 2)))


def percent(row: dict[str, Any]) -> str:
    """The accuracy with its interval, where there is one."""
    value, low = 100 * row["accuracy"], 100 * row["accuracy_low"]
    return f"{value:.1f}" if math.isnan(low) else f"{value:.1f} ± {value - low:.1f}"
