"""Figures of sweeps: accuracy by angle and by position of the answer, trajectories of keys and queries, scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...display.style import INK, NEITHER, TIME, WHAT, WHERE, new_figure
from .sweep import FREQUENCIES, Sweep, angle_of

PLACE = mpl.colormaps["plasma"]
COLOURS = {
    "index": WHERE,
    "retrieval": WHAT,
    "induction": "#009E73",
    "induction, angles (0, theta)": "#CC79A7",
    "induction, 8 symbols": NEITHER,
}
SHOWN_OVER_TRAINING = {"index": 13, "retrieval": 7}  # just too slow, and just too fast
SHOWN_BY_POSITION = {"index": (9, 10, 11, 12, 13), "retrieval": (7, 8, 9, 10, 11)}


def accuracy_by_angle(made: Sweep) -> Figure:
    """Accuracy by angle, at several steps of training and after it, with the range over seeds."""
    figure = new_figure(7.4, 5.6)
    panels = figure.subplots(2, 2, sharey=True).flatten()
    for axes, setting in zip(panels, ("index", "retrieval"), strict=False):
        training: Any = made.training[made.training["setting"] == setting]
        steps = sorted(training["step"].unique())[1::6]
        for step, colour in zip(steps, TIME(np.linspace(0.1, 0.9, len(steps))), strict=True):
            mean = training[training["step"] == step].groupby("angle")["accuracy"].mean()
            axes.plot(mean.index, mean, color=colour, lw=0.9, label=f"step {step}")
        _with_seeds(axes, made.members, setting, "accuracy", COLOURS[setting], "after training")
        axes.set_title(f"{setting.capitalize()} during training")
    for setting in ("index", "retrieval"):
        _with_seeds(panels[2], made.members, setting, "accuracy", COLOURS[setting], setting)
    panels[2].set_title("The two tasks need different angles")
    for setting in [name for name in COLOURS if name.startswith("induction")]:
        _with_seeds(panels[3], made.members, setting, "accuracy", COLOURS[setting], setting.replace("theta", "θ"))
    panels[3].set_title("Partial induction with one angle and two")
    for axes in panels:
        _angle_axis(axes)
        axes.set(ylim=(-0.03, 1.03))
        axes.legend(frameon=False, fontsize=6.5)
    for axes in panels[::2]:
        axes.set_ylabel("accuracy, mean and range over seeds")
    return figure


def accuracy_by_position(made: Sweep) -> Figure:
    """Accuracy by position of the answer, at angles that are just too slow or too fast for the task."""
    figure = new_figure(7.4, 3.2)
    for axes, (setting, shown) in zip(figure.subplots(1, 2, sharey=True), SHOWN_BY_POSITION.items(), strict=True):
        positions: Any = made.positions[made.positions["setting"] == setting]
        shown = [number for number in shown if number in set(positions["frequency"])]
        for number, colour in zip(shown, TIME(np.linspace(0.1, 0.9, len(shown))), strict=True):
            groups = positions[positions["frequency"] == number].groupby("place")["accuracy"]
            name = f"ID {number} ({angle_of(number):.3f})"
            axes.errorbar(
                groups.mean().index, groups.mean(), groups.sem().fillna(0), color=colour, lw=1.2, marker="o", ms=2.5,
                capsize=1.5, elinewidth=0.7, label=name,
            )  # fmt: skip
        axes.set(title=setting.capitalize(), xlabel="position of the answer; below: frequency ID (angle)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    figure.axes[0].set(ylabel="accuracy, mean and standard error over seeds", ylim=(0, 1.03))
    return figure


def accuracy_over_training(made: Sweep) -> Figure:
    """Figures 2A and 2B: accuracy over training, one line per angle, with the range over seeds."""
    figure = new_figure(7.4, 3.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, setting in zip(panels, ("index", "retrieval"), strict=True):
        training: Any = made.training[made.training["setting"] == setting]
        for number, seen in training.groupby("frequency"):
            over = seen.groupby("step")["accuracy"]
            colour = PLACE((int(number) - 1) / FREQUENCIES)
            axes.fill_between(over.min().index, over.min(), over.max(), color=colour, alpha=0.15, lw=0)
            axes.plot(over.mean().index, over.mean(), color=colour, lw=0.9, gid=f"ID {number}")
        axes.set(title=setting.capitalize(), xlabel="step", ylim=(-0.03, 1.03))
    panels[0].set_ylabel("accuracy, mean and range over seeds")
    shades = ScalarMappable(Normalize(1, FREQUENCIES), PLACE)
    figure.colorbar(shades, ax=panels, label="frequency ID, fast to slow", shrink=0.9)
    return figure


def positions_over_training(made: Sweep) -> Figure:
    """Figure 3A: accuracy by position of the answer at several steps of training, at one angle per task."""
    figure = new_figure(7.4, 3.2)
    for axes, (setting, number) in zip(figure.subplots(1, 2, sharey=True), SHOWN_OVER_TRAINING.items(), strict=True):
        axes.set(title=f"{setting.capitalize()}, ID {number} (angle {angle_of(number):.3f})", ylim=(0, 1.03))
        axes.set(xlabel="position of the answer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if made.epochs is None:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
            continue
        epochs: Any = made.epochs[(made.epochs["setting"] == setting) & (made.epochs["frequency"] == number)]
        steps = sorted(epochs["step"].unique())
        for step, colour in zip(steps, TIME(np.linspace(0.1, 0.95, len(steps))), strict=True):
            mean = epochs[epochs["step"] == step].groupby("place")["accuracy"].mean()
            axes.plot(mean.index, mean, "o-", color=colour, lw=1.1, ms=2.5, label=f"step {step:,}", gid=f"step {step}")
    figure.axes[0].set_ylabel("accuracy, mean over seeds")
    figure.axes[1].legend(frameon=False, fontsize=6.5, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def trajectories(made: Sweep) -> Figure:
    """Keys and queries of one head in the rotating plane, from the first step to the last."""
    moving: Any = made.trajectories
    shown = list(moving[["setting", "frequency"]].drop_duplicates().itertuples(index=False, name=None))
    figure = new_figure(2.6 * len(shown), 3.1)
    for axes, (setting, number) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        those = moving[(moving["setting"] == setting) & (moving["frequency"] == number)]
        _paths(axes, those[those["what"] == "keys"], "s", None if setting == "index" else mpl.colormaps["hsv"])
        _paths(axes, those[those["what"] == "queries"], "o", PLACE if setting == "index" else mpl.colormaps["hsv"])
        axes.set(aspect="equal", adjustable="datalim")
        axes.set_title(f"{setting.capitalize()}, ID {number} (angle {angle_of(number):.3f})")
        axes.axhline(0, color="#DDDDDD", lw=0.6, zorder=0)
        axes.axvline(0, color="#DDDDDD", lw=0.6, zorder=0)
    figure.supxlabel(
        "squares: keys; circles: queries, coloured by what they ask for; lines: their paths from initialisation near 0",
        fontsize=7, color="#666666",
    )  # fmt: skip
    return figure


def behaviour(made: Sweep) -> Figure:
    """Both scores and accuracy by angle, and accuracy against the difference of the two scores."""
    figure = new_figure(7.4, 5.6)
    panels = figure.subplots(2, 2).flatten()
    for axes, setting in zip(panels, ("index", "retrieval", "induction, angles (0, theta)"), strict=False):
        for name, colour, words in (("positional", WHERE, "positional (where)"), ("symbolic", WHAT, "symbolic (what)")):
            _with_seeds(axes, made.members, setting, name, colour, words)
        _with_seeds(axes, made.members, setting, "accuracy", INK, "accuracy", lw=0.8)
        _angle_axis(axes)
        axes.set(ylim=(-0.03, 1.03), ylabel="score, accuracy")
        axes.set_title(f"Trained on {setting}".replace("theta", "θ"))
        axes.legend(frameon=False, fontsize=6.5, loc="center right")  # loc="best" is slow
    last = panels[3]
    for setting, mark in (
        ("index", "o"),
        ("retrieval", "s"),
        ("induction", "^"),
        ("induction, angles (0, theta)", "D"),
    ):
        those: Any = made.members[made.members["setting"] == setting]
        difference = those["positional"] - those["symbolic"]
        name = setting.replace("theta", "θ")
        last.scatter(
            difference, those["accuracy"], s=9, marker=mark, color=COLOURS[setting], alpha=0.6, lw=0, label=name
        )
    last.set(
        xlabel="what ← positional score - symbolic score → where",
        ylabel="accuracy",
        ylim=(-0.03, 1.03),
        xlim=(-1.05, 1.05),
    )
    last.set_title("Accuracy against scores")
    last.legend(frameon=False, fontsize=6.5, loc="upper center")
    return figure


def by_task(made: Sweep) -> Sweep:
    """The same with the settings of Transformers named like those of lookup tables."""
    named = {
        name: table.assign(setting=table["setting"].str.removesuffix(", Transformer"))
        for name, table in vars(made).items()
        if isinstance(table, pd.DataFrame) and "setting" in table
    }
    return replace(made, **named)


FIGURES: dict[str, Callable[[Sweep], Figure]] = {
    "accuracy": accuracy_by_angle,
    "training": accuracy_over_training,
    "places": accuracy_by_position,
    "places-training": positions_over_training,
    "trajectories": trajectories,
    "behaviour": behaviour,
}


def _with_seeds(axes: Axes, members: Any, setting: str, column: str, colour: str, name: str, lw: float = 1.6) -> None:
    """The mean over seeds as a line, the range over seeds as bars."""
    groups = members[members["setting"] == setting].groupby("angle")[column]
    if not len(groups):
        return
    mean = groups.mean()
    axes.errorbar(
        mean.index, mean, np.stack([mean - groups.min(), groups.max() - mean]), color=colour, lw=lw, marker="o", ms=2.2,
        capsize=1.2, elinewidth=0.7, label=name,
    )  # fmt: skip


def _angle_axis(axes: Axes) -> None:
    """Angles on a logarithmic axis, fast ones on the left, with frequency IDs on top."""
    axes.set_xscale("log")
    axes.set_xlim(1.15, angle_of(FREQUENCIES) / 1.15)
    axes.set_xlabel("angle θ; above: frequency ID", labelpad=1)
    top = axes.secondary_xaxis("top")
    ids = (1, 5, 9, 13, 17, 21, 25, 29, 32)
    top.set_xticks([angle_of(number) for number in ids], [str(number) for number in ids], fontsize=6, minor=False)
    top.tick_params(length=0, which="both", pad=0)


def _paths(axes: Axes, moving: Any, mark: str, colours: Any) -> None:
    """The trajectory of every token, coloured by its symbol, and its last point."""
    wide = moving.pivot(index="word", columns="step", values=["x", "y"])
    paths = np.stack([wide["x"], wide["y"]], -1)  # token, step, (x, y)
    symbols = [word.rstrip("0123456789") or word.zfill(3) for word in wide.index]
    shares = np.unique(symbols, return_inverse=True)[1] / len(set(symbols))
    shade = NEITHER if colours is None else colours(0.9 * shares)
    axes.add_collection(LineCollection(list(paths), colors=shade, linewidths=0.4, alpha=0.35))
    axes.scatter(*paths[:, -1].T, c=shade, marker=mark, s=14, edgecolors="white", linewidths=0.3, zorder=3)
