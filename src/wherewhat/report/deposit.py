"""How unevenly a loss is spread over heads, as a person reads it in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..studies.model_deposit import ModelDeposit

COLUMNS = ("measure", "before", "head", "its cost", "share", "effective")


def show_deposits(made: ModelDeposit, console: Console) -> None:
    """A row a measure."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, no_wrap=True, justify="left" if column == "measure" else "right")
    for row in made.measures.to_dict("records"):
        told = (
            f"{row['layer']}.{row['head']}", f"{row['largest']:.3f} ({row['low']:.3f}-{row['high']:.3f})",
            f"{row['share']:.0%}", f"{row['effective']:.1f}",
        )  # fmt: skip
        table.add_row(row["measure"], f"{row['before']:.3f}", *(told if row["largest"] > 0 else ("none",)))
    console.print(Padding(table, (0, 2, 1, 2)))
    console.print(
        "The costliest head of each measure, how much worse it is without that head, 95 % over prompts, its share of "
        "the costs of all heads, and how many equal heads would spread them so."
    )
