"""Draw the animated picture of the README: one swap seen by two heads, and all heads of the model.

Usage: python tools/readme_picture.py PROFILE -o docs/figures/swap.gif

PROFILE is the folder of a profile at level keys, for the README
`wherewhat profile models/SmolLM2-135M-Instruct.Q4_1.gguf --pairs 12 --samples 4 -o profiles/smollm2-12`.
"""

from __future__ import annotations

import argparse
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image

import wherewhat as ww
from wherewhat.display.style import INK, WHAT, WHERE
from wherewhat.studies.profile.figures_of_heads import swapped

FRAMES, HOLD, STEP = 14, 1600, 70  # frames of the swap, milliseconds of the first and last frame, and of the others
MOVED = {"A": INK, "B": "#CC79A7"}
BETWEEN = LinearSegmentedColormap.from_list("what to where", [WHAT, "#F4F1EC", WHERE])


def smooth(t: float) -> float:
    return float(np.clip(t, 0, 1) ** 2 * (3 - 2 * np.clip(t, 0, 1)))


def draw_head(axes: Any, mass: np.ndarray, t: float, title: str, colour: str) -> None:
    """Attention on every block, and below it the two contents on their way: first they move, then attention reacts."""
    least, *_, most = mass.diagonal().argsort(kind="stable").tolist()
    before, after = swapped(mass, most, least)
    moved, reacted = smooth(2 * t), smooth(2 * t - 1)
    now = (1 - reacted) * before + reacted * after
    top = 1.08 * max(before.max(), after.max())
    places = np.arange(1, len(now) + 1)
    bars = ["#CFCFCF"] * len(now)
    bars[most], bars[least] = (MOVED["A"], MOVED["B"]) if moved < 0.5 else (MOVED["B"], MOVED["A"])
    axes.bar(places, now, color=bars, width=0.8)
    for letter, start, stop, side in (("A", most, least, 1), ("B", least, most, -1)):
        x, y = 1 + start + moved * (stop - start), -0.2 * top + side * 0.11 * top * np.sin(np.pi * moved)
        box = {"boxstyle": "round,pad=0.28", "facecolor": MOVED[letter], "edgecolor": "none"}
        axes.text(x, y, letter, ha="center", va="center", color="white", fontsize=9, fontweight="bold", bbox=box)
    for place in set(places - 1) - {most, least}:
        axes.plot(1 + place, -0.2 * top, "o", color="#CFCFCF", markersize=5)
    axes.set(xlim=(0.3, len(now) + 0.7), ylim=(-0.36 * top, top))
    axes.set_title(title, color=colour, fontsize=10.5, fontweight="bold", loc="left")
    axes.axis("off")


def draw_grid(axes: Any, profile: ww.Profile) -> None:
    table: Any = profile.heads.pivot_table(index="head", columns="layer", values=["positional", "symbolic"])
    axes.imshow(table["positional"] - table["symbolic"], cmap=BETWEEN, vmin=-1, vmax=1, aspect="auto")
    axes.set_title(f"all {len(profile.heads)} heads of {profile.name.split('.')[0]}", fontsize=10.5, loc="left")
    axes.set_xlabel("layer", fontsize=8, labelpad=1)
    axes.set_ylabel("head", fontsize=8, labelpad=1)
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)


def frame(profile: ww.Profile, chosen: list[int], tables: np.ndarray, t: float) -> Image.Image:
    figure = Figure(figsize=(9.6, 2.5), dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    heads = profile.heads
    for axes, at, words, colour in zip(
        panels[:2], chosen, ("stays: looks at where", "follows: looks at what"), (WHERE, WHAT), strict=True
    ):
        draw_head(axes, tables[at], t, f"head {heads['layer'].iloc[at]}.{heads['head'].iloc[at]} {words}", colour)
    draw_grid(panels[2], profile)
    stored = BytesIO()
    figure.savefig(stored, format="png")
    return Image.open(stored).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    profile = ww.Profile.load(given.profile)
    lead = profile.heads["positional"] - profile.heads["symbolic"]
    chosen = [int(lead.to_numpy().argmax()), int(lead.to_numpy().argmin())]
    tables = profile.tensors["log_mass"].double().exp().flatten(0, 1).numpy()
    frames = [frame(profile, chosen, tables, step / (FRAMES - 1)) for step in range(FRAMES)]
    palette = frames[FRAMES // 2].quantize(128, dither=Image.Dither.NONE)
    small = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    times = [HOLD, *[STEP] * (FRAMES - 2), HOLD]
    small[0].save(given.output, save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    main()
