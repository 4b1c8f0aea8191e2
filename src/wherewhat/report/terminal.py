"""Results as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..core.kinds import kind
from ..studies.demo import DemoHead
from ..studies.profile import Profile

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


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time left; silent where nobody looks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("measuring", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def show_profile(profile: Profile, console: Console) -> None:
    """The plane, the purest heads, the correlation and the medians: a profile at a glance."""
    heads, about = profile.heads, profile.about
    counts = heads["kind"].value_counts()
    total = len(heads)
    first = Text.assemble(
        (str(about["model"]), "bold"), f": of {total} heads ",
        (f"{counts.get('where', 0)} look at where", STYLE["where"]), ", ",
        (f"{counts.get('what', 0)} at what", STYLE["what"]), f", {counts.get('mixed', 0)} are mixed, ",
        (f"{counts.get('unfocused', 0)} are unfocused", STYLE["unfocused"]), ".",
    )  # fmt: skip
    console.print(first)
    points = [("o", where, what) for where, what in zip(heads["positional"], heads["symbolic"], strict=True)]
    console.print(Padding(plane(points), (1, 2)))
    for name, column in (("where", "positional"), ("what", "symbolic")):
        best = heads.loc[heads["kind"] == name, ["layer", "head", column]].nlargest(3, column)
        if len(best):
            listed = ", ".join(f"{layer}.{head} ({value:.3f})" for layer, head, value in best.to_numpy(dtype=object))
            console.print(Text.assemble("Purest ", (name, STYLE[name]), f" heads (layer.head): {listed}"))
    main = about["sensitivity"][0]
    console.print(
        f"The two axes correlate with r = {about['correlation']['r']:.2f} (p = {about['correlation']['p']:.1e})."
    )
    console.print(
        "Medians of the first and second half of layers: positional {:.2f}, {:.2f}; symbolic {:.2f}, {:.2f}.".format(
            *main["median_positional"], *main["median_symbolic"]
        )
    )
    if about["accuracy"] is not None:
        console.print(
            f"The model answers {about['accuracy']:.0%} of {len(about['prompts'])} prompts; "
            f"mean probability of the right answer {about['answer_probability']:.2f}."
        )
    worst = max(about["self_check"].values())
    console.print(
        f"Self-check: within {worst:.0e} of the model's own attention. "
        f"Swaps at level {about['level']}, tau {about['tau']:g}."
    )


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
