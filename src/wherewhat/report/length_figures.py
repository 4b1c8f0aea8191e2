"""How far a model holds, on paper: accuracy by length and hops, and the length at which each head loses its token."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..studies.lengths import PUBLISHED, Lengths
from .figures import INK, NEITHER, TIME, new_figure

MARKS = "osD^v<>P"


def length_curves(found: Lengths, task: str) -> Figure:
    """Accuracy over length with its interval, a line a number of hops, what was published; loss lengths of heads."""
    figure = new_figure(7.4, 3.0)
    left, right = figure.subplots(1, 2)
    _accuracy(left, found, task)
    _loss(right, found)
    sharpened = ", sharpened" * bool(found.about.get("sharpened"))
    figure.suptitle(f"{task}{sharpened}: how far it holds", fontsize=10, x=0.01, ha="left")
    return figure


def _accuracy(axes: Axes, found: Lengths, task: str) -> None:
    table = found.accuracy
    whole = table.query("hops == 0")
    axes.fill_between(whole["length"], whole["low"], whole["high"], color=NEITHER, alpha=0.3, lw=0)
    axes.plot(whole["length"], whole["accuracy"], color=INK, lw=1.6, label="all", gid="all")
    most = max(table["hops"].tolist())
    for hops in range(1, most + 1):
        those = table.query(f"hops == {hops}")
        axes.plot(
            those["length"], those["accuracy"], color=TIME(hops / most), lw=0.8, marker=MARKS[hops % 8], ms=2.5,
            label=f"{hops} hop{'s' * (hops > 1)}", gid=f"hops {hops}",
        )  # fmt: skip
    if published := {at: share for at, share in PUBLISHED[task].items() if at in set(whole["length"])}:
        axes.plot(
            list(published), list(published.values()), "x", color=INK, ms=4, label="published, all", gid="published"
        )
    axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="tokens", ylabel="accuracy", title="Right answers")
    axes.legend(frameon=False, fontsize=6.5)


def _loss(axes: Axes, found: Lengths) -> None:
    """Heads that never lose their token within the lengths measured have no mark."""
    loss = found.loss
    names = [f"{layer}.{head}" for layer, head in zip(loss["layer"], loss["head"], strict=True)]
    for name, mark, filling, offset in (("measured", "o", INK, -0.1), ("predicted", "D", "white", 0.1)):
        values = loss[name].replace(np.inf, np.nan)
        axes.plot(np.arange(len(loss)) + offset, values, mark, color=INK, mfc=filling, ms=4, label=name, gid=name)
    axes.set(yscale="log", xlabel="layer.head", ylabel="tokens", title="Attention on the next token is halved at")
    axes.set_xticks(np.arange(len(loss)), names, fontsize=6.5)
    axes.legend(frameon=False, fontsize=6.5)
