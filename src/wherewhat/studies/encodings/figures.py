"""Figures of positional encodings side by side: those of one size and dropout, and those that compare them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...display.style import INK, LAYERS, NEITHER, WHAT, WHERE, name_figure, new_figure
from .published import PUBLISHED
from .settings import CLEAN, ENCODINGS, FLAWED, FLAWS, MAIN, TIMES, encodings, setting_label, variant_label
from .tables import Encodings, rows_with

TASKS = {"distance": WHERE, "count": WHAT}
LINES = ("-", "--", ":", "-.")
COLOURS: dict[str, str] = dict(zip(MAIN, (WHERE, NEITHER, "#009E73", WHAT), strict=True))


def accuracies(made: Encodings) -> Figure:
    """Accuracy and steps to 90 % of every encoding, one dot per seed, beside the published numbers."""
    figure = new_figure(7.4, 4.0)
    left, right = figure.subplots(1, 2, sharey=True)
    runs = rows_with(made.runs, variant=CLEAN)
    names = [name for name in ENCODINGS if name in set(runs["encoding"])][::-1]
    for task, colour in TASKS.items():
        shift = 0.15 if task == "distance" else -0.15
        some = runs[runs["task"] == task]
        places = [names.index(name) + shift for name in some["encoding"]]
        left.scatter(some["accuracy"], places, s=14, color=colour, label=task)
        right.scatter(some["steps_to_90"], places, s=14, color=colour)
        reported = [
            (value, names.index(name) + shift)
            for (name, of), value in PUBLISHED.items()
            if of == task and name in names and isinstance(value, float)
        ]
        if reported:
            left.scatter(*zip(*reported, strict=True), marker="|", s=60, color=colour, label=f"{task}, published")
    left.set(yticks=range(len(names)), yticklabels=names, xlabel="accuracy", xlim=(0, 1.03))
    right.set(xlabel="steps to 90 % (no dot: never reached)")
    left.legend(frameon=False, fontsize=6.5, loc="lower left")
    name_figure(figure, "What each encoding learns", "one dot per seed")
    return figure


def ablations(made: Encodings) -> Figure:
    """The drop of accuracy without each head: one violin per layer, all seeds together."""
    names = [name for name in (*MAIN, "mla", "rope, 4 heads") if name in set(made.heads["encoding"])]
    figure = new_figure(1.6 * len(names) + 0.6, 4.6)
    panels = figure.subplots(2, len(names), sharey=True, squeeze=False)
    for axes, task in zip(panels, TASKS, strict=True):
        for one, name in zip(axes, names, strict=True):
            heads = rows_with(made.heads, encoding=name, task=task, variant=CLEAN)
            _violins(one, heads)
            one.set_title(name if task == "distance" else "")
        axes[0].set_ylabel(f"{task}: drop without one head")
    name_figure(
        figure,
        "What a model loses without each of its heads",
        "head output set to zero; one dot per head and seed",
    )
    return figure


def _violins(axes: Axes, heads: pd.DataFrame) -> None:
    for layer, some in heads.groupby("layer"):
        at, drops = float(layer), some["zero"].to_numpy()  # type: ignore[arg-type]
        colour = LAYERS(at / 3)
        if np.ptp(drops) > 0:
            for body in axes.violinplot(drops, [at], widths=0.8, showextrema=False)["bodies"]:  # type: ignore[union-attr]
                body.set(facecolor=colour, alpha=0.35, edgecolor="none")
        axes.scatter(at + np.linspace(-0.15, 0.15, len(drops)), drops, s=5, color=colour)
    layers = sorted(heads["layer"].unique())
    axes.set(xlim=(-0.6, len(layers) - 0.4), ylim=(-0.1, 1.0), xticks=layers, xlabel="layer")


def variants(made: Encodings) -> Figure:
    """Accuracy on distance and largest drop, by number of heads with RoPE, by layers with RoPE, and by flaw."""
    figure = new_figure(7.4, 3.4)
    heads, times, flaws = figure.subplots(1, 3, sharey=True, width_ratios=(1, 1.2, 2))
    by_heads = {"nope": "0", "rope, 1 head": "1", "rope, 2 heads": "2", "rope, 4 heads": "4", "rope": "8"}
    _bars(heads, made.runs, {label: (name, CLEAN) for name, label in by_heads.items()})
    heads.set(xlabel="heads with RoPE", ylabel="accuracy; largest drop")
    _bars(times, made.runs, {"all": ("rope", CLEAN)} | {when: ("rope", when) for when in TIMES})
    times.set_xlabel("layers with RoPE")
    variants = (CLEAN, *FLAWS, FLAWED)
    bars = {f"{name}, {variant_label(one)}": (name, one) for name in ("rope", "alibi") for one in variants}
    _bars(flaws, made.runs, bars)
    flaws.set_xlabel("one flaw of the published code at a time, and all of them")
    figure.legend(*heads.get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False, fontsize=6.5)
    name_figure(
        figure,
        "Distance: heads, layers and flaws",
        "bars: means over seeds; one dot per seed",
    )
    return figure


def _bars(axes: Axes, runs: pd.DataFrame, wanted: dict[str, tuple[str, str]]) -> None:
    shown = []
    for label, (name, variant) in wanted.items():
        some = rows_with(runs, encoding=name, variant=variant, task="distance")
        if len(some):
            at = len(shown)
            shown.append(label)
            for column, shift, colour, words in (
                ("accuracy", -0.2, WHERE, "accuracy"),
                ("largest", 0.2, NEITHER, "largest drop without one head"),
            ):
                axes.bar(at + shift, some[column].mean(), 0.36, color=colour, label=words if at == 0 else None)
                axes.scatter([at + shift] * len(some), some[column], s=5, color=INK, zorder=3)
    axes.set_xticks(range(len(shown)), shown, rotation=60, ha="right", fontsize=6.5)
    axes.set_ylim(0, 1.05)


def optimisation(made: Encodings) -> Figure:
    """Training curves, the largest share of one head in the gradient, and steps to 90 % against conditioning."""
    figure = new_figure(7.4, 2.8)
    learning, share, condition = figure.subplots(1, 3)
    for (name, colour), line in zip(COLOURS.items(), LINES, strict=True):
        curve = rows_with(made.training, encoding=name, task="distance", variant=CLEAN)
        for axes, column in ((learning, "accuracy"), (share, "largest_share")):
            mean = curve.groupby("step")[column].mean()
            axes.plot(mean.index, mean, line, color=colour, lw=1.1, label=name)
    learning.set(xlabel="step", ylabel="accuracy, distance", ylim=(0, 1.03))
    share.set(xlabel="step", ylabel="largest share of one head in the gradient")
    learning.legend(frameon=False, fontsize=6.5, loc="center right")
    known = rows_with(made.runs, task="distance", variant=CLEAN).dropna(subset=["steps_to_90"])
    for name, some in known.groupby("encoding"):
        condition.scatter(some["condition"], some["steps_to_90"], s=10, color=COLOURS.get(str(name), "#CCCCCC"))
        if name in (*MAIN, "mla", "t5-plain", "learned"):
            at = some["condition"].max(), some["steps_to_90"].mean()
            condition.annotate(str(name), at, (4, -2), textcoords="offset points", fontsize=6)
    condition.set(xlabel="condition number at initialisation", ylabel="steps to 90 %")
    name_figure(
        figure,
        "Optimisation, distance",
        "curves: means over seeds; middle: share in the gradient of all queries and keys",
    )
    return figure


def sizes(made: Encodings) -> Figure:
    """Accuracy and largest drop of every encoding on both tasks, one column of dots per size and dropout."""
    settings = made.by_setting()
    runs = rows_with(made.runs, variant=CLEAN)
    names = [name for name in encodings(16, 256) if name in set(runs["encoding"])]
    figure = new_figure(7.4, 5.6)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, column in zip(panels, ("accuracy", "largest"), strict=True):
        for axes, task in zip(row, TASKS, strict=True):
            for at, (setting, some) in enumerate(settings.items()):
                shown = rows_with(some.runs, variant=CLEAN, task=task)
                shift = 0.8 * (at + 0.5) / len(settings) - 0.4
                places = [names.index(name) + shift for name in shown["encoding"]]
                colour = LAYERS(at / max(1, len(settings) - 1))
                axes.scatter(places, shown[column], s=9, color=colour, label=setting_label(*setting))
            axes.set(xticks=range(len(names)), ylim=(-0.03, 1.03))
            axes.set_xticklabels(names, rotation=60, ha="right", fontsize=6.5)
        row[0].set_ylabel("accuracy" if column == "accuracy" else "largest drop without one head")
    for axes, task in zip(panels[0], TASKS, strict=True):
        reported = [(names.index(name), value) for (name, of), value in PUBLISHED.items()
                    if of == task and name in names and isinstance(value, float)]  # fmt: skip
        if reported:
            axes.scatter(*zip(*reported, strict=True), marker="_", s=120, color=INK, label="published")
        axes.set_title(task)
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize=6.5
    )
    name_figure(figure, "Small to published", "one dot per seed")
    return figure


def curves(made: Encodings) -> Figure:
    """Accuracy over training on distance, one panel per size and dropout, beside the published accuracy of RoPE."""
    settings = made.by_setting()
    figure = new_figure(7.4, 2.6)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, (setting, some) in zip(panels, settings.items(), strict=True):
        for (name, colour), line in zip(COLOURS.items(), LINES, strict=True):
            curve = rows_with(some.training, encoding=name, task="distance", variant=CLEAN)
            for _, one in curve.groupby("seed"):
                axes.plot(one["step"], one["accuracy"], line, color=colour, lw=0.9)
            axes.plot([], [], line, color=colour, label=name)
        axes.axhline(float(PUBLISHED["rope", "distance"]), color=INK, lw=0.6, ls=(0, (1, 2)), label="rope, published")
        axes.set(xlabel="step", ylim=(0, 1.03))
        axes.set_title(setting_label(*setting).replace(", ", ",\n"), fontsize=6.5)
    panels[0].set_ylabel("accuracy, distance")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=5, frameon=False, fontsize=6.5
    )
    name_figure(
        figure, "Learning to tell distances", "accuracy on training batches, with dropout if any; one line per seed"
    )
    return figure


def of_first_setting(draw: Callable[[Encodings], Figure]) -> Callable[[Encodings], Figure]:
    """A figure of the first size and dropout in the tables."""
    return lambda made: draw(next(iter(made.by_setting().values())))


FIGURES = {
    "accuracy": of_first_setting(accuracies),
    "ablation": of_first_setting(ablations),
    "variants": of_first_setting(variants),
    "optimisation": of_first_setting(optimisation),
    "sizes": sizes,
    "curves": curves,
}
