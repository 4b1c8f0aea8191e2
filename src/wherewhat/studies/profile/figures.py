"""Figures of a profile: the plane of its heads, heatmaps, frequencies and depth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ...core.kinds import HIGH, LITTLE, LOW
from ...display.style import INK, LAYERS, LOOKS, NEITHER, WHAT, WHERE, name_figure, new_figure
from ...errors import BadInput
from .result import Profile
from .roles import rests_on_little

TOWARDS_WHERE = LinearSegmentedColormap.from_list("where", ["#FFFFFF", WHERE])
TOWARDS_WHAT = LinearSegmentedColormap.from_list("what", ["#FFFFFF", WHAT])
BETWEEN = LinearSegmentedColormap.from_list("between", [WHAT, "#F4F4F2", WHERE])


def plane(profiles: Sequence[Profile]) -> Figure:
    """Every head at (positional, symbolic), coloured by layer; larger dots attend to fewer keys."""
    figure = new_figure(4.4 * len(profiles), 5.3)
    for axes, profile in zip(np.atleast_1d(figure.subplots(1, len(profiles))), profiles, strict=True):
        heads: Any = profile.heads.dropna(subset=["positional", "symbolic"])
        if heads.empty:
            raise BadInput(f"{profile.name}: no head has scores to draw")
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal")
        axes.set(xlabel="looks at where (positional score)", ylabel="looks at what (symbolic score)")
        mark_kinds(axes)
        axes.plot([0, 1], [1, 0], color=NEITHER, lw=0.8, ls=(0, (4, 3)), zorder=1)
        dots = axes.scatter(
            heads["positional"], heads["symbolic"], c=heads["layer"], s=6 + 34 * (1 - heads["entropy"].clip(0, 1)),
            cmap=LAYERS, alpha=_opacity(heads), edgecolors="white", linewidths=0.4, zorder=3, clip_on=False,
            gid="heads",
        )  # fmt: skip
        bar = figure.colorbar(dots, ax=axes, orientation="horizontal", shrink=0.5, aspect=40, pad=0.02)
        bar.set_label("layer", labelpad=1)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.text(0, 1.015, _caption(profile), transform=axes.transAxes, fontsize=7, color="#666666", va="bottom")
        axes.set_title(profile.name, pad=38 if "pale" in _caption(profile) else 28)
        _label_extremes(figure, axes, heads)
    return figure


def _opacity(heads: Any) -> Any:
    """Heads whose scores rest on little attention are faded."""
    return np.where(rests_on_little(heads), 0.2, 0.85) if "on_blocks" in heads else 0.85


def heatmaps(profile: Profile) -> Figure:
    """Layers down, heads across: positional, symbolic, and the difference of the two."""
    heads = profile.heads
    tables: dict[str, Any] = {
        name: heads.pivot_table(index="layer", columns="head", values=name, dropna=False)
        for name in ("positional", "symbolic")
    }
    rows, columns = tables["positional"].shape
    figure = new_figure(3 * min(3.2, max(1.7, 0.16 * columns + 0.8)), min(8.0, max(2.6, 0.15 * rows + 1.5)))
    panels = (
        ("looks at where", "positional score", tables["positional"], TOWARDS_WHERE, 0.0),
        ("looks at what", "symbolic score", tables["symbolic"], TOWARDS_WHAT, 0.0),
        ("which of the two", "positional - symbolic", tables["positional"] - tables["symbolic"], BETWEEN, -1.0),
    )
    for axes, (title, term, table, colours, lowest) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        axes.set_facecolor("#DDDDDD")  # heads that a layer does not have
        image = axes.imshow(table, cmap=colours, vmin=lowest, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(title=title, xlabel="head")
        for axis, names in ((axes.xaxis, table.columns), (axes.yaxis, table.index)):
            _number_ticks(axis, names)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9, aspect=25, pad=0.02)
        bar.set_label(term, labelpad=1)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    figure.axes[0].set_ylabel("layer")
    name_figure(figure, profile.name)
    return figure


def frequencies(profile: Profile) -> Figure:
    """Median and interquartile range of each frequency's score over all heads; below, how much heads use it."""
    table = rotary_rows(profile)
    figure = new_figure(5.6, 3.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _medians(upper, table, "frequency", profile.name)
    use = table.groupby("frequency")["use_norm"].mean()
    lower.bar(use.index, use, color=NEITHER, width=0.8)
    lower.set(xlabel="frequency, fast to slow", ylabel="mean use")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    lower.set_xlim(0.3, use.index.max() + 0.7)
    return figure


def layers(profile: Profile) -> Figure:
    """Median and interquartile range of the scores in each layer."""
    figure = new_figure(5.6, 3.0)
    axes = figure.subplots()
    _medians(axes, profile.heads, "layer", profile.name)
    axes.set(xlabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def use(profile: Profile) -> Figure:
    """How the heads of each layer distribute their use over the frequencies, and their mean frequency."""
    table = rotary_rows(profile)
    strongest = table.assign(use=table["use_max"].clip(lower=0)).pivot_table(
        index="layer", columns="frequency", values="use"
    )
    shares = strongest.div(strongest.sum(axis=1), axis=0)
    figure = new_figure(5.6, min(8.0, max(2.6, 0.15 * len(shares) + 1.5)))
    axes = figure.subplots()
    edges = [np.append(names, names[-1] + 1) - 0.5 for names in (shares.columns.to_numpy(), np.arange(len(shares)))]
    image = axes.pcolormesh(*edges, shares, cmap="Greys", vmin=0)
    typical = profile.heads.groupby("layer")["mean_frequency"].median().reindex(shares.index)
    axes.plot(
        typical, np.arange(len(shares)), "D", color="white", ms=4.5, mec=INK, mew=0.8,
        label="mean frequency, median of the heads",
    )  # fmt: skip
    axes.invert_yaxis()
    _number_ticks(axes.yaxis, shares.index)
    axes.set(xlabel="frequency, fast to slow", ylabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, aspect=30)
    bar.set_label("share of the layer's use")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, fontsize=7)
    axes.set_title(profile.name, pad=20)
    return figure


def rotary_rows(profile: Profile) -> Any:
    """The rows of the rotary frequencies; a profile without any is refused."""
    table: Any = profile.frequencies
    table = table[table["frequency"] > 0]
    if table.empty:
        why = "level prompt has no" if profile.about["level"] == "prompt" else "this model has no rotary"
        raise BadInput(f"{profile.name}: {why} frequencies to draw")
    return table


def _number_ticks(axis: Axis, names: Any) -> None:
    """Some of the names at 0, 1, 2, ... along an axis."""
    places = MaxNLocator(8, integer=True).tick_values(0, len(names) - 1)
    places = [int(place) for place in places if 0 <= place < len(names)]
    axis.set_ticks(places, [str(names[place]) for place in places])


def _medians(axes: Axes, table: Any, by: str, title: str) -> None:
    """Both scores by one column: the median as a line, the interquartile range as a band."""
    for score, (word, colour, mark, _) in LOOKS.items():
        groups = table.groupby(by)[score]
        middle = groups.median()
        axes.fill_between(
            middle.index, groups.quantile(0.25), groups.quantile(0.75), color=to_rgba(colour, 0.18), linewidth=0
        )
        axes.plot(middle.index, middle, color=colour, lw=1.4, marker=mark, ms=2.6, label=f"looks at {word} ({score})")
    axes.set(ylim=(-0.03, 1.03), ylabel="median score, quartiles")
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, fontsize=7)
    axes.set_title(title, pad=20)


