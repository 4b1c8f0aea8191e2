"""The figure of a spectrum: what explains the logits, how rotation changes their condition, and other bases."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...display.style import INK, LAYERS, NEITHER, TIME, new_figure
from .spectrum import Spectrum


def spectrum_figure(found: Spectrum) -> Figure:
    """One dot per head, lighter for deeper layers: coupling against distance, and the condition with against without
    rotation; then the median condition by length, one line per base."""
    figure = new_figure(9.6, 3.1)
    shares, conditions, bases = figure.subplots(1, 3)
    layers = found.heads["layer"].to_numpy()
    colours = LAYERS(layers / max(1, layers.max()))
    _dots(shares, found, "distance", "interaction", colours)
    shares.set(
        xlabel="share explained by distance", ylabel="share of content x position", title="What explains the logits",
        xlim=(-0.03, 1.03), ylim=(-0.015, None),
    )  # fmt: skip
    _dots(conditions, found, "condition_unrotated", "condition", colours)
    ends = np.nanquantile(found.heads[["condition_unrotated", "condition"]].replace(np.inf, np.nan), [0, 1])
    conditions.plot(ends, ends, color=NEITHER, lw=0.8, zorder=0)
    conditions.set(
        xscale="log", yscale="log", xlabel="without rotation", ylabel="with rotation", title="Condition of the logits"
    )
    _by_length(bases, found)
    figure.suptitle(f"{found.name}: spectra of the logits", fontsize=10, x=0.01, ha="left")
    return figure


def _dots(axes: Axes, found: Spectrum, x: str, y: str, colours: np.ndarray) -> None:
    axes.scatter(found.heads[x], found.heads[y], c=colours, s=9, lw=0, gid=f"{x} {y}")


def _by_length(axes: Axes, found: Spectrum) -> None:
    medians = found.spectra.groupby(["rotation", "tokens"], sort=False)["condition"].median().reset_index()
    names = medians["rotation"].drop_duplicates().tolist()
    others = [name for name in names if name not in ("unrotated", "own")]
    for name in names:
        rows = medians.query(f"rotation == '{name}'")
        if name in others:
            look = {"color": TIME((others.index(name) + 1) / len(others)), "lw": 0.8, "label": f"base {name}"}
        else:
            label = "own rotation" if name == "own" else "no rotation"
            look = {"color": INK, "lw": 1.6, "ls": "-" if name == "own" else ":", "label": label}
        axes.plot(rows["tokens"], rows["condition"], marker=".", ms=3, gid=name, **look)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="median condition", title="Other bases and lengths")
    axes.legend(frameon=False, fontsize=6)
