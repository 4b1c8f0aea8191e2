"""What each angle learns, shown in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...display.terminal import STYLE, show_findings
from ...words import count
from .paper import Decoupling
from .sweep import Sweep


def show_sweep(made: Sweep, console: Console) -> None:
    """For every setting one row per angle: accuracy over seeds, both scores, and what most heads look at."""
    for setting, members in made.members.groupby("setting", sort=False):
        console.print(Text.assemble((str(setting), "bold"), f": {count(len(set(members['seed'])), 'seed')}"))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("ID", "angle", "accuracy", "lowest", "highest", "positional", "symbolic", "looks at"):
            table.add_column(column, no_wrap=True, justify="left" if column == "looks at" else "right")
        for frequency, heads in members.groupby("frequency"):
            accuracy: Any = heads["accuracy"]
            kind = str(heads["kind"].mode()[0])
            table.add_row(
                str(frequency), f"{heads['angle'].mean():.4f}",
                *(f"{share:.1%}" for share in (accuracy.mean(), accuracy.min(), accuracy.max())),
                f"{heads['positional'].mean():.2f}", f"{heads['symbolic'].mean():.2f}", Text(kind, STYLE[kind]),
            )  # fmt: skip
        console.print(Padding(table, (0, 2, 1, 2)))
    console.print("where: positional, attends by position; what: symbolic, attends by symbol.")


def show_decoupling(made: Decoupling, console: Console) -> None:
    """Every angle, then the claims."""
    show_sweep(made, console)
    console.print()
    show_findings(made.findings, "at the worst angle", console)
