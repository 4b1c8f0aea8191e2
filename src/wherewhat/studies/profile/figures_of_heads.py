"""Figures of single heads: their frequencies, their path through the plane, their attention before and after a swap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ...display.style import INK, LOOKS, NEITHER, TIME, WHAT, WHERE, name_figure, new_figure
from ...errors import BadInput
from ..sweep.figures import PLACE
from .figures import mark_kinds, rotary_rows
from .projection import Projection
from .result import Profile, dense_frequencies, head_labels, numbered_heads


def plane_projection(seen: Projection) -> Figure:
    """The query and all keys of a real head on one rotation plane, without and with the rotation by position."""
    figure = new_figure(6.4, 3.5)
    for axes, title, keys, query in (
        (figure.add_subplot(1, 2, 1), "rotation removed: contents", seen.contents, seen.query_content),
        (figure.add_subplot(1, 2, 2), "rotated, as the head sees them", seen.keys, seen.query),
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
        "arrow: the query, scaled to the longest key; larger dots receive more attention", fontsize=7, color="#666666"
    )
    return figure


LOOKING = {"where": "looks at where", "what": "looks at what", "unfocused": "is unfocused", "mixed": "is mixed"}
TINTS = {"where": WHERE, "what": WHAT, "unfocused": NEITHER}
MOVED = {"A": INK, "B": "#CC79A7"}  # the two swapped blocks
FADED = "#CFCFCF"


@dataclass(frozen=True)
class ChosenHead:
    """The head to draw, or else the purest of both kinds; the frequency of its plane; and the blocks to swap, counted
    from 1, or else those with the most and the least attention."""

    layer: int | None = None
    head: int | None = None
    frequency: int | None = None
    blocks: tuple[int, int] | None = None


def head(profile: Profile, choice: ChosenHead) -> Figure:
    """The scores of each frequency alone, and below how much the head uses it."""
    ids, numbers = by_frequency(profile)
    chosen = choose(profile, choice)
    figure = new_figure(0.6 + 3.2 * len(chosen), 3.6)
    panels = figure.subplots(2, len(chosen), sharex=True, height_ratios=[3, 1], squeeze=False)
    for (upper, lower), at in zip(panels.T, chosen, strict=True):
        for score, (word, colour, mark, line) in LOOKS.items():
            upper.plot(
                ids, numbers[score][at], color=colour, lw=1.3, ls=line, marker=mark, ms=2.8,
                label=f"looks at {word} ({score})",
            )  # fmt: skip
        upper.set_title(_title(profile, at))
        upper.set_ylim(-0.03, 1.03)
        lower.bar(ids, numbers["use_norm"][at], color=NEITHER, width=0.8)
        lower.set(xlabel="frequency, fast to slow", xlim=(0.3, len(ids) + 0.7))
        lower.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[0, 0].set_ylabel("score of the frequency alone")
    panels[1, 0].set_ylabel("use")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), frameon=False, ncols=2, loc="outside lower left")
    name_figure(figure, profile.name)
    return figure


def path(profile: Profile, choice: ChosenHead) -> Figure:
    """Each frequency alone as a point of the plane, joined from the fastest to the slowest."""
    ids, numbers = by_frequency(profile)
    chosen = choose(profile, choice)
    figure = new_figure(0.4 + 3.4 * len(chosen), 4.3)
    for axes, at in zip(figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0], chosen, strict=True):
        where, what = numbers["positional"][at], numbers["symbolic"][at]
        mark_kinds(axes, dots=np.stack([where, what], 1))
        axes.plot([0, 1], [1, 0], color=NEITHER, lw=0.8, ls=(0, (4, 3)), zorder=1)
        axes.plot(where, what, color=NEITHER, lw=0.8, zorder=2)
        axes.scatter(
            where, what, c=ids, s=18, cmap=TIME, edgecolors="white", linewidths=0.4, zorder=3, clip_on=False,
            gid="frequencies",
        )  # fmt: skip
        for end, side in ((0, -1), (-1, 1)):
            axes.annotate(
                str(ids[end]), (where[end], what[end]), xytext=(6 * side, 6 * side), textcoords="offset points",
                ha="center", va="center", fontsize=7, fontweight="bold", zorder=4, annotation_clip=False,
            )  # fmt: skip
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal", xlabel="looks at where (positional score)")
        axes.set_title(_title(profile, at))
    figure.axes[0].set_ylabel("looks at what (symbolic score)")
    bar = figure.colorbar(
        figure.axes[0].collections[0], ax=figure.axes, orientation="horizontal", shrink=0.5, aspect=40, pad=0.02
    )
    bar.set_label("frequency, fast to slow", labelpad=1)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    name_figure(figure, profile.name)
    return figure


def swap(profile: Profile, choice: ChosenHead) -> Figure:
    """Attention on the blocks of the first prompt before and after a swap: it stays, or follows the content."""
    if "log_mass" not in profile.tensors:
        raise BadInput(f"{profile.name}: a profile at level {profile.about['level']} keeps no swaps to draw")
    rows, chosen = profile.about["table"], choose(profile, choice)
    there = ~profile.tensors["block_attention"][0].isnan().all(-1)
    tables = profile.tensors["log_mass"][there].double().exp().numpy()
    places = [(row["first"] + row["last"]) / 2 + 1 for row in rows]
    figure = new_figure(0.6 + 3.4 * len(chosen), 3.8)
    panels = figure.subplots(2, len(chosen), sharex=True, sharey="col", squeeze=False)
    for pair, at in zip(panels.T, chosen, strict=True):
        i, j = _exchanged(rows, tables[at], choice.blocks)
        before, after = swapped(tables[at], i, j)
        stays, follows = (_cosine(after[[i, j]], before[order]) for order in ([i, j], [j, i]))
        for axes, mass, letters in ((pair[0], before, {i: "A", j: "B"}), (pair[1], after, {j: "A", i: "B"})):
            colours = [MOVED[letters[place]] if place in letters else FADED for place in range(len(rows))]
            axes.bar(places, mass, color=colours, width=0.85 * _merged(rows))
            for place, letter in letters.items():
                axes.annotate(
                    letter, (places[place], mass[place]), xytext=(0, 2), textcoords="offset points", ha="center",
                    fontsize=7, fontweight="bold", color=MOVED[letter],
                )  # fmt: skip
        pair[0].margins(y=0.15)
        pair[0].yaxis.set_major_formatter(PercentFormatter(1))
        pair[0].set_title(_title(profile, at), pad=16)
        verdict = f"this swap: positional {stays:.2f}, symbolic {follows:.2f}"
        pair[0].text(0, 1.03, verdict, transform=pair[0].transAxes, fontsize=7, color="#666666")
        pair[1].set_xlabel("place of the block")
        pair[1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[0, 0].set_ylabel("attention before")
    panels[1, 0].set_ylabel("attention after")
    merged = f"; a bar is the mean of {_merged(rows)} blocks" if _merged(rows) > 1 else ""
    name_figure(figure, profile.name, f"contents A and B are swapped; the rest is unchanged{merged}")
    return figure


def heads(profile: Profile) -> Figure:
    """One small plot per head, of its scores and its use by frequency: layers down, heads across."""
    ids, numbers = by_frequency(profile)
    table: Any = numbered_heads(profile)
    runs: Any = table[["layer", "nth"]].drop_duplicates().reset_index(drop=True)
    down = table.merge(runs.assign(row=runs.index), on=["layer", "nth"])["row"].to_numpy()
    across = table["head"].to_numpy()
    corners = np.stack([across * 1.2, -down * 1.35], 1)  # left and bottom of the cell of every head
    x = np.linspace(0.03, 0.97, len(ids)) if len(ids) > 1 else np.array([0.5])
    columns, lines = across.max() + 1, down.max() + 1
    figure = new_figure(max(3.4, 0.55 * columns + 0.6), 0.36 * lines + 1.1)
    axes = figure.subplots()

    def outlines(values: Float[np.ndarray, "H F"]) -> Float[np.ndarray, "H F 2"]:
        return np.stack([np.broadcast_to(x, values.shape), values], -1) + corners[:, None]

    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    tints = [to_rgba(TINTS[name], 0.14) if name in TINTS else "none" for name in table["kind"]]
    cells = corners[:, None] + square
    axes.add_collection(
        PolyCollection(list(cells), facecolors=tints, edgecolors="#BBBBBB", linewidths=0.3, gid="cells")
    )
    use = numbers["use_norm"] / np.maximum(np.nanmax(numbers["use_norm"], 1, keepdims=True), 1e-12)
    floor = np.stack([x[::-1], np.zeros(len(x))], -1) + corners[:, None]
    bottoms = np.concatenate([outlines(0.35 * np.nan_to_num(use)), floor], 1)
    axes.add_collection(PolyCollection(list(bottoms), facecolors=FADED, linewidths=0, gid="use"))
    for score, (_, colour, _, line) in LOOKS.items():
        drawn = LineCollection(list(outlines(numbers[score])), colors=colour, linewidths=0.8, linestyles=[line])
        drawn.set_gid(score)
        axes.add_collection(drawn)
    axes.set(xlim=(-0.1, columns * 1.2 - 0.1), ylim=(-(lines - 1) * 1.35 - 0.15, 1.15), xlabel="head", ylabel="layer")
    axes.set_xticks(1.2 * np.arange(columns) + 0.5, [str(number) for number in range(columns)])
    axes.set_yticks(-1.35 * np.arange(lines) + 0.5, [str(layer) for layer in runs["layer"]])
    axes.tick_params(length=0, labelsize=6.5)
    axes.spines[:].set_visible(False)
    keys = [Line2D([], [], color=look.colour, ls=look.line, label=f"looks at {look.word}") for look in LOOKS.values()]
    hint = (
        f"each cell: score 0 to 1 by frequency 1 to {len(ids)}, fast to slow;\n"
        "tinted as the head looks at where, at what, or is unfocused (grey)"
    )
    figure.legend(
        handles=[*keys, Patch(color=FADED, label="use")], title=hint, frameon=False, ncols=3, alignment="left",
        loc="outside lower left", fontsize=7, title_fontsize=7,
    )  # fmt: skip
    name_figure(figure, profile.name)
    return figure


def choose(profile: Profile, choice: ChosenHead) -> list[int]:
    """The row of the chosen head, or else the rows of the purest positional and the purest symbolic head."""
    table: Any = profile.heads
    if choice.layer is None and choice.head is None:
        leaning = (table["positional"] - table["symbolic"]).to_numpy()
        if np.isnan(leaning).all():
            raise BadInput(f"{profile.name}: no head has scores to draw")
        return list(dict.fromkeys([int(np.nanargmax(leaning)), int(np.nanargmin(leaning))]))
    layer, number = choice.layer or 0, choice.head or 0
    layers = sorted(set(table["layer"]))
    if layer not in layers:
        raise BadInput(f"layer {layer}: the model's attention layers are {layers[0]} to {layers[-1]}")
    there = np.flatnonzero((table["layer"] == layer) & (table["head"] == number))
    if not len(there):
        raise BadInput(f"head {number}: layer {layer} has {(table['layer'] == layer).sum()} heads, counted from 0")
    return [int(there[0])]


def by_frequency(profile: Profile) -> tuple[list[int], dict[str, Float[np.ndarray, "H F"]]]:
    """The rotary frequencies, fastest first, and the scores and use of every head at each of them."""
    ids, dense = dense_frequencies(numbered_heads(profile), rotary_rows(profile))
    return ids or [], {name.removeprefix("frequency_"): values for name, values in dense.items()}


def swapped(mass: Float[np.ndarray, "G G"], i: int, j: int) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Attention on every block before and after the contents of blocks i and j are swapped, from the attention that
    the content of each block (rows) would receive at the position of each (columns).

    >>> swapped(np.array([[0.6, 0.1], [0.2, 0.4]]), 0, 1)             # content 1 receives 0.2 at position 0
    (array([0.6, 0.4]), array([0.66666667, 0.33333333]))
    """
    before = mass.diagonal().copy()
    after = before.copy()
    after[[i, j]] = mass[j, i], mass[i, j]
    return before, after / (1 + after.sum() - before.sum())


def _exchanged(rows: list[dict[str, Any]], mass: np.ndarray, asked: tuple[int, int] | None) -> tuple[int, int]:
    """The rows of the table that hold the blocks to swap."""
    if asked is None:
        least, *_, most = mass.diagonal().argsort(kind="stable").tolist()
        return most, least
    last = rows[-1]["last"] + 1
    if not all(1 <= block <= last for block in asked):
        raise BadInput(f"blocks {asked[0]} and {asked[1]}: the first prompt has blocks 1 to {last}")
    i, j = ((block - 1) // _merged(rows) for block in asked)
    if i == j:
        raise BadInput(
            f"blocks {asked[0]} and {asked[1]}: stored as one row of {_merged(rows)} blocks; choose two further apart"
        )
    return i, j


def _merged(rows: list[dict[str, Any]]) -> int:
    """The number of blocks that a row of the table stands for."""
    return rows[0]["last"] - rows[0]["first"] + 1


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one / one.max(), other / other.max()
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def _title(profile: Profile, at: int) -> str:
    name = head_labels(numbered_heads(profile))[at]
    return f"head {name} {LOOKING.get(profile.heads['kind'].iloc[at], '')}"
