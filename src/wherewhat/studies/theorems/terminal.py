"""Theorems and how they were checked, shown in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .verify import Verification


def show_verification(made: Verification, console: Console) -> None:
    """One row per theorem, then inputs that show why a pure head must fail."""
    rows = list(made)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("theorem", "statement, and how it was checked", "instances", "margin", "holds"):
        table.add_column(column, justify="right" if column in ("instances", "margin") else "left")
    for row in rows:
        table.add_row(
            Text.assemble(row.theorem, (f"\n{row.name}\n{row.form}", "dim")),
            Text.assemble(row.statement, (f"\n{row.method}", "dim")),
            f"{row.instances:,}",
            f"{row.margin:.1e}",
            Text("yes", "green") if row.passed else Text("NO", "bold red"),
        )
    console.print(table)
    for row in rows:
        if row.shown:
            console.print(Text(f"\n{row.theorem}: {row.statement}", "bold"))
            console.print(Padding(Text(row.shown), (0, 0, 0, 2), expand=False))
    failed = [row.name for row in rows if not row.passed]
    console.print(
        "\nP1: Decoupling Positional and Symbolic Attention; P2: Positional versus Symbolic Attention Heads; "
        "P3: Unpacking Positional Encoding. Corrected: as printed it does not hold, or needs a condition. "
        "The margin is the smallest one over all instances; 0: met with equality, up to rounding."
    )
    verdict = f"{len(rows) - len(failed)} of {len(rows)} hold" + (f"; failed: {', '.join(failed)}." if failed else ".")
    console.print(Text(verdict, "bold red" if failed else "bold green"))
