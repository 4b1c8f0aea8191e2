"""Two profiles side by side in a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.compare import Comparison
from .terminal import STYLE, count, number


def show_comparison(found: Comparison, names: tuple[str, str], movers: int, console: Console) -> None:
    """The summaries side by side, then what moved."""
    about, heads = found.about, found.heads
    for warning in about["warnings"]:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning + "."))
    console.print(Padding(_side_by_side(found, names), (0, 0, 1, 0)))
    if heads is None:
        console.print(f"{about['not_matched']}; only their summaries are compared.")
    else:
        for axis, agreement in about["agreement"].items():
            console.print(
                f"{axis.capitalize()}: heads correlate with r = {number(agreement['r'])}; B less A is "
                f"{signed(agreement['mean_difference'])} on average; the interval of {agreement['clear']} of "
                f"{count(len(heads), 'head')} excludes 0."
            )
        changed = about["changed_kind"]
        console.print(f"{count(changed, 'head')} changed {'its' if changed == 1 else 'their'} kind.")
        if movers and len(heads):
            console.print(Padding(_movers(found, movers), (1, 0, 1, 0)))
        pairing = (
            "prompt by prompt, on the same prompts" if about["same_prompts"] else "over the prompts of each profile"
        )
        console.print(f"Intervals: 95 %, bootstrap {pairing}.")


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _side_by_side(found: Comparison, names: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for letter, name in zip("AB", names, strict=True):
        table.add_column(Text(f"{letter}: {name}"), justify="right")
    one, other = found.about["profiles"]
    table.add_row("prompts", *(str(made["prompts"]) for made in (one, other)))
    table.add_row("model", *(Path(made["model"]).name for made in (one, other)))
    for kind in STYLE:
        shares = (f"{made['kinds'].get(kind, 0)} of {made['heads']}" for made in (one, other))
        table.add_row(Text(kind, style=STYLE[kind]), *shares)
    table.add_row("r of the axes", *(number(made["correlation"]["r"]) for made in (one, other)))
    for axis in ("positional", "symbolic"):
        for at, half in enumerate(("1st", "2nd")):
            values = (number(made["medians"][axis][at]["median"]) for made in (one, other))
            table.add_row(f"{axis}, {half} half", *values)
    right = (made["accuracy"] for made in (one, other))
    table.add_row("right answers", *("-" if one is None else f"{one['right']} of {one['of']}" for one in right))
    return table


def _movers(found: Comparison, movers: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title="Moved most", title_justify="left")
    for column in ("head", "A", "B", "positional, B less A", "symbolic, B less A"):
        table.add_column(column, no_wrap=True)
    assert found.heads is not None
    for row in found.heads.head(movers).to_dict("records"):
        cells = []
        for axis in ("positional", "symbolic"):
            low, high = row[f"{axis}_low"], row[f"{axis}_high"]
            reach = "" if low != low else f" ({low:+.2f} to {high:+.2f})"
            cells.append(f"{row[f'{axis}_difference']:+.2f}{reach}")
        kinds = (Text(row[name], style=STYLE[row[name]]) for name in ("kind_a", "kind_b"))
        table.add_row(f"{row['layer']}.{row['head']}", *kinds, *cells)
    return table
