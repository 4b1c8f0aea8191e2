"""Accuracy by length as a person reads it in a terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.lengths import PUBLISHED


def show_lengths(table: pd.DataFrame, task: str, console: Console) -> None:
    """A row a length: all sequences with their interval, each number of hops, and what was published."""
    most = max(table["hops"].tolist())
    columns = [
        "length",
        "accuracy",
        "95 %",
        *(f"{hops} hop{'s' * (hops > 1)}" for hops in range(1, most + 1)),
        "published",
    ]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    for length, rows in table.groupby("length"):
        whole, *by_hops = rows.sort_values("hops").to_dict("records")
        published = PUBLISHED[task].get(whole["length"])
        shown.add_row(
            f"{length}", f"{whole['accuracy']:.3f}", f"{whole['low']:.2f} to {whole['high']:.2f}",
            *(f"{row['accuracy']:.2f}" for row in by_hops), "" if published is None else f"{published:g}",
        )  # fmt: skip
    asked = max(table["asked"].tolist())
    console.print(Text.assemble((task, "bold"), f": accuracy by length, {asked} sequences each"))
    console.print(Padding(shown, (1, 2)))
