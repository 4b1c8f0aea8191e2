"""The figure of an atlas: one plane per model, and how scores and their correlation change with depth."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from ...display.style import LAYERS, NEITHER, name_figure, new_figure
from ...words import number
from ..profile.figures import mark_kinds
from .result import Atlas
from .tables import FIFTHS, by_depth, rows_of

COLUMNS = 6
# As on the page: none is the colour of where or what; neighbours also differ in shape.
COLOURS = ("#00876C", "#B03A8C", "#7A5CC0", "#A3342F", "#4F7F00", "#007F8F", "#8A6230", "#56616C")
SHAPES = "osD^"
CHARTS = {"positional": "median positional score", "symbolic": "median symbolic score", "r": "r of the two scores"}


def atlas(found: Atlas) -> Figure:
    """Small planes in the order of families, early layers lighter; below, medians and r by depth."""
    models: Any = found.models.sort_values(["family", "model"]).to_dict("records")
    columns = min(COLUMNS, max(3, len(models)))
    rows = math.ceil(len(models) / columns)
    figure = new_figure(1.75 * columns, 2.05 * rows + 3.1)
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.05 * rows, 2.8])
    upper, lower = parts
    cells = upper.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    for axes in cells[len(models) :]:
        axes.set_axis_off()
    for axes, row in zip(cells, models, strict=False):
        small_plane(axes, row, found.heads[found.heads["model"] == row["model"]])
    upper.supxlabel("looks at where (positional score)", fontsize=8)
    upper.supylabel("looks at what (symbolic score)", fontsize=8)
    depths: Any = by_depth(found.heads)
    for axes, (name, title) in zip(lower.subplots(1, 3), CHARTS.items(), strict=True):
        for at, row in enumerate(models):
            own = depths[depths["model"] == row["model"]].sort_values("fifth")
            shape = SHAPES[(at + at // len(COLOURS)) % len(SHAPES)]
            axes.plot(
                own["fifth"] + 1, own[name], color=COLOURS[at % len(COLOURS)], marker=shape, ms=3, lw=1,
                label=row["model"],
            )  # fmt: skip
        axes.set_title(title, fontsize=8)
        axes.set(xlabel="fifth of its layers", ylim=(-1.05, 1.05) if name == "r" else (-0.03, 1.03))
        axes.set_xticks(range(1, FIFTHS + 1))
    handles, labels = lower.axes[0].get_legend_handles_labels()
    lower.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=6.5, frameon=False)
    name_figure(figure, found.about["title"], "One dot per head: light in the first layers, dark in the last.")
    return figure


def small_plane(axes: Axes, row: dict[str, Any], heads: Any) -> None:
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal", xticks=(0, 1), yticks=(0, 1))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    mark_kinds(axes, size=4.5)
    axes.plot([0, 1], [1, 0], color=NEITHER, lw=0.5, ls=(0, (4, 3)), zorder=1)
    size = min(9, max(1.5, 900 / len(heads)))
    axes.scatter(
        heads["positional"], heads["symbolic"], c=rows_of(heads), s=size, cmap=LAYERS, alpha=0.85, linewidths=0,
        zorder=3, clip_on=False, gid="heads",
    )  # fmt: skip
    axes.set_title(row["model"], fontsize=7, pad=11)
    r = number(None if row["r"] != row["r"] else row["r"])
    caption = f"{row['family']}, {row['heads']} heads, r = {r}"
    axes.text(0, 1.02, caption, transform=axes.transAxes, fontsize=5.5, color="#666666", va="bottom")
