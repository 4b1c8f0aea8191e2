"""The figure of an ablation."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ...display.style import INK, NEITHER, WHAT, WHERE, name_figure, new_figure, save_drawn
from .ablate import Ablation
from .measures import MEASURES
from .trials import RANDOM

LINES = {"positional heads": (WHERE, "o"), "symbolic heads": (WHAT, "s"), RANDOM: (NEITHER, "x")}


def ablation_figure(found: Ablation) -> Figure:
    """Every set of heads or frequencies that was asked for, or the curves of the standard battery."""
    rows: Any = found.effects
    if not set(rows["what"]) & (LINES.keys() - {RANDOM}):
        return sets_figure(found)
    heads = rows[rows["how"] == "ablate"]
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


def sets_figure(found: Ablation) -> Figure:
    """Each measure after every ablation that was asked for, with its interval, beside the draws of its control."""
    rows: Any = found.effects[found.effects["layer"].isna() | ~found.effects["what"].str.match("head ")]
    asked = rows[rows["draw"].isna()]
    sets = list(dict.fromkeys(zip(asked["how"], asked["what"], strict=True)))
    measures = list(asked["measure"].unique())
    columns = min(3, len(measures))
    lines = -(-len(measures) // columns)
    figure = new_figure(2.4 * columns + 1.6, lines * (1.1 + 0.3 * len(sets)))
    for place, measure in enumerate(measures):
        axes = figure.add_subplot(lines, columns, place + 1)
        for at, (how, what) in enumerate(sets):
            here = rows[(rows["measure"] == measure) & (rows["how"] == how)]
            drawn = here[[isinstance(of, str) and what in (of, *of.split(", ")) for of in here["control_of"]]]
            (own,) = here[here["draw"].isna() & (here["what"] == what)].to_dict("records")
            axes.scatter(drawn["after"], [at + 0.2] * len(drawn), s=14, color=NEITHER, marker="x", lw=0.9, gid="random")
            reach = [[max(0.0, -own["low"] + own["change"])], [max(0.0, own["high"] - own["change"])]]
            axes.errorbar(own["after"], at - 0.1, xerr=reach, fmt="o", ms=4, color=WHAT, lw=1.2, gid="set")
        before = float(asked[asked["measure"] == measure]["before"].iloc[0])
        axes.axvline(before, color=INK, lw=0.8, ls=(0, (4, 3)))
        named = [wrapped(f"{how} {what}") for how, what in sets] if place % columns == 0 else [""] * len(sets)
        axes.set_yticks(range(len(sets)), named, fontsize=7)
        axes.set(title=MEASURES[str(measure)][0], ylim=(len(sets) - 0.4, -0.6))
        if str(measure).endswith(("accuracy", "probability")):
            axes.set_xlim(left=max(-0.02, axes.get_xlim()[0]))  # the interval of the change may reach below 0
    name_figure(figure, found.name, "dot: after the ablation, 95 % interval; x: random controls; dashed: intact model")
    return figure


def wrapped(name: str, width: int = 26, most: int = 2) -> str:
    """A name on at most two short lines."""
    return "\n".join(textwrap.wrap(name, width, max_lines=most, placeholder=" ..."))


def save_ablation_figure(found: Ablation, path: str | Path) -> None:
    """Write the figure as .png, .pdf or .svg, if there is anything but single heads to draw."""
    if not found.effects["what"].str.match(f"head |{RANDOM}$").all():
        save_drawn(path, lambda: ablation_figure(found))
