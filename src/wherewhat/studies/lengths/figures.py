"""Figures of accuracy by length: of a model of the lab with the lengths at which its heads lose their token, and of a
language model beside those of the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...display.style import INK, LOOKS, NEITHER, TIME, name_figure, new_figure, save_drawn
from ...prompts.one_hop import WORDINGS
from ...words import count
from .hop_lengths import Lengths
from .paper import PUBLISHED_MODELS, published_accuracy
from .text_lengths import TextLengths

MARKS = "osD^v<>P"
TASK_LOOKS = dict(zip(WORDINGS, LOOKS.values(), strict=True))  # number needs positions, letter needs symbols
MODEL_MARKS = "D^v"


def save_figure(found: Lengths | TextLengths, path: Path) -> None:
    """Write the figure of either result as .png, .pdf or .svg."""
    if isinstance(found, Lengths):
        save_drawn(path, lambda: length_curves(found, found.about["task"]))
    else:
        save_drawn(path, lambda: text_length_curves(found, found.name))


def length_curves(found: Lengths, task: str) -> Figure:
    """Accuracy by length, one line per number of hops, with the published accuracy; and the loss lengths of heads."""
    figure = new_figure(7.4, 3.0)
    left, right = figure.subplots(1, 2)
    _accuracy(left, found, task)
    _loss(right, found)
    sharpened = ", sharpened" * bool(found.about.get("sharpened"))
    figure.suptitle(f"{task}{sharpened}: accuracy by length", fontsize=10, x=0.01, ha="left")
    return figure


def text_length_curves(found: TextLengths, name: str) -> Figure:
    """Accuracy by window, with its interval and its spread over seeds; beside it the paper's models."""
    figure = new_figure(7.4, 3.2)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for task, look in TASK_LOOKS.items():
        rows = found.accuracy.query(f"task == '{task}'")
        left.fill_between(rows["window"], rows["low"], rows["high"], color=look.colour, alpha=0.15, lw=0)
        left.errorbar(
            rows["window"], rows["accuracy"], rows["spread"].fillna(0), color=look.colour, ls=look.line,
            marker=look.mark, ms=3.5, lw=1.3, elinewidth=0.8, capsize=2, label=task, gid=task,
        )  # fmt: skip
    for mark, (model, by_window) in zip(MODEL_MARKS, PUBLISHED_MODELS.items(), strict=True):
        for at, (task, look) in enumerate(TASK_LOOKS.items()):
            right.plot(
                list(by_window), [pair[at] for pair in by_window.values()], color=look.colour, ls=look.line, lw=0.7,
                marker=mark, mfc="white", ms=4.5, label=f"{model}, {task}", gid=f"{model} {task}",
            )  # fmt: skip
    windows = sorted(set(found.accuracy["window"]))
    _window_axes(left, name, windows)
    _window_axes(right, "Published", windows)
    left.set_ylabel("accuracy")
    left.legend(frameon=False, fontsize=6.5)
    right.legend(frameon=False, fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    name_figure(
        figure, "One hop as text", "bars: standard deviation over seeds; bands: 95 % intervals over all answers"
    )
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
            label=count(hops, "hop"), gid=f"hops {hops}",
        )  # fmt: skip
    if published := published_accuracy(task, whole["length"]):
        axes.plot(
            list(published), list(published.values()), "x", color=INK, ms=4, label="all, published, interpolated",
            gid="published",
        )  # fmt: skip
    axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="tokens", ylabel="accuracy", title="Accuracy")
    axes.legend(frameon=False, fontsize=6.5)


def _loss(axes: Axes, found: Lengths) -> None:
    """Heads that do not lose their token within the measured lengths have no mark."""
    loss = found.loss
    names = [f"{layer}.{head}" for layer, head in zip(loss["layer"], loss["head"], strict=True)]
    for name, mark, filling, offset in (("measured", "o", INK, -0.1), ("predicted", "D", "white", 0.1)):
        values = loss[name].replace(np.inf, np.nan)
        axes.plot(np.arange(len(loss)) + offset, values, mark, color=INK, mfc=filling, ms=4, label=name, gid=name)
    axes.set(yscale="log", xlabel="layer.head", ylabel="tokens", title="Attention on the next token is halved at")
    axes.set_xticks(np.arange(len(loss)), names, fontsize=6.5)
    axes.legend(frameon=False, fontsize=6.5)


def _window_axes(axes: Axes, title: str, windows: list[int]) -> None:
    axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="symbols in the window", title=title)
    axes.set_xticks(windows, list(map(str, windows)), fontsize=6.5)
    axes.minorticks_off()
