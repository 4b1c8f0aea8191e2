"""What several studies show in a terminal: the plane of scores, progress bars, one colour for each kind of head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import pandas as pd
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..core.kinds import kind
from ..words import printable

LINE_EVERY = 10  # seconds between lines of progress in a log file
STYLE = {
    "where": "dark_orange",
    "what": "deep_sky_blue1",
    "unfocused": "grey62",
    "mixed": "default",
    "unmeasured": "grey42",
}


class SafeConsole(Console):
    """A console that shows control characters in names and texts escaped, so that they cannot act on the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


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
    """A bar with the time left; where the output is not a terminal, such as a log file, a line from time to time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = {"transient": True, "disable": not console.is_terminal, "speed_estimate_period": 3600}  # cells take long
    with Progress(*columns, console=console, **shown) as bar:
        task = bar.add_task("measuring", total=None)

        line = _lines(console)

        def show(what: str, done: float | int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)
            line(what, done, total)

        _bars.append(show)
        try:
            yield show
        finally:
            _bars.remove(show)


def _lines(console: Console) -> Callable[[str, float | int, int], None]:
    """Print progress as lines, at most one in LINE_EVERY seconds; nothing in a terminal, where there is a bar."""
    start = last = 0.0

    def line(what: str, done: float | int, total: int) -> None:
        nonlocal start, last
        now = monotonic()
        if not last:
            start = last = now
        elif not console.is_terminal and now - last >= LINE_EVERY:
            last = now
            so_far = f": {done:.4g} of {total}" if total > 1 else ""
            console.print(f"{what}{so_far}, after {now - start:.0f} s")

    return line


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
