"""The style of all figures: colours, fonts, and reproducible files."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from ..errors import BadInput
from ..files import write_atomically

# One colour per axis everywhere (the colour-blind safe palette of Okabe and Ito), grey for neither.
WHERE, WHAT, NEITHER, INK = "#E69F00", "#0072B2", "#999999", "#333333"
LAYERS = LinearSegmentedColormap.from_list("layers", ["#C9A5D2", "#4A0F5C"])  # as on the page: early is light
TIME = mpl.colormaps["viridis_r"]  # early is light, late is dark


class Look(NamedTuple):
    """How an axis is drawn; marker and line style distinguish it without colours."""

    word: str
    colour: str
    mark: str
    line: Any


LOOKS = {"positional": Look("where", WHERE, "o", "-"), "symbolic": Look("what", WHAT, "s", (0, (2.5, 0.8)))}

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.6,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "hatch.linewidth": 0.5,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.hashsalt": "wherewhat",
}
# Files carry no date and no program name: equal numbers give equal bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


def save_drawn(path: str | Path, drawing: Callable[[], Figure]) -> None:
    """Draw a figure in the style of the package and write it atomically as .png, .pdf or .svg."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in METADATA:
        raise BadInput(f"{path}: a figure is written as .png, .pdf or .svg")
    content = BytesIO()
    with mpl.rc_context(STYLE):
        drawing().savefig(content, format=kind, metadata=METADATA[kind])
    write_atomically(path, content.getvalue())


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches; needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def name_figure(figure: Figure, name: str, hint: str = "") -> None:
    """Set the title of a whole figure and, at the bottom, one line on how to read it."""
    figure.suptitle(name, x=0.01, ha="left", fontweight="bold", fontsize=10)
    if hint:
        figure.supxlabel(hint, x=0.01, ha="left", fontsize=7, color="#666666")
