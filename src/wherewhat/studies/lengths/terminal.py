"""Terminal summaries of accuracy by length and of stretched heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ...display.terminal import right_aligned
from ...prompts.one_hop import WORDINGS
from ...words import count
from .hop_lengths import Lengths
from .paper import KEPT_ACCURACY, KEPT_WINDOW, PUBLISHED_MODELS, published_accuracy
from .stretch import CLOSE, Stretch
from .text_lengths import TextLengths

SHOWN = 12  # heads


def show_lengths(found: Lengths, console: Console) -> None:
    """Accuracy by length and hops beside the published accuracy, and the lengths at which heads lose their token."""
    table, task = found.accuracy, found.about["task"]
    published = published_accuracy(task, table["length"])
    hops = range(1, max(table["hops"].tolist()) + 1)
    shown = right_aligned(
        "length", "accuracy", "95 %", *(count(number, "hop") for number in hops), *["published"] * bool(published)
    )
    for length, rows in table.groupby("length"):
        whole, *by_hops = rows.sort_values("hops").to_dict("records")
        stated = published.get(whole["length"])
        shown.add_row(
            f"{length}", f"{whole['accuracy']:.3f}", f"{whole['low']:.2f} to {whole['high']:.2f}",
            *(f"{row['accuracy']:.2f}" for row in by_hops),
            *["" if stated is None else f"{stated:.3f}"] * bool(published),
        )  # fmt: skip
    asked = max(table["asked"].tolist())
    sharpened = ", all logits times log n / log 17" * bool(found.about.get("sharpened"))
    console.print(Text.assemble((task, "bold"), f": accuracy by length, {asked} sequences each{sharpened}"))
    console.print(Padding(shown, (1, 2)))
    if published:
        console.print("Published: figure 5B of the multi-hop paper, interpolated at these total lengths.\n")
    heads = right_aligned("layer", "head", "attention", "halved at, measured", "predicted")
    for row in found.loss.to_dict("records"):
        ends = (_length(row[name]) for name in ("measured", "predicted"))
        heads.add_row(str(row["layer"]), str(row["head"]), f"{row['attention']:.2f}", *ends)
    console.print(
        "Attention of the last token on the next token of its path, and the length at which it is halved: measured, "
        "and predicted from the shortest prompts by placing their contents farther away."
    )
    console.print(Padding(heads, (1, 2)))


def show_text_lengths(found: TextLengths, console: Console) -> None:
    """Accuracy by window with intervals and malformed answers, and the accuracy of the paper's models."""
    rows = {(row["task"], row["window"]): row for row in found.accuracy.to_dict("records")}
    asked, seeds = max(found.accuracy["asked"].tolist()), len(set(found.answers["seed"]))
    windows = sorted({window for _, window in rows})
    summary = f": one hop as text, {count(asked, 'prompt')} per task and window, {count(seeds, 'seed')}"
    console.print(Text.assemble((found.name, "bold"), summary))
    shown = right_aligned("window", *(part for task in WORDINGS for part in (task, "95 %", "malformed")))
    for window in windows:
        shown.add_row(str(window), *(cell for task in WORDINGS for cell in _cells(rows[task, window])))
    console.print(Padding(shown, (1, 2)))
    if compared := sorted({window for by_window in PUBLISHED_MODELS.values() for window in by_window} & set(windows)):
        console.print("Published, number / letter:")
        published = right_aligned("window", *PUBLISHED_MODELS)
        for window in compared:
            pairs = ("{:.2f} / {:.2f}".format(*by_window[window]) for by_window in PUBLISHED_MODELS.values())
            published.add_row(str(window), *pairs)
        console.print(Padding(published, (1, 2)))
    for sentence in sentences(found):
        console.print(sentence)


def sentences(found: TextLengths) -> list[str]:
    """Which prompts did not fit, whether the paper would keep the model, and how many tokens were used."""
    unfit = found.accuracy.query("unfit > 0").drop_duplicates("task").to_dict("records")  # windows grow
    lines = [f"Prompts of {row['task']} do not fit from {row['window']} symbols on." for row in unfit]
    if found.kept is not None:
        kept = "would be kept" if found.kept else "would not be kept"
        rule = f"The paper keeps models with at least {KEPT_ACCURACY:.0%} on letter at a window of {KEPT_WINDOW}"
        lines.append(f"{rule}: this one {kept}.")
    read, written = found.tokens
    cost = "" if found.cost is None else f"; cost: {found.cost:,.4g}"
    return [*lines, f"Tokens: {read:,} read, {written:,} written{cost}."]


def show_stretch(found: Stretch, console: Console) -> None:
    """The heads that attend most to one token and the length at which each loses it, a summary of every layer, and how
    well prediction and measurement agree."""
    measured_to = None if found.curves.empty else found.curves["length"].max()
    console.print(
        Text.assemble(
            (found.name, "bold"),
            f": the {min(SHOWN, len(found.heads))} heads that attend most to one token of the statements. ",
        )
        + Text("Halved at: the length at which this attention is halved; ")
        + Text(f"-: not up to {found.about['longest']:,} tokens")
        + Text("." if measured_to is None else f", measured: not up to {measured_to:,}.")
    )
    sides = ("predicted",) if measured_to is None else ("predicted", "measured")
    heads = right_aligned("layer", "head", "attention", *(f"halved at, {side}" for side in sides))
    for row in found.heads.nlargest(SHOWN, "attention").to_dict("records"):
        heads.add_row(
            str(row["layer"]), str(row["head"]), f"{row['attention']:.2f}", *(_length(row[side]) for side in sides)
        )
    console.print(Padding(heads, (1, 2)))
    layers = right_aligned("layer", *(f"lost, {side}" for side in sides), *(f"median, {side}" for side in sides))
    for layer, rows in found.heads.groupby("layer"):
        values: list[Any] = [rows[side].to_numpy() for side in sides]
        lost = (f"{np.isfinite(one).sum()} of {len(one)}" for one in values)
        layers.add_row(str(layer), *lost, *(_length(float(np.median(one))) for one in values))
    console.print("Heads of each layer that lose their token, and the median of the length over all its heads:")
    console.print(Padding(layers, (1, 2)))
    if agreement := found.agreement():
        close = f", {agreement['close']:.0%} of them within a factor of {CLOSE} of the prediction"
        console.print(
            f"The share of attention left at {measured_to:,} tokens is predicted with a mean error of "
            f"{agreement['mean error']:.2f} and a rank correlation of {agreement['rank correlation']:.2f} over heads; "
            f"{agreement['lost']:.0f} heads lose their token{close if agreement['lost'] else ''}."
        )


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    if row["unfit"]:
        return "too long", "", ""
    return f"{row['accuracy']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", str(row["malformed"])


def _length(value: float) -> str:
    return f"{value:,.0f}" if value < math.inf else "-"
