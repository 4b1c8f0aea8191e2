"""How heads became pure, as a person reads it in a terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.dynamics import Dynamics
from ..studies.learning import Learning
from .terminal import STYLE, plane

GAMMA = 0.1


def show_dynamics(watched: Dynamics, console: Console) -> None:
    """The last plane, and a row a head: when it became pure, and where it stands at the end."""
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
        ("o head" if deep else "Each head stands at the number of its layer (a: 10, b: 11, ...)") + ", * several. Pure "
        "since: the step from which on it has at least 0.9 on one axis and at most 0.1 on the other."
    )
    console.print(Padding(_heads(last, watched.purity), (1, 2)))
    if len(watched.accuracy):
        shares = watched.accuracy.query(f"step == {steps[-1]}")["accuracy"]
        console.print("Accuracy by hops at the last step: " + ", ".join(f"{share:.1%}" for share in shares))


def show_learning(made: Learning, console: Console) -> None:
    """What was published beside what was found, accuracy on the test sequences, and the roles of the heads."""
    for task, rows in made.comparison.groupby("task"):
        console.print(Text(f"{task}", "bold"))
        console.print(Padding(_table(rows.drop(columns="task")), (0, 2, 1, 2)))
    console.print(Text("Accuracy on the 45,600 test sequences, by hops", "bold"))
    tested = made.test.pivot(index=["task", "seed"], columns="hops", values="accuracy").reset_index()
    console.print(Padding(_table(tested), (0, 2, 1, 2)))
    console.print(Text("Roles of the heads of the first seed", "bold"))
    console.print(
        "Attention of the last token on itself, on the next token of its path and on later ones; accuracy lost for 1 "
        "and 4 hops when the head's output is zero."
    )
    shown = {"task": "task", "layer": "layer", "role": "role", "last_self": "itself", "last_next": "next"}
    shown |= {"last_later": "later", "lost_zero_1": "lost, 1", "lost_zero_4": "lost, 4"}
    first = made.roles.query(f"seed == {made.roles['seed'].min()}")
    console.print(Padding(_table(first.filter(shown).rename(columns=shown)), (0, 2, 1, 2)))
    console.print(Text("Rotation planes of the heads of the first seed", "bold"))
    console.print(
        "The mean frequency in use; of the plane used most how far keys point one way, the turn of the queries for "
        "each further step, in angles of the plane, and how far they keep to it."
    )
    shown = {
        "task": "task",
        "layer": "layer",
        "mean_frequency": "mean ID",
        "mean_angle": "angle",
        "frequency": "most used",
    }
    shown |= {"concentration": "keys aligned", "slope": "slope", "fan": "fan"}
    first = made.geometry.query(f"seed == {made.geometry['seed'].min()}")
    console.print(Padding(_table(first.filter(shown).rename(columns=shown)), (0, 2, 1, 2)))


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
