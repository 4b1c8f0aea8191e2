"""Published claims beside what is found, shown in the terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def show_findings(findings: pd.DataFrame, summary: str, console: Console) -> None:
    """One row per claim; `summary` names the number that is shown for it, such as "mean and range over seeds"."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("claim", f"found, {summary}", "holds"):
        table.add_column(column)
    for row in findings.to_dict("records"):
        table.add_row(row["claim"], row["found"], "yes" if row["holds"] else Text("NO", "bold red"))
    console.print(Padding(table, (0, 2, 1, 2)))
