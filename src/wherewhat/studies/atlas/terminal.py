"""An atlas in the terminal: one line per model, and the models that could not be measured."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...core.kinds import LITTLE
from ...display.terminal import STYLE
from ...words import number
from .result import Atlas
from .sentences import atlas_sentences


def show_atlas(atlas: Atlas, console: Console) -> None:
    """The share of heads of each kind in every model, the correlation of the two scores, and their medians."""
    console.print(Text(atlas.about["title"], style="bold"))
    console.print(" ".join(atlas_sentences(atlas)))
    console.print(Padding(_models(atlas), (1, 0)))
    console.print(f"little: share of heads with less than {LITTLE:.0%} of their attention on the blocks.")
    console.print("r: correlation of positional and symbolic score over heads; pos., sym.: their medians.")
    for name, reason in atlas.failed.items():
        console.print(Text.assemble(("Not measured: ", "bold yellow"), f"{name}: {reason}"))


def _models(atlas: Atlas) -> Table:
    """One line per model, grouped by family if there are several."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    kinds = [kind for kind in STYLE if kind != "unmeasured" or max(atlas.models[kind]) > 0]
    for column in ("heads", *kinds, "little", "r", "pos.", "sym."):
        table.add_column(column, justify="right", no_wrap=True, style=STYLE.get(column))
    families = atlas.models.sort_values(["family", "model"]).groupby("family", sort=False)
    for family, models in families:
        if len(families) > 1:
            table.add_row(Text(str(family), style="dim"))
        for row in models.to_dict("records"):
            shares = (f"{row[kind]:.0%}" for kind in (*kinds, "little"))
            numbers = (number(known(row[name])) for name in ("r", "positional", "symbolic"))
            table.add_row(Text(row["model"]), str(row["heads"]), *shares, *numbers)
    return table


def known(value: Any) -> float | None:
    """A number, or None if it is missing."""
    return None if value != value else value
