"""Figures of the paper on learning dynamics: our runs beside the published curves, rotation planes, discrepancy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...display.style import INK, LOOKS, NEITHER, TIME, WHAT, WHERE, name_figure, new_figure, save_drawn
from ...words import count
from ..dynamics.result import GAMMAS
from ..lengths.paper import TRAINED_TOKENS, published_lengths
from .comparison import best_or_last, published_purity
from .geometry import Geometry
from .paper import MultihopResults
from .published import mean_frequencies, published
from .runs import RECIPES, runs_in

STEPS = mpl.colormaps["plasma"]
FOLLOWED = 0.9  # queries of a head form a fan if they follow one slope at least this closely
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
    """Every figure of the paper that can be made from the tables, for each task and recipe with finished runs."""
    figures: dict[str, Callable[[], Figure]] = {"discrepancy": lambda: discrepancy_figure(made.discrepancy)}
    for task, recipe in made.heads[["task", "recipe"]].drop_duplicates().itertuples(index=False, name=None):
        key = next(key for key, one in RECIPES.items() if one.words == recipe)
        for name, draw in OF_RUNS.items():
            figures[f"{name}-{task}-{key}"] = partial(draw, made, task, recipe)
    for run in made.geometry[["task", "recipe", "seed"]].drop_duplicates().itertuples(index=False, name=None):
        for planned in (one for one in runs_in(folder) if (one.task, one.recipe.words, one.seed) == run):
            held = folder / planned.name / "geometry-best"
            if planned.seed == 0 and held.is_dir():
                figures[f"geometry-{planned.task}-{planned.key}"] = partial(
                    geometry_figure, Geometry.load(held), planned.task
                )
    for name, drawing in figures.items():
        save_drawn(folder / "results" / f"dynamics-{name}.png", drawing)


def scores_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Figures 2B and 6: both scores of every layer over training, as published (black) and as a band over seeds."""
    heads: Any = _of(made.heads, task, recipe).query("query == 0 and head == 0")
    known: Any = published("dynamics-scores").query(f"task == '{task}'")
    figure = new_figure(8.0, 5.2)
    for layer, axes in enumerate(figure.subplots(3, 4, sharex=True, sharey=True).flatten()):
        for score, look in LOOKS.items():
            _band(axes, heads[heads["layer"] == layer], score, look.colour, look.word)
            there = known[known["layer"] == layer]
            axes.plot(there["step"], there[score], color=INK, lw=0.8, ls=look.line, gid=f"published {score}")
        axes.set_title(f"layer {layer}", fontsize=8, fontweight="normal", pad=3)
        axes.set(ylim=(-0.03, 1.03))
    _name(
        figure,
        made,
        task,
        recipe,
        "scores over training (figures 2B, 6)",
        "published: solid positional, dashed symbolic",
    )
    return figure


def hops_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Figure 2A: accuracy over training by number of hops, as published (black) and as a band over seeds."""
    seen: Any = _of(made.accuracy, task, recipe)
    known: Any = published("dynamics-accuracy").query(f"task == '{task}'")
    figure = new_figure(8.0, 2.4)
    for hops, axes in enumerate(figure.subplots(1, 4, sharey=True), 1):
        _band(axes, seen[seen["hops"] == hops], "accuracy", WHAT, "ours")
        there = known[known["hops"] == str(hops)]
        axes.plot(there["step"], there["accuracy"], color=INK, lw=0.8, gid="published")
        axes.set(title=f"{hops} hop{'s' * (hops > 1)}", xlabel="step")
    figure.axes[0].set_ylabel("accuracy")
    _name(
        figure,
        made,
        task,
        recipe,
        "accuracy over training (figure 2A)",
        "published on the test set, ours on validation",
    )
    return figure


def purity_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Figures 2C and 7: from which step on each head is pure, for every gamma; published above our seeds."""
    ours: Any = _of(made.purity, task, recipe)
    heads: Any = made.heads
    end = int(heads["step"].max())
    seeds = sorted(_of(made.heads, task, recipe)["seed"].unique())
    figure = new_figure(8.0, 4.4)
    rows = [("published", published_purity(task)), *((f"seed {seed}", ours[ours["seed"] == seed]) for seed in seeds)]
    height = 0.84 / len(rows)
    for axes, gamma in zip(figure.subplots(1, len(GAMMAS), sharey=True), GAMMAS, strict=True):
        for place, (name, table) in enumerate(rows):
            for kind, look in zip(("where", "what"), LOOKS.values(), strict=True):
                pure: Any = table.query(f"gamma == {gamma} and kind == '{kind}'")
                axes.barh(
                    pure["layer"] - 0.42 + height * (place + 0.5), end - pure["step"], left=pure["step"],
                    height=0.9 * height, color=look.colour, alpha=1.0 if place else 0.55, lw=0.8 * (not place),
                    edgecolor=INK, gid=f"{name} {kind} {gamma}",
                )  # fmt: skip
        axes.set(xlim=(0, end), xlabel="step", title=f"gamma = {gamma}" + " (figure 2C)" * (gamma == GAMMAS[0]))
        axes.set(ylim=(11.6, -0.6), yticks=range(12))
    figure.axes[0].set_ylabel("layer")
    order = ", ".join(name for name, _ in rows[1:])
    hint = f"in each layer, from above: published (framed), {order}; orange: where, blue: what"
    _name(figure, made, task, recipe, "pure from when to the end (figures 2C, 7)", hint)
    return figure


