"""Frequency as a knob, drawn: what each angle learns, where it fails, how keys and queries move, what heads look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ..studies.canonical import BASE, FREQUENCIES, Sweeps
from ..studies.projection import Projection
from .figures import INK, NEITHER, TIME, WHAT, WHERE, new_figure

PLACE = mpl.colormaps["plasma"]
COLOURS = {
    "index": WHERE,
    "retrieval": WHAT,
    "induction": "#009E73",
    "induction, angles (0, theta)": "#CC79A7",
    "induction, 8 symbols": NEITHER,
}
SHOWN_BY_PLACE = {"index": (9, 10, 11, 12, 13), "retrieval": (7, 8, 9, 10, 11)}


def accuracy_by_angle(made: Sweeps) -> Figure:
    """Accuracy over the angle, at several moments of training and at the end, with the spread of the seeds."""
    figure = new_figure(7.4, 5.6)
    panels = figure.subplots(2, 2, sharey=True).flatten()
    for axes, setting in zip(panels, ("index", "retrieval"), strict=False):
        training: Any = made.training[made.training["setting"] == setting]
        steps = sorted(training["step"].unique())[1::6]
        for step, colour in zip(steps, TIME(np.linspace(0.1, 0.9, len(steps))), strict=True):
            mean = training[training["step"] == step].groupby("angle")["accuracy"].mean()
            axes.plot(mean.index, mean, color=colour, lw=0.9, label=f"step {step}")
        _with_seeds(axes, made.members, setting, "accuracy", COLOURS[setting], "at the end")
        axes.set_title(f"{setting.capitalize()}, over training")
    for setting in ("index", "retrieval"):
        _with_seeds(panels[2], made.members, setting, "accuracy", COLOURS[setting], setting)
    panels[2].set_title("The two tasks pull apart")
    for setting in [name for name in COLOURS if name.startswith("induction")]:
        _with_seeds(panels[3], made.members, setting, "accuracy", COLOURS[setting], setting.replace("theta", "θ"))
    panels[3].set_title("Partial induction, one angle and two")
    for axes in panels:
        _angle_axis(axes)
        axes.set(ylim=(-0.03, 1.03))
        axes.legend(frameon=False, fontsize=6.5)
    for axes in panels[::2]:
        axes.set_ylabel("accuracy, mean and range of seeds")
    return figure


def accuracy_by_place(made: Sweeps) -> Figure:
    """Accuracy over the place of the answer, where the angle is just too slow or too fast for the task."""
    figure = new_figure(7.4, 3.2)
    for axes, (setting, shown) in zip(figure.subplots(1, 2, sharey=True), SHOWN_BY_PLACE.items(), strict=True):
        positions: Any = made.positions[made.positions["setting"] == setting]
        shown = [number for number in shown if number in set(positions["frequency"])]
        for number, colour in zip(shown, TIME(np.linspace(0.1, 0.9, len(shown))), strict=True):
            groups = positions[positions["frequency"] == number].groupby("place")["accuracy"]
            name = f"ID {number} ({BASE ** (-(number - 1) / FREQUENCIES):.3f})"
            axes.errorbar(
                groups.mean().index, groups.mean(), groups.sem().fillna(0), color=colour, lw=1.2, marker="o", ms=2.5,
                capsize=1.5, elinewidth=0.7, label=name,
            )  # fmt: skip
        axes.set(title=setting.capitalize(), xlabel="place of the answer; below: frequency (angle)")
        axes.legend(frameon=False, fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    figure.axes[0].set(ylabel="accuracy, mean and standard error of seeds", ylim=(0, 1.03))
    return figure


def trajectories(made: Sweeps) -> Figure:
    """Keys and queries of one head in the plane that turns, from the first step to the last."""
    moving: Any = made.trajectories
    shown = list(moving[["setting", "frequency"]].drop_duplicates().itertuples(index=False, name=None))
    figure = new_figure(2.6 * len(shown), 3.1)
    for axes, (setting, number) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        those = moving[(moving["setting"] == setting) & (moving["frequency"] == number)]
        _paths(axes, those[those["what"] == "keys"], "s", None if setting == "index" else mpl.colormaps["hsv"])
        _paths(axes, those[those["what"] == "queries"], "o", PLACE if setting == "index" else mpl.colormaps["hsv"])
        axes.set(aspect="equal", adjustable="datalim")
        angle = BASE ** (-(number - 1) / FREQUENCIES)
        axes.set_title(f"{setting.capitalize()}, ID {number} (angle {angle:.3f})")
        axes.axhline(0, color="#DDDDDD", lw=0.6, zorder=0)
        axes.axvline(0, color="#DDDDDD", lw=0.6, zorder=0)
    figure.supxlabel(
        "squares: keys; circles: queries, coloured by what they ask for; lines: their way from the start near 0",
        fontsize=7, color="#666666",
    )  # fmt: skip
    return figure


def behaviour(made: Sweeps) -> Figure:
    """Frequency, then behaviour, then accuracy: both scores over the angle, and accuracy over which of them leads."""
    figure = new_figure(7.4, 5.6)
    panels = figure.subplots(2, 2).flatten()
    for axes, setting in zip(panels, ("index", "retrieval", "induction, angles (0, theta)"), strict=False):
        for name, colour, words in (("positional", WHERE, "looks at where"), ("symbolic", WHAT, "looks at what")):
            _with_seeds(axes, made.members, setting, name, colour, words)
        _with_seeds(axes, made.members, setting, "accuracy", INK, "accuracy", lw=0.8)
        _angle_axis(axes)
        axes.set(ylim=(-0.03, 1.03), ylabel="score, accuracy")
        axes.set_title(f"Trained on {setting}".replace("theta", "θ"))
        axes.legend(frameon=False, fontsize=6.5, loc="center right")  # the best place takes long to find
    last = panels[3]
    for setting, mark in (
        ("index", "o"),
        ("retrieval", "s"),
        ("induction", "^"),
        ("induction, angles (0, theta)", "D"),
    ):
        those: Any = made.members[made.members["setting"] == setting]
        lean = those["positional"] - those["symbolic"]
        name = setting.replace("theta", "θ")
        last.scatter(lean, those["accuracy"], s=9, marker=mark, color=COLOURS[setting], alpha=0.6, lw=0, label=name)
    last.set(xlabel="what ← positional - symbolic → where", ylabel="accuracy", ylim=(-0.03, 1.03), xlim=(-1.05, 1.05))
    last.set_title("Accuracy against behaviour")
    last.legend(frameon=False, fontsize=6.5, loc="upper center")
    return figure


FIGURES: dict[str, Callable[[Sweeps], Figure]] = {
    "accuracy": accuracy_by_angle,
    "places": accuracy_by_place,
    "trajectories": trajectories,
    "behaviour": behaviour,
}


def plane_projection(seen: Projection) -> Figure:
    """The query and all keys of a real head on one rotation plane: as contents, and turned to where they stand."""
    figure = new_figure(6.4, 3.5)
    for axes, title, keys, query in (
        (figure.add_subplot(1, 2, 1), "turned back: contents", seen.contents, seen.query_content),
        (figure.add_subplot(1, 2, 2), "as the head sees them", seen.keys, seen.query),
    ):
        sizes = 5 + 60 * seen.attention / max(float(seen.attention.max()), 1e-9)
        dots = axes.scatter(*keys.T, c=np.arange(len(keys)), s=sizes, cmap=PLACE, lw=0, alpha=0.8, gid="keys")
        tip = query * np.linalg.norm(keys, axis=1).max() / max(float(np.linalg.norm(query)), 1e-9)
        axes.plot([0, tip[0]], [0, tip[1]], color=INK, lw=1.2)
        axes.annotate("", tip, 0.9 * tip, arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.2})
        axes.set(aspect="equal", adjustable="datalim")
        axes.set_title(title)
    bar = figure.colorbar(dots, ax=figure.axes, shrink=0.7, aspect=30)
    bar.set_label("position of the key")
    figure.suptitle(
        f"{seen.model}, layer {seen.layer}, head {seen.head}, frequency {seen.frequency} (angle {seen.angle:.4f})",
        x=0.01, ha="left", fontweight="bold", fontsize=9,
    )  # fmt: skip
    figure.supxlabel(
        "arrow: the query, scaled to the longest key; larger dots draw more attention", fontsize=7, color="#666666"
    )
    return figure


def _with_seeds(axes: Axes, members: Any, setting: str, column: str, colour: str, name: str, lw: float = 1.6) -> None:
    """The mean over seeds as a line, their range as bars."""
    groups = members[members["setting"] == setting].groupby("angle")[column]
    if not len(groups):
        return
    mean = groups.mean()
    axes.errorbar(
        mean.index, mean, np.stack([mean - groups.min(), groups.max() - mean]), color=colour, lw=lw, marker="o", ms=2.2,
        capsize=1.2, elinewidth=0.7, label=name,
    )  # fmt: skip


def _angle_axis(axes: Axes) -> None:
    """The angle on a logarithmic axis, fast on the left, and the IDs on top."""
    axes.set_xscale("log")
    axes.set_xlim(1.15, BASE ** (-(FREQUENCIES - 1) / FREQUENCIES) / 1.15)
    axes.set_xlabel("angle θ; above: frequency ID", labelpad=1)
    top = axes.secondary_xaxis("top")
    ids = np.array([1, 5, 9, 13, 17, 21, 25, 29, 32])
    top.set_xticks(BASE ** (-(ids - 1) / FREQUENCIES), [str(number) for number in ids], fontsize=6, minor=False)
    top.tick_params(length=0, which="both", pad=0)


def _paths(axes: Axes, moving: Any, mark: str, colours: Any) -> None:
    """The way of every token, coloured by its symbol, and where it ends."""
    wide = moving.pivot(index="word", columns="step", values=["x", "y"])
    ways = np.stack([wide["x"], wide["y"]], -1)  # token, step, (x, y)
    symbols = [word.rstrip("0123456789") or word.zfill(3) for word in wide.index]
    shares = np.unique(symbols, return_inverse=True)[1] / len(set(symbols))
    shade = NEITHER if colours is None else colours(0.9 * shares)
    axes.add_collection(LineCollection(list(ways), colors=shade, linewidths=0.4, alpha=0.35))
    axes.scatter(*ways[:, -1].T, c=shade, marker=mark, s=14, edgecolors="white", linewidths=0.3, zorder=3)
