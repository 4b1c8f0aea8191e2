"""Figures of rotation geometry: planes in use, queries and keys on one of them, and discrepancy over length."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...display.style import INK, NEITHER, WHAT, WHERE, name_figure, new_figure, save_drawn
from ..lengths.figures import length_curves
from ..lengths.lengths import Lengths
from .geometry import Geometry
from .paper import MultihopResults
from .published import mean_frequencies

STEPS = mpl.colormaps["plasma"]
MOST_POINTS = 400  # drawn of each kind


def geometry_figure(found: Geometry, task: str) -> Figure:
    """Which frequencies each layer uses, and keys and queries on the plane whose keys are most aligned."""
    figure = new_figure(7.4, 3.3)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    _use(left, found, task)
    _plane(right, found)
    name_figure(figure, f"{task}: rotation planes in use")
    return figure


def draw_multihop(made: MultihopResults, folder: Path) -> None:
    """The discrepancy, and for the first run of each task its planes in use and its accuracy at greater lengths."""
    results = folder / "results"
    save_drawn(results / "dynamics-discrepancy.png", lambda: discrepancy_figure(made.discrepancy))
    for task, runs in made.test.groupby("task"):
        run = folder / f"{task}-{runs['seed'].min()}"
        held, far = Geometry.load(run / "geometry"), Lengths.load(run / "lengths")
        save_drawn(results / f"dynamics-geometry-{task}.png", partial(geometry_figure, held, str(task)))
        save_drawn(results / f"dynamics-lengths-{task}.png", partial(length_curves, far, str(task)))


def _use(axes: Axes, found: Geometry, task: str) -> None:
    first: Any = found.use.query("head == 0")
    shares: Any = first.pivot(index="layer", columns="frequency", values="largest").clip(lower=0)
    shares = shares.div(shares.sum(axis=1), axis=0)
    edges = (0.5, shares.shape[1] + 0.5, -0.5, len(shares) - 0.5)
    axes.imshow(shares, aspect="auto", cmap="Greys", origin="lower", extent=edges)
    mean = found.heads.query("head == 0")
    axes.plot(mean["mean_frequency"], mean["layer"], "o", color=WHAT, ms=4, mec="white", label="mean", gid="mean")
    if published := mean_frequencies(task):
        axes.plot(published, range(len(published)), "x", color=WHERE, ms=4, label="published mean", gid="published")
    axes.set(xlabel="frequency ID, fast to slow", ylabel="layer", title="Share of the largest logits")
    axes.legend(frameon=False, fontsize=6.5, loc="lower right")


def _plane(axes: Axes, found: Geometry) -> None:
    drawn: Any = None
    head = found.heads.nlargest(1, "concentration").to_dict("records")[0]
    points: Any = found.points.query(f"layer == {head['layer']} and head == {head['head']}")
    for what, many, mark in (("key", "keys", "s"), ("query", "queries", "o")):
        those = points.query(f"what == '{what}'").head(MOST_POINTS)
        x, y = (those[name] / np.hypot(points["x"], points["y"])[points["what"] == what].max() for name in "xy")
        colour: Any = {"color": NEITHER} if what == "key" else {"c": those["steps"], "cmap": STEPS}
        drawn = axes.scatter(x, y, s=10, marker=mark, lw=0, alpha=0.8, label=many, gid=what, **colour)
    axes.figure.colorbar(drawn, ax=axes, label="requested distance", shrink=0.8)
    axes.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[])
    axes.set_title(f"Layer {head['layer']}, frequency {head['frequency']} (angle {head['angle']:.2g})")
    axes.text(
        0, -0.06, f"keys concentrated {head['concentration']:.3f}; slope of the queries {head['slope']:.2f} angles per "
        f"step\n(fan {head['fan']:.3f})", transform=axes.transAxes, va="top", fontsize=6.5,
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=6.5, loc="upper left")


def discrepancy_figure(curves: pd.DataFrame) -> Figure:
    """The smallest and largest discrepancy among inputs of each length, and the bounds as printed."""
    figure = new_figure(7.4, 3.0)
    for axes, mechanism in zip(figure.subplots(1, 2), ("index", "retrieval"), strict=True):
        those: Any = curves.query(f"mechanism == '{mechanism}'")
        for (angle, seen), shade in zip(those.groupby("angle", sort=False), (INK, WHAT), strict=False):
            name = f"θ = {angle:.2g}"
            axes.plot(seen["length"], seen["printed"], color=shade, lw=1.2, label=f"{name}: bound", gid="printed")
            for side, mark, filling in (("smallest", "v", shade), ("largest", "^", "white")):
                axes.plot(
                    seen["length"], seen[side], mark, color=shade, mfc=filling, mew=0.6, ms=3, gid=side,
                    label=f"{name}: {side} input",
                )  # fmt: skip
        axes.set(xscale="log", xlabel="tokens", title=f"{mechanism.capitalize()}: lead of the winner")
        axes.legend(frameon=False, fontsize=6, loc="lower left" if mechanism == "index" else "lower right")
    figure.axes[0].set(yscale="log", ylabel="logit minus its best rival")
    return figure