def lengths_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Figure 5B: accuracy by added tokens, as published (black), of the best checkpoint and of the last one."""
    far: Any = _of(made.lengths, task, recipe).query("hops == 0")
    far = far.assign(step=far["length"] - TRAINED_TOKENS)
    known = published_lengths()
    figure = new_figure(5.6, 3.2)
    axes = figure.subplots()
    axes.plot(known["added_tokens"], known[task], "o-", color=INK, lw=0.9, ms=2.5, label="published", gid="published")
    for moment, colour in (("last", NEITHER), ("best", WHAT)):
        _band(axes, far[far["moment"] == moment], "accuracy", colour, f"ours, {moment} checkpoint")
    axes.set(xscale="symlog", ylim=(-0.03, 1.03), xlabel="tokens added to the 17 of training", ylabel="accuracy")
    axes.legend(frameon=False, fontsize=7)
    _name(figure, made, task, recipe, "accuracy by length (figure 5B)", "")
    return figure


def use_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Figures 4C and 8: the largest query-key product of every frequency, by layer, as published and ours."""
    used: Any = best_or_last(_of(made.use, task, recipe).query("head == 0"))
    known: Any = published("frequency-use").query(f"task == '{task}'")
    figure = new_figure(8.0, 5.2)
    for layer, axes in enumerate(figure.subplots(3, 4, sharex=True).flatten()):
        there = known[known["layer"] == layer]
        axes.plot(there["frequency"], there["use"], color=INK, lw=0.9, gid="published")
        here = used[used["layer"] == layer].assign(step=lambda rows: rows["frequency"])
        _band(axes, here, "pairs", WHAT, "ours")
        mean = mean_frequencies(task)[layer]
        axes.set_title(f"layer {layer} (published mean ID {mean})", fontsize=7, fontweight="normal", pad=3)
    _name(
        figure,
        made,
        task,
        recipe,
        "frequency use (figures 4C, 8)",
        "x: frequency ID, fast to slow; y: largest product of a query and an earlier key",
    )
    return figure


