"""Accuracy by length as a person reads it in a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.lengths import PUBLISHED, Lengths


def show_lengths(found: Lengths, task: str, console: Console) -> None:
    """A row a length: all sequences with their interval, each number of hops, and what was published; a row a head."""
    table = found.accuracy
    compared = not PUBLISHED[task].keys().isdisjoint(table["length"])
    most = max(table["hops"].tolist())
    columns = [
        "length",
        "accuracy",
        "95 %",
        *(f"{hops} hop{'s' * (hops > 1)}" for hops in range(1, most + 1)),
        *["published"] * compared,
    ]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    for length, rows in table.groupby("length"):
        whole, *by_hops = rows.sort_values("hops").to_dict("records")
        published = PUBLISHED[task].get(whole["length"])
        shown.add_row(
            f"{length}", f"{whole['accuracy']:.3f}", f"{whole['low']:.2f} to {whole['high']:.2f}",
            *(f"{row['accuracy']:.2f}" for row in by_hops), *["" if published is None else f"{published:g}"] * compared,
        )  # fmt: skip
    asked = max(table["asked"].tolist())
    sharpened = ", all logits times log n / log 17" * bool(found.about.get("sharpened"))
    console.print(Text.assemble((task, "bold"), f": accuracy by length, {asked} sequences each{sharpened}"))
    console.print(Padding(shown, (1, 2)))
    heads = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layer", "head", "attention", "halved at, measured", "predicted"):
        heads.add_column(column, justify="right", no_wrap=True)
    for row in found.loss.to_dict("records"):
        ends = (f"{row[name]:.0f}" if row[name] < math.inf else "-" for name in ("measured", "predicted"))
        heads.add_row(str(row["layer"]), str(row["head"]), f"{row['attention']:.2f}", *ends)
    console.print(
        "Attention of the last token on the next token of its path, and the length at which it is half of that: "
        "measured, and predicted from the shortest prompts by placing their contents farther away."
    )
    console.print(Padding(heads, (1, 2)))
