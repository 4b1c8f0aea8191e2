"""The figure of an ablation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ...display.style import NEITHER, WHAT, WHERE, new_figure, save_drawn
from .ablate import Ablation
from .measures import MEASURES
from .trials import RANDOM

LINES = {"positional heads": (WHERE, "o"), "symbolic heads": (WHAT, "s"), RANDOM: (NEITHER, "x")}


def ablation_figure(found: Ablation) -> Figure:
    """Each measure against the share of heads that are ablated: most positional first, most symbolic first, random."""
    heads: Any = found.effects.query("how == 'ablate'")
    measures = list(heads["measure"].unique())
    columns = min(3, len(measures))
    lines = -(-len(measures) // columns)
    figure = new_figure(2.9 * columns, 2.5 * lines)
    for place, (measure, rows) in enumerate(heads.groupby("measure", sort=False)):
        axes = figure.add_subplot(lines, columns, place + 1)
        before = rows["before"].iloc[0]
        for what, (colour, mark) in LINES.items():
            part = rows[rows["what"] == what].groupby("fraction")[["after", "low", "high"]].mean()
            across, up = [0, *part.index], [before, *part["after"]]
            axes.plot(across, up, color=colour, marker=mark, ms=3, lw=1.3, label=what)
            if what == RANDOM:
                drawn = rows[rows["what"] == RANDOM]
                axes.scatter(drawn["fraction"], drawn["after"], s=4, color=colour)
            else:
                low, high = ([before, *(before + part[end])] for end in ("low", "high"))
                axes.fill_between(across, low, high, color=colour, alpha=0.15, lw=0)
        axes.set(title=MEASURES[str(measure)][0])
        if str(measure).endswith(("accuracy", "probability")):
            axes.set_ylim(bottom=-0.02 * before)  # the interval of the change may reach below 0; the measure cannot
        if place >= len(measures) - columns:
            axes.set_xlabel("share of heads ablated")
    figure.axes[0].legend(frameon=False, fontsize=6.5)
    figure.suptitle(found.name, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def save_ablation_figure(found: Ablation, path: str | Path) -> None:
    """Write the figure as .png, .pdf or .svg, if any heads were ablated."""
    if "ablate" in set(found.effects["how"]):
        save_drawn(path, lambda: ablation_figure(found))
