"""Training dynamics on paper: scores over training, purity, accuracy by hops, and the frequencies in use."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ...display.style import INK, LOOKS, NEITHER, TIME, WHAT, WHERE, name_figure, new_figure
from ...errors import BadInput
from ..profile.result import head_labels
from .dynamics import GAMMA, Dynamics

KINDS = {"where": (WHERE, "o", ""), "what": (WHAT, "s", "////")}
BARS = {0.2: (0.86, 0.35), 0.1: (0.56, 0.65), 0.05: (0.26, 1.0)}  # gamma: height and strength of its bar
MOMENTS = 5
MARKS = "osD^v<>P"


def scores(watched: Dynamics) -> Figure:
    """Scores and entropy of every head over training, one panel per layer, and the step at which it became pure."""
    heads: Any = from_the_end(watched)
    layers = heads["layer"].unique()
    columns = min(4, len(layers))
    lines = -(-len(layers) // columns)
    figure = new_figure(1.85 * columns + 0.6, 1.3 * lines + 0.9)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    pure: Any = watched.purity[watched.purity["gamma"] == GAMMA]
    for axes, layer in zip(panels, layers, strict=False):
        those = heads[heads["layer"] == layer]
        entropy = those.groupby("step")["entropy"].mean()
        spread = entropy.max() - entropy.min()
        axes.plot(
            entropy.index, (entropy - entropy.min()) / (spread or 1), color=NEITHER, lw=0.8, ls=":", gid="entropy"
        )
        for score, look in LOOKS.items():
            wide = those.pivot(index="step", columns="head", values=score)
            axes.plot(wide.index, wide, color=look.colour, lw=1.2, ls=look.line, gid=score)
        for one in pure[pure["layer"] == layer].to_dict("records"):
            colour, mark, _ = KINDS[one["kind"]]
            axes.plot(one["step"], 1.0, mark, color=colour, ms=4.5, mec="white", mew=0.5, clip_on=False, gid="pure")
        axes.set_title(f"layer {layer}", fontsize=8, fontweight="normal", pad=3)
        axes.set(ylim=(-0.03, 1.03))
    for axes in panels[len(layers) :]:
        axes.axis("off")
    _step_axis(panels[0])
    keys = [Line2D([], [], color=look.colour, ls=look.line, label=f"looks at {look.word}") for look in LOOKS.values()]
    keys.append(Line2D([], [], color=NEITHER, ls=":", label="entropy, from its least to its most"))
    keys += [
        Line2D([], [], color=colour, marker=mark, ls="", ms=4.5, label=f"pure at {kind} from here")
        for kind, (colour, mark, _) in KINDS.items()
    ]
    figure.legend(handles=keys, frameon=False, ncols=3 if columns > 2 else 1, loc="outside lower left", fontsize=7)
    figure.supylabel("score", fontsize=8)
    name_figure(figure, _name(watched))
    return figure


def purity(watched: Dynamics) -> Figure:
    """A bar for every head from the step on from which it is pure to the end, for each of three margins."""
    heads: Any = from_the_end(watched)
    steps = np.unique(heads["step"])
    first: Any = heads[heads["step"] == steps[0]].assign(nth=0)
    rows = {(one["layer"], one["head"]): row for row, one in enumerate(first.to_dict("records"))}
    end = steps[-1] + (steps[-1] - steps[-2] if len(steps) > 1 else 1)  # a head that was pure only once has a bar too
    figure = new_figure(5.6, min(12.0, 0.17 * len(rows) + 1.5))
    axes = figure.subplots()
    for gamma, (height, strength) in BARS.items():
        for kind, (colour, _, hatch) in KINDS.items():
            pure: Any = watched.purity.query("gamma == @gamma and kind == @kind")
            places = [rows[place] for place in zip(pure["layer"], pure["head"], strict=True)]
            axes.barh(
                places, end - pure["step"], left=pure["step"], height=height, color=_paler(colour, strength),
                edgecolor="white", hatch=hatch, linewidth=0, gid=f"{kind} {gamma}",
            )  # fmt: skip
    labels = head_labels(first) if first["head"].nunique() > 1 else [str(layer) for layer in first["layer"]]
    shown = [int(place) for place in MaxNLocator(24, integer=True).tick_values(0, len(rows)) if 0 <= place < len(rows)]
    axes.set_yticks(shown, [labels[place] for place in shown])
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(steps[0], end), xlabel="step")
    axes.set_ylabel("layer.head" if first["head"].nunique() > 1 else "layer")
    keys = [
        Patch(facecolor=c, edgecolor="white", hatch=h, lw=0, label=f"purely at {k}") for k, (c, _, h) in KINDS.items()
    ]
    keys += [Patch(color=_paler(INK, strength), label=f"within {gamma}") for gamma, (_, strength) in BARS.items()]
    figure.legend(handles=keys, frameon=False, ncols=5, loc="outside lower left", fontsize=7, handlelength=1.5)
    name_figure(figure, f"{_name(watched)}: pure from when to the end")
    return figure


def accuracy(watched: Dynamics) -> Figure:
    """The share of right answers over training, a line for each number of hops."""
    shares: Any = watched.accuracy.dropna(subset=["accuracy"])
    if shares.empty:
        raise BadInput(f"{_name(watched)}: the prompts have no answers, so no accuracy to draw")
    figure = new_figure(5.6, 3.2)
    axes = figure.subplots()
    wide = shares.pivot(index="step", columns="hops", values="accuracy")
    colours = TIME(np.linspace(0.15, 1.0, wide.shape[1]))
    for (hops, line), colour, mark in zip(wide.items(), colours, MARKS, strict=False):
        name = f"{hops} hop{'s' if hops > 1 else ''}"
        every = max(1, len(line) // 12)
        axes.plot(line.index, line, color=colour, lw=1.3, marker=mark, ms=3.5, markevery=every, label=name)
    axes.set(ylim=(-0.03, 1.03), ylabel="share of right answers", xlabel="step")
    axes.set_title(_name(watched))
    axes.legend(frameon=False, loc="lower right", fontsize=7)
    _step_axis(axes)
    return figure


def mean_frequency(watched: Dynamics) -> Figure:
    """The mean frequency that the heads of each layer use at some moments of training, and every head's at the end."""
    heads: Any = from_the_end(watched)
    steps = np.unique(heads["step"])
    moments = steps[np.unique(np.linspace(0, len(steps) - 1, MOMENTS).round().astype(int))]
    figure = new_figure(5.6, 3.2)
    axes = figure.subplots()
    for step, colour in zip(moments, TIME(np.linspace(0.1, 1.0, len(moments))), strict=True):
        middle = heads[heads["step"] == step].groupby("layer")["mean_frequency"].median()
        axes.plot(middle.index, middle, color=colour, lw=2.0 if step == steps[-1] else 1.0, label=f"step {step:,}")
    last = heads[heads["step"] == steps[-1]]
    for kind, colour, mark in (
        ("where", WHERE, "o"),
        ("what", WHAT, "s"),
        ("mixed", NEITHER, "D"),
        ("unfocused", NEITHER, "x"),
    ):
        those = last[last["kind"] == kind]
        if len(those):
            axes.plot(
                those["layer"], those["mean_frequency"], mark, color=colour, ms=5,
                mec=colour if mark == "x" else "white", mew=0.6, zorder=3, label=kind, gid=kind,
            )  # fmt: skip
    axes.set(xlabel="layer", ylabel="mean frequency ID, fast to slow", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_title(_name(watched))
    return figure


def from_the_end(watched: Dynamics) -> Any:
    """The heads seen from the last token, in order."""
    return watched.heads.query("query == 0").sort_values(["step", "layer", "head"])


def _step_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _paler(colour: str, strength: float) -> str:
    """A colour mixed with white, not transparent: bars lie on each other."""
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return to_hex((red, green, blue))


def _name(watched: Dynamics) -> str:
    return watched.name