def mark_kinds(axes: Axes, size: float = 7, dots: np.ndarray | None = None) -> None:
    """Shade the corners of the plane in which core.kinds calls a head where, what or unfocused.

    With the places of dots, each name is where it covers the fewest of them.
    """
    side = 1.04 - HIGH
    for word, (x, y), colour, place in (
        ("where", (HIGH, -0.04), WHERE, ("left", "bottom")),
        ("what", (-0.04, HIGH), WHAT, ("left", "bottom")),
        ("unfocused", (HIGH, HIGH), NEITHER, ("right", "top")),
    ):
        height = LOW + 0.04 if y < 0 else side
        width = LOW + 0.04 if x < 0 else side
        axes.add_patch(Rectangle((x, y), width, height, facecolor=to_rgba(colour, 0.10), edgecolor="none", zorder=0))
        box = np.array([[x, y], [x + width, y + height]])
        ha, va = place if dots is None else _emptiest(box, np.array([0.025 * len(word), 0.05]), dots, place)
        at = (box[int(ha == "right"), 0] + (-0.01 if ha == "right" else 0.01),
              box[int(va == "top"), 1] + (-0.01 if va == "top" else 0.01))  # fmt: skip
        axes.text(*at, word, color=colour, ha=ha, va=va, fontsize=size, fontweight="bold", zorder=2)


