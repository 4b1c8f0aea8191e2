"""How heads became pure, as a person reads it in a terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...display.terminal import STYLE, plane
from .dynamics import Dynamics

GAMMA = 0.1


def show_dynamics(watched: Dynamics, console: Console) -> None:
    """The last plane, and one row per head: when it became pure, and its final scores."""
    about, heads = watched.about, watched.heads.query("query == 0")
    steps = heads["step"].unique()
    last = heads.query(f"step == {steps[-1]}")
    console.print(
        Text.assemble((str(about["task"]), "bold"), f": {len(steps)} checkpoints to step {steps[-1]}, ")
        + Text(f"{about['prompts']} prompts, tau {about['tau']}")
    )
    deep = max(last["layer"]) > 15
    labels = ["o" if deep else f"{layer:x}" for layer in last["layer"]]
    points = list(zip(labels, last["positional"], last["symbolic"], strict=True))
    console.print(Padding(plane(points), (1, 2)))
    console.print(
        ("o: one head" if deep else "Each head is drawn as the number of its layer (a: 10, b: 11, ...)")
        + ", *: several heads. Pure since: the first step after which one score stays >= 0.9 and the other <= 0.1."
    )
    console.print(Padding(_heads(last, watched.purity), (1, 2)))
    if len(watched.accuracy):
        shares = watched.accuracy.query(f"step == {steps[-1]}")["accuracy"]
        console.print("Accuracy by hops at the last step: " + ", ".join(f"{share:.1%}" for share in shares))


def _heads(last: pd.DataFrame, purity: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layer", "head", "kind", "positional", "symbolic", "entropy", "frequency", "pure since"):
        table.add_column(column, no_wrap=True, justify="left" if column == "kind" else "right")
    pure = purity[purity["gamma"] == GAMMA]
    since = dict(zip(zip(pure["layer"], pure["head"], strict=True), pure["step"], strict=True))
    for row in last.to_dict("records"):
        place = (row["layer"], row["head"])
        table.add_row(
            *map(str, place), Text(row["kind"], STYLE[row["kind"]]), f"{row['positional']:.3f}",
            f"{row['symbolic']:.3f}", f"{row['entropy']:.2f}", f"{row['mean_frequency']:.0f}",
            str(since.get(place, "-")),
        )  # fmt: skip
    return table


def _table(frame: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in frame.columns:
        table.add_column(str(column), overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row))
    return table
