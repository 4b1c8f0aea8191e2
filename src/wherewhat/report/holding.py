"""How far heads hold, as a person reads it in a terminal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.holding import CLOSE, Holding

SHOWN = 12


def show_holding(found: Holding, name: str, longest: int, console: Console) -> None:
    """The heads that attend most to one token, where each loses it, the layers in a line each, and the agreement."""
    compared = not found.curves.empty
    console.print(
        Text.assemble((name, "bold"), f": the {SHOWN} heads that attend most to one token of the statements. Halved ")
        + Text(f"at: the length at which that attention is half of what it is now; -: not up to {longest:,} tokens")
        + Text(f", measured: not up to {found.curves['length'].max():,}." if compared else ".")
    )
    names = ("predicted", *["measured"] * compared)
    heads = _table("layer", "head", "attention", *(f"halved at, {side}" for side in names))
    for row in found.heads.nlargest(SHOWN, "attention").to_dict("records"):
        heads.add_row(
            str(row["layer"]), str(row["head"]), f"{row['attention']:.2f}", *(_length(row[side]) for side in names)
        )
    console.print(Padding(heads, (1, 2)))
    layers = _table("layer", *(f"lost, {side}" for side in names), *(f"median, {side}" for side in names))
    for layer, rows in found.heads.groupby("layer"):
        values: list[Any] = [rows[side].to_numpy() for side in names]
        lost = (f"{np.isfinite(one).sum()} of {len(one)}" for one in values)
        layers.add_row(str(layer), *lost, *(_length(float(np.median(one))) for one in values))
    console.print("How many heads of each layer lose their token, and the median over all of them of the length:")
    console.print(Padding(layers, (1, 2)))
    if compared:
        agreed = found.agreement()
        console.print(
            f"Of the attention now, what is left at {found.curves['length'].max():,} tokens is predicted with a mean "
            f"error of {agreed['mean error']:.2f} and a rank correlation of {agreed['rank correlation']:.2f} over "
            f"heads; {agreed['lost']:.0f} heads really lose their token"
            + (
                f", {agreed['close']:.0%} of them within a factor of {CLOSE} of the prediction."
                if agreed["lost"]
                else "."
            )
        )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _length(value: float) -> str:
    return f"{value:,.0f}" if value < math.inf else "-"