def _emptiest(box: np.ndarray, size: np.ndarray, dots: np.ndarray, first: tuple[str, str]) -> tuple[str, str]:
    """The corner of a box, as (ha, va), in which text of about this size covers the fewest dots."""

    def covered(place: tuple[str, str]) -> int:
        high = [place[0] == "right", place[1] == "top"]
        low = np.where(high, box[1] - size, box[0])
        return _covers(low - 0.02, low + size + 0.02, dots)

    return min((first, *product(("left", "right"), ("bottom", "top"))), key=covered)


def _label_extremes(figure: Figure, axes: Axes, heads: Any) -> None:
    """Label the purest heads and those furthest off the diagonal, where a label covers no other and few dots."""
    leaning = heads["positional"] - heads["symbolic"]
    off = heads["positional"] + heads["symbolic"]
    chosen = [*leaning.nlargest(3).index, *leaning.nsmallest(3).index, *off.nlargest(2).index, *off.nsmallest(2).index]
    figure.draw_without_rendering()
    dots = axes.transData.transform(heads[["positional", "symbolic"]].to_numpy())
    (left, bottom), (right, top) = axes.get_window_extent().get_points()
    words = [text.get_window_extent().get_points() for text in axes.texts]
    boxes: list[tuple[np.ndarray, np.ndarray]] = [(low, high) for low, high in words]
    lines: list[np.ndarray] = []
    pixels = figure.dpi / 72
    for index in dict.fromkeys(chosen):
        head = heads.loc[index]
        at = axes.transData.transform((head["positional"], head["symbolic"]))
        name = f"{int(head['layer'])}.{int(head['head'])}"
        size = np.array([4.2 * len(name) + 2, 8.0]) * pixels
        places: list[tuple[float, np.ndarray]] = []
        for radius, turn in product((10, 16, 24, 34, 46), range(16)):
            offset = radius * np.array([np.cos(turn * np.pi / 8), np.sin(turn * np.pi / 8)])
            low, high = at + offset * pixels - size / 2, at + offset * pixels + size / 2
            line = at + np.linspace(0, 1, 16)[:, None] * offset * pixels
            outside = (low < (left + 2, bottom + 2)).any() or (high > (right - 2, top - 2)).any()
            if outside or any(_meet(low, high, *box) or _covers(*box, line) for box in boxes):
                continue
            if not any(_covers(low, high, other) for other in lines):
                crossed = (np.linalg.norm(dots[:, None] - line[4:], axis=2) < 4).any(1).sum()
                places.append((_covers(low - 3, high + 3, dots) + 0.5 * crossed + radius / 40, offset))
        if not places:
            continue
        _, offset = min(places, key=lambda place: place[0])
        boxes.append((at + offset * pixels - size / 2, at + offset * pixels + size / 2))
        lines.append(at + np.linspace(0, 1, 16)[:, None] * offset * pixels)
        axes.annotate(
            name, (head["positional"], head["symbolic"]), xytext=tuple(offset), textcoords="offset points",
            fontsize=6.5, ha="center", va="center", zorder=4, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "#777777", "shrinkA": 0, "shrinkB": 1.5},
        )  # fmt: skip


def _meet(low: np.ndarray, high: np.ndarray, other_low: np.ndarray, other_high: np.ndarray) -> bool:
    """Whether two boxes overlap."""
    return bool((low < other_high).all() and (high > other_low).all())


def _covers(low: np.ndarray, high: np.ndarray, points: np.ndarray) -> int:
    """The number of points in a box."""
    return int(((points > low) & (points < high)).all(1).sum())


def _caption(profile: Profile) -> str:
    heads, about = profile.heads, profile.about
    r = about["correlation"]["r"]
    pale = int(rests_on_little(heads).sum()) if "on_blocks" in heads else 0
    return (
        f"{len(heads)} heads, r = {'-' if r is None else format(r, '.2f')}, "
        f"mean of {len(about['prompts'])} prompts, level {about['level']}\n"
        "larger dots attend to fewer keys; labels are layer.head"
        + (f"\n{pale} pale: less than {LITTLE:.0%} of their attention is on the blocks" if pale else "")
    )
