"""How unevenly a loss is spread over heads, as a person reads it in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..studies.behaviour import MEASURES
from ..studies.model_deposit import ModelDeposit

COLUMNS = ("measure", "all heads", "costliest", "its cost", "of all costs", "gap to the second", "effective heads")


def show_deposits(made: ModelDeposit, console: Console) -> None:
    """A row a measure."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "measure" else "right")
    for row in made.measures.to_dict("records"):
        table.add_row(
            MEASURES[row["measure"]][0], f"{row['before']:.3f}", f"{row['layer']}.{row['head']}",
            f"{row['largest']:.3f} ({row['low']:.3f} to {row['high']:.3f})", f"{row['share']:.0%}", f"{row['gap']:.3f}",
            f"{row['effective']:.1f}",
        )  # fmt: skip
    console.print(Padding(table, (0, 2, 1, 2)))
    console.print(
        "Cost: how much worse without the head, 95 % over prompts; effective heads: as many equal ones spread it so."
    )
