"""Draw the figures of docs/figures that come from the tables in results/ and from the embedded models.

Usage: python tools/figures.py [NAME ...], such as encodings-variants; all of them without a name. The same tables give
the same bytes. The commands that make the tables, and those of all other figures, are in docs/gallery.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import wherewhat as ww
from docs_rotations import LABELS
from wherewhat.display.style import save_drawn
from wherewhat.results import load_prefixed
from wherewhat.studies.encodings.figures import FIGURES as OF_ENCODINGS
from wherewhat.studies.encodings.tables import Encodings
from wherewhat.studies.lengths.figures import length_curves
from wherewhat.studies.lengths.hop_lengths import Lengths
from wherewhat.studies.multihop.figures import discrepancy_figure, geometry_figure, scores_figure
from wherewhat.studies.multihop.geometry import geometry
from wherewhat.studies.multihop.paper import MultihopResults
from wherewhat.studies.multihop.runs import AUTHORS
from wherewhat.studies.rotations.experiment import SETS, summarise
from wherewhat.studies.rotations.figures import experiment_figure
from wherewhat.studies.sweep.figures import FIGURES as OF_ANGLES
from wherewhat.studies.sweep.figures import by_task
from wherewhat.studies.sweep.sweep import Sweep
from wherewhat.tasks import Number

ROOT = Path(__file__).parents[1]
TABLES, FIGURES = ROOT / "results", ROOT / "docs" / "figures"


def encodings(name: str) -> Figure:
    return OF_ENCODINGS[name](load_prefixed(Encodings, TABLES / "encodings"))


def decoupling(name: str, models: str = "decoupling") -> Figure:
    return OF_ANGLES[name](by_task(load_prefixed(Sweep, TABLES / models)))


def lengths(task: str) -> Figure:
    """The figure of `wherewhat lengths TASK`, without the attention at every length, which is not stored."""
    found = {name: pd.read_parquet(TABLES / f"lengths-{name}.parquet") for name in ("accuracy", "loss")}
    mine = {name: table[table["task"] == task] for name, table in found.items()}
    return length_curves(Lengths(mine["accuracy"], pd.DataFrame(), mine["loss"], about={}), task)


def multihop(draw: Callable[..., Figure], task: str) -> Figure:
    """A figure of `wherewhat reproduce dynamics`, of the authors' recipe."""
    names = [one.name for one in fields(MultihopResults) if one.name != "about"]
    tables = {name: pd.read_parquet(TABLES / f"dynamics-{name}.parquet") for name in names}
    return draw(MultihopResults(**tables, about={}), task, AUTHORS)


def rotations() -> Figure:
    """The experiment on the packaged documents; stories15M takes 256 tokens only."""
    found = summarise(pd.read_parquet(TABLES / "rotations.parquet").query("documents == 'packaged'"))
    return experiment_figure(found[found["sets"] == SETS], LABELS)


def planes_in_use() -> Figure:
    """Number, seed 0, on the first 400 validation sequences."""
    _, validation, _ = Number().splits()
    return geometry_figure(geometry(ww.embedded("number"), validation[:400]), "number")


DRAWN: dict[str, Callable[[], Figure]] = {
    **{
        f"encodings-{one}": partial(encodings, one)
        for one in ("ablation", "variants", "optimisation", "sizes", "curves")
    },
    **{f"decoupling-{one}": partial(decoupling, one) for one in OF_ANGLES},
    **{
        f"decoupling-transformer-{one}": partial(decoupling, one, "decoupling-transformer")
        for one in ("accuracy", "places-training")
    },
    **{f"lengths-{task}": partial(lengths, task) for task in ("number", "letter")},
    "discrepancy": lambda: discrepancy_figure(pd.read_parquet(TABLES / "dynamics-discrepancy.parquet")),
    "geometry-number": planes_in_use,
    "rotations": rotations,
    **{f"dynamics-scores-{task}": partial(multihop, scores_figure, task) for task in ("number", "letter")},
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(DRAWN):
        raise SystemExit(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(DRAWN)}")
    for name in names or DRAWN:
        save_drawn(FIGURES / f"{name}.png", DRAWN[name])


if __name__ == "__main__":
    main(sys.argv[1:])
