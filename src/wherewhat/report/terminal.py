"""Results as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..core.kinds import kind
from ..studies.demo import DemoHead

STYLE = {"where": "dark_orange", "what": "deep_sky_blue1", "unfocused": "grey62", "mixed": "default"}


def plane(points: Sequence[tuple[str, float, float]], width: int = 45, height: int = 11) -> Text:
    """The plane of positional (across) and symbolic (up) scores, one letter a head.

    >>> print(plane([("A", 1.0, 0.0)], width=3, height=2))
    symbolic
       1 |
       0 |  A
         +---
         0  1  positional
    """
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for label, positional, symbolic in points:
        at = (round((1 - symbolic) * (height - 1)), round(positional * (width - 1)))
        cells[at] = ("*" if at in cells else label, STYLE[kind(positional, symbolic)])
    text = Text("symbolic\n")
    for row in range(height):
        text.append({0: "   1 |", height - 1: "   0 |"}.get(row, "     |"))
        filled = max((column for at, column in cells if at == row), default=-1)
        for column in range(filled + 1):
            text.append(*cells.get((row, column), (" ", "default")))
        text.append("\n")
    text.append("     +" + "-" * width + "\n     0" + " " * (width - 1) + "1  positional")
    return text


def show_demo(heads: Sequence[DemoHead], check: dict[str, float], console: Console) -> None:
    """The plane, the table beside theory, and the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "built to be", "looks at"):
        table.add_column(column, no_wrap=True)
    for column in ("positional", "theory", "symbolic", "theory", "entropy"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("agree", no_wrap=True)
    for label, head in zip("ABCD", heads, strict=True):
        table.add_row(
            label,
            head.built_as,
            Text(head.kind, style=STYLE[head.kind]),
            f"{head.positional:.4f}",
            f"{head.theory_positional:.4f}",
            f"{head.symbolic:.4f}",
            f"{head.theory_symbolic:.4f}",
            f"{head.entropy:.2f}",
            "yes" if head.as_theory_says else Text("NO", style="bold red"),
        )
    worst = max(head.difference for head in heads)
    console.print(
        Group(
            Text("Does a head look at where, or at what?", style="bold"),
            "A small GPT-J with four heads built by hand, measured in one forward pass.",
            Padding(plane([(label, h.positional, h.symbolic) for label, h in zip("ABCD", heads, strict=True)]), (1, 2)),
            table,
            "",
            f"Largest difference between measurement and theory: {worst:.1e}. "
            f"Self-check against the model's own attention: {check['attention']:.1e}.",
        )
    )
