"""What each angle learns, as a person reads it in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.canonical import Sweeps
from ..studies.decoupling import Decoupling
from .terminal import STYLE


def show_sweeps(made: Sweeps, console: Console) -> None:
    """A row an angle for every setting: accuracy over seeds, both scores, and what most heads look at."""
    for setting, members in made.members.groupby("setting", sort=False):
        console.print(Text.assemble((str(setting), "bold"), f": {members['seed'].nunique()} seeds"))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("ID", "angle", "accuracy", "lowest", "highest", "positional", "symbolic", "looks at"):
            table.add_column(column, no_wrap=True, justify="left" if column == "looks at" else "right")
        for frequency, heads in members.groupby("frequency"):
            accuracy: Any = heads["accuracy"]
            looks = str(heads["kind"].mode()[0])
            table.add_row(
                str(frequency), f"{heads['angle'].mean():.4f}",
                *(f"{share:.1%}" for share in (accuracy.mean(), accuracy.min(), accuracy.max())),
                f"{heads['positional'].mean():.2f}", f"{heads['symbolic'].mean():.2f}", Text(looks, STYLE[looks]),
            )  # fmt: skip
        console.print(Padding(table, (0, 2, 1, 2)))


def show_decoupling(made: Decoupling, console: Console) -> None:
    """Every angle, then the claims."""
    show_sweeps(made.sweeps, console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("claim", "found, at worst", "holds"):
        table.add_column(column)
    for row in made.findings.to_dict("records"):
        table.add_row(row["claim"], row["found"], "yes" if row["holds"] else Text("NO", "bold red"))
    console.print(Padding(table, (0, 2, 1, 2)))
