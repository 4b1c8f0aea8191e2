"""Results as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..core.kinds import kind
from ..studies.demo import Shown
from ..studies.profile_file import Profile

STYLE = {
    "where": "dark_orange",
    "what": "deep_sky_blue1",
    "unfocused": "grey62",
    "mixed": "default",
    "unmeasured": "grey42",
}


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
def progress_bar(console: Console) -> Iterator[Callable[[str, float, int], None]]:
    """A bar with the time left; silent where nobody looks."""
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


_bars: list[Callable[[str, float, int], None]] = []  # on the screen, the last one in use


def cell_status(name: str, done: int, running: int, failed: int, total: int) -> None:
    """Cells that are computed elsewhere, on the bar of the study that waits for them."""
    if _bars:
        at_work = f"{running} running" if running or done + failed else "starting"
        _bars[-1](f"{name}: {at_work}" + f", {failed} failed" * (failed > 0), done + failed, total)


@contextmanager
def training_bar(console: Console) -> Iterator[Callable[[str, int, int, float, float], None]]:
    """A bar with loss, accuracy and the time left."""
    with progress_bar(console) as progress:
        yield lambda name, step, steps, loss, accuracy: progress(
            f"{name}: loss {loss:.3f}, accuracy {accuracy:.1%}", step, steps
        )


def show_profile(profile: Profile, console: Console) -> None:
    """The plane, the purest heads, the correlation, the medians and what they depend on: a profile at a glance."""
    heads, about = profile.heads, profile.about
    kinds = heads["kind"].value_counts()
    prompts = about["prompts"]
    pairs = about["settings"].get("pairs")
    each = count(pairs, "pair") if pairs else count(len(prompts[0]["blocks"]), "block")
    measured = f": {count(len(prompts), 'prompt')} of {each}, level {about['level']}, tau {about['tau']}"
    console.print(Text.assemble((Path(about["model"]).name, "bold"), measured))
    shown = [name for name in STYLE if name != "unmeasured" or name in kinds]
    named = [Text(f"{kinds.get(name, 0)} {name}", STYLE[name]) for name in shown]
    console.print(Text.assemble(f"{count(len(heads), 'head')}: ", Text(", ").join(named)))
    seen = heads[heads["kind"] != "unmeasured"]
    points = [("o", where, what) for where, what in zip(seen["positional"], seen["symbolic"], strict=True)]
    console.print(Padding(Group(plane(points), legend()), (1, 2)))
    for name in ("where", "what", "unfocused"):
        if best := purest(heads, name):
            listed = ", ".join(f"{layer}.{head}" for layer, head in best)
            console.print(Text.assemble("Purest ", (f"{name:9}", STYLE[name]), f" (layer.head)  {listed}"))
    console.print()
    found = about["correlation"]
    console.print(
        f"The axes correlate with r = {number(found['r'])}{_range(found['r_low'], found['r_high'], ' over prompts')}",
        end="",
    )
    console.print(f", p = {found['p']:.0e}." if found["p"] is not None else ".")
    console.print("Medians of the first / second half of the layers, here and with other choices:")
    console.print(Padding(_table_of_medians(about), (1, 2)))
    if about["accuracy"] is not None:
        console.print(_answers(about))
    sinks, left_out = about["sinks"], about["left_out"]
    drawn = f"Sinks draw {sinks['share']:.0%} of all attention" if sinks["share"] else "No token is an attention sink"
    console.print(f"{drawn}; the most attended place in a block {sinks['largest_in_a_block']:.1%}.")
    if left_out["statements"] or left_out["swaps"]:
        console.print(
            f"Left out: {left_out['statements']} of {count(left_out['of_statements'], 'statement')} (other lengths), "
            f"{left_out['swaps']} of {count(left_out['of_swaps'], 'swap')} (no attention to move)."
        )
    if swaps := about["swaps"]:
        console.print(
            f"Swaps run: {swaps['run']:,} of {swaps['of']:,}; "
            f"those not run hold {number(swaps['unseen_weight'])} of the weight."
        )
    console.print(f"Self-check: within {max(about['self_check'].values()):.0e} of the model's own attention.")
    for warning in about["warnings"]:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning + "."))


def purest(heads: pd.DataFrame, kind: str, number: int = 5) -> list[tuple[int, int]]:
    """The heads deepest in their corner of the plane, as (layer, head)."""
    some = heads[heads["kind"] == kind]
    depth = {
        "where": some["positional"] - some["symbolic"],
        "what": some["symbolic"] - some["positional"],
        "unfocused": some["positional"] + some["symbolic"],
    }[kind]
    best = some.assign(depth=depth).nlargest(number, "depth")
    return list(zip(best["layer"], best["head"], strict=True))


def legend() -> Text:
    corners = {"where": "bottom right", "what": "top left", "unfocused": "top right"}
    parts = [Text(f"{name} {corner}", STYLE[name]) for name, corner in corners.items()]
    return Text.assemble("o head, * several: ", Text(", ").join(parts))


def count(number: int, thing: str) -> str:
    """A number of things.

    >>> count(1, "prompt"), count(270, "head")
    ('1 prompt', '270 heads')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _table_of_medians(about: dict[str, Any]) -> Table:
    """Medians of the two halves of the layers, at every tau and cut of the blocks; the profile itself comes first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("blocks", "tokens", "tau", "r", "positional", "symbolic"):
        table.add_column(column, no_wrap=True, justify="left" if column == "blocks" else "right")
    for at, row in enumerate(about["sensitivity"]):
        halves = (" / ".join(map(number, row[f"median_{axis}"])) for axis in ("positional", "symbolic"))
        table.add_row(
            row["blocks"], str(row["tokens_a_block"]), str(row["tau"]), number(row["r"]), *halves,
            style="bold" if at == 0 else None,
        )  # fmt: skip
    return table


def _answers(about: dict[str, Any]) -> str:
    right = about["accuracy"]
    said = (
        f"Right answers: {right['right']} of {right['of']}{_range(right['low'], right['high'])}; "
        f"mean probability {about['answer_probability']:.2f}"
    )
    if about["by_position"]:
        parts = "third" if len(about["by_position"]) == 3 else "fifth"
        shares = ("-" if row["accuracy"] is None else f"{row['accuracy']:.0%}" for row in about["by_position"])
        said += f"; by {parts} of the list: {', '.join(shares)}"
    return said + "."


def number(value: float | None) -> str:
    """Two digits, or a dash where there is no number."""
    return "-" if value is None else f"{value:.2f}"


def _range(low: float | None, high: float | None, of: str = "") -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f}{of})"


def show_demo(models: Sequence[Shown], console: Console) -> None:
    """What each embedded model was taught, and where its heads stand: the plane, and a line a head."""
    console.print(Text("Does a head look at where, or at what?", style="bold"))
    console.print("Two small GPT-Js of twelve layers with one head each, trained on tasks of equal structure.\n")
    for shown in models:
        heads, right = shown.profile.heads, shown.profile.about["accuracy"]
        console.print(Text.assemble((shown.name, "bold"), f": {shown.taught}"))
        console.print(Text(f"  {shown.example} -> {shown.answer}", "dim"))
        console.print(f"  {right['right']} of {right['of']} answers right\n")
        labels = [f"{layer:x}" for layer in heads["layer"]]
        points = list(zip(labels, heads["positional"], heads["symbolic"], strict=True))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("layer", "looks at", "pos.", "sym.", "ID"):
            table.add_column(column, no_wrap=True, justify="left" if column == "looks at" else "right")
        for label, row in zip(labels, heads.to_dict("records"), strict=True):
            scores = (f"{row['positional']:.2f}", f"{row['symbolic']:.2f}", f"{row['mean_frequency']:.0f}")
            table.add_row(label, Text(row["kind"], STYLE[row["kind"]]), *scores)
        beside = Table.grid(padding=(0, 2))
        beside.add_row(plane(points, width=24, height=12), table)
        console.print(Padding(beside, (0, 0, 1, 2)))
    deviation = max(max(shown.profile.about["self_check"].values()) for shown in models)
    console.print(
        "Each head stands in the plane at the number of its layer (a: 10, b: 11), * several: where bottom right, what "
        "top left. ID: the mean of the RoPE frequencies that it uses, 1 the fastest, 64 the slowest. "
        f"Self-check: within {deviation:.0e} of the models' own attention."
    )
