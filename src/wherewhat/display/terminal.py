"""What several studies show in a terminal: the plane of scores, progress bars, one colour for each kind of head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..core.kinds import kind

STYLE = {
    "where": "dark_orange",
    "what": "deep_sky_blue1",
    "unfocused": "grey62",
    "mixed": "default",
    "unmeasured": "grey42",
}


def plane(points: Sequence[tuple[str, float, float]], width: int = 45, height: int = 11) -> Text:
    """The plane of positional (across) and symbolic (up) scores, one letter per head.

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


def right_aligned(*columns: str) -> Table:
    """An empty table of numbers, without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, float, int], None]]:
    """A bar with the time left; silent unless the output is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = {"transient": True, "disable": not console.is_terminal, "speed_estimate_period": 3600}  # cells take long
    with Progress(*columns, console=console, **shown) as bar:
        task = bar.add_task("measuring", total=None)

        def show(what: str, done: float | int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        _bars.append(show)
        try:
            yield show
        finally:
            _bars.remove(show)


_bars: list[Callable[[str, float, int], None]] = []  # on the screen; the last one is in use


def cell_status(name: str, done: int, running: int, failed: int, total: int) -> None:
    """Show cells that are computed elsewhere on the bar of the study that waits for them."""
    if _bars:
        at_work = f"{running} running" if running or done + failed else "starting"
        _bars[-1](f"{name}: {at_work}" + f", {failed} failed" * (failed > 0), done + failed, total)


def show_findings(findings: pd.DataFrame, summary: str, console: Console) -> None:
    """One row per published claim; `summary` names the number found for it, such as "mean and range over seeds"."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("claim", f"found, {summary}", "holds"):
        table.add_column(column)
    for row in findings.to_dict("records"):
        table.add_row(row["claim"], row["found"], "yes" if row["holds"] else Text("NO", "bold red"))
    console.print(Padding(table, (0, 2, 1, 2)))