def flow_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Figures 3A (number) and 3B (letter): the content that reaches each position, in one sequence and on average."""
    example: Any = best_or_last(_of(made.example, task, recipe))
    example = example[example["seed"] == example["seed"].min()]
    shares: Any = best_or_last(_of(made.flow, task, recipe))
    figure = new_figure(8.6, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=(2.1, 1))
    last = example["position"].max()
    for one in example.to_dict("records"):
        layer, at = one["layer"] + 1, one["position"]
        colour = WHAT if one["on_path"] else NEITHER
        left.text(at, layer, one["content"], ha="center", va="center", fontsize=6, color=colour)
        if one["on_path"] and one["attends"] != at:
            strong = 0.2 + 0.8 * one["weight"]
            left.plot([one["attends"], at], [layer - 0.8, layer - 0.25], color=colour, lw=0.8, alpha=strong)
    for one in example[example["layer"] == 0].to_dict("records"):
        left.text(one["position"], 0, one["token"], ha="center", va="center", fontsize=6, fontweight="bold")
    left.set(
        xlim=(-0.6, last + 0.6), ylim=(-0.6, example["layer"].max() + 1.6), xlabel="position", ylabel="after layer"
    )
    left.set_yticks(
        range(example["layer"].max() + 2), ["input", *map(str, range(example["layer"].max() + 1))], fontsize=6
    )
    left.set_title("One sequence: the token whose content is there")
    most = shares["hops"].max()
    mean = shares[shares["hops"] == most].groupby(["layer", "place"])["holds"].mean().unstack()
    right.stackplot(
        mean.index, *(mean[place] for place in (*range(most + 1), -1)), lw=0,
        colors=[*TIME(np.linspace(0.1, 1, most + 1)), "#DDDDDD"],
        labels=["itself", *(f"hop {hop}" for hop in range(1, most)), "answer", "another token"],
    )  # fmt: skip
    right.set(xlim=(0, mean.index.max()), ylim=(0, 1), xlabel="layer", ylabel=f"share of sequences of {most} hops")
    right.set_title("Held by the last position")
    right.legend(frameon=False, fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    _name(
        figure,
        made,
        task,
        recipe,
        "information flow (figure 3)",
        "blue: positions on the path; lines: where they attend most",
    )
    return figure


def rotating_figure(made: MultihopResults, task: str, recipe: str) -> Figure:
    """Our reading of figure 4A: per layer, alignment of the keys and slope of the queries on the plane used most."""
    held: Any = best_or_last(_of(made.geometry, task, recipe).query("head == 0")).assign(
        step=lambda rows: rows["layer"]
    )
    figure = new_figure(8.0, 2.6)
    for axes, (column, name) in zip(
        figure.subplots(1, 3),
        {
            "concentration": "alignment of the keys",
            "fan": "queries follow one slope",
            "slope": "slope, in angles",
        }.items(),
        strict=True,
    ):
        shown = held[held["fan"] > FOLLOWED] if column == "slope" else held  # elsewhere there is no slope
        _band(axes, shown, column, WHERE, "ours")
        axes.set(title=name, xlabel="layer", ylim=(-0.05, 1.25), xlim=(-0.5, 11.5))
    _name(figure, made, task, recipe, "keys and queries on the plane used most (figure 4)", "")
    return figure


OF_RUNS: dict[str, Callable[[MultihopResults, str, str], Figure]] = {
    "scores": scores_figure, "hops": hops_figure, "purity": purity_figure, "lengths": lengths_figure,
    "use": use_figure, "flow": flow_figure, "planes": rotating_figure,
}  # fmt: skip


def _of(table: pd.DataFrame, task: str, recipe: str) -> pd.DataFrame:
    known: Any = table
    return known[(known["task"] == task) & (known["recipe"] == recipe)]


def _band(axes: Axes, table: Any, column: str, colour: str, label: str) -> None:
    """The range over seeds as a band, and their mean as a line, by step."""
    if len(table):
        over = table.groupby("step")[column]
        axes.fill_between(over.min().index, over.min(), over.max(), color=colour, alpha=0.3, lw=0, gid=f"band {label}")
        axes.plot(over.mean().index, over.mean(), color=colour, lw=1.0, label=label, gid=f"mean {label}")


def _name(figure: Figure, made: MultihopResults, task: str, recipe: str, what: str, hint: str) -> None:
    heads: Any = _of(made.heads, task, recipe)
    seeds = int(heads["seed"].nunique())
    name_figure(figure, f"{task}: {what}", f"{recipe}, {count(seeds, 'seed')}. {hint}".strip())


def _use(axes: Axes, found: Geometry, task: str) -> None:
    first: Any = found.use.query("head == 0")
    shares: Any = first.pivot(index="layer", columns="frequency", values="largest").clip(lower=0)
    shares = shares.div(shares.sum(axis=1), axis=0)
    edges = (0.5, shares.shape[1] + 0.5, -0.5, len(shares) - 0.5)
    axes.imshow(shares, aspect="auto", cmap="Greys", origin="lower", extent=edges)
    mean = found.heads.query("head == 0")
    axes.plot(
        mean["softmax_mean_frequency"], mean["layer"], "o", color=WHAT, ms=4, mec="white", label="mean", gid="mean"
    )
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
