"""The multi-hop study and the demo in the terminal."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...display.terminal import STYLE, plane
from ..dynamics.terminal import _table
from .comparison import best_or_last
from .demo import TAUGHT, Demo
from .paper import MultihopResults


def show_multihop(made: MultihopResults, console: Console) -> None:
    """What was published beside what was found, accuracy on the test sequences, and the roles of the heads."""
    for task, rows in made.comparison.groupby("task"):
        console.print(Text(f"{task}", "bold"))
        console.print(Padding(_table(rows.drop(columns="task")), (0, 2, 1, 2)))
    if left_out := made.about.get("unfinished"):
        console.print(f"Runs that are not finished: {', '.join(left_out)}\n")
    console.print(Text("Published curves beside the spread over seeds", "bold"))
    console.print("Share of published points between the lowest and the highest seed; mean distance from their mean.")
    known: Any = made.curves
    over = known.groupby(["task", "recipe", "figure"])[["seeds", "inside", "distance"]].mean().reset_index()
    console.print(Padding(_table(over.round(2)), (0, 2, 1, 2)))
    console.print(Text("Accuracy on the 45,600 test sequences, by hops", "bold"))
    runs = ["task", "recipe", "seed", "moment"]
    tested: Any = made.test
    tested = tested.pivot(index=runs, columns="hops", values="accuracy").reset_index()
    console.print(Padding(_table(tested), (0, 2, 1, 2)))
    first = made.roles[["recipe", "seed"]].iloc[0].to_dict()
    console.print(Text(f"Heads of {first['recipe']}, seed {first['seed']}", "bold"))
    console.print(
        "Attention of the last token on itself, on the next token of its path and on later ones; accuracy lost for 1 "
        "and 4 hops when the head's output is zero."
    )
    shown = {"task": "task", "layer": "layer", "role": "role", "last_self": "itself", "last_next": "next"}
    shown |= {"last_later": "later", "lost_zero_1": "lost, 1", "lost_zero_4": "lost, 4"}
    console.print(Padding(_table(_first_run(made.roles).filter(shown).rename(columns=shown)), (0, 2, 1, 2)))
    console.print(
        "Mean frequency ID (table 1: weighted by the softmax over all pairs; linear: from the last query). For the "
        "most used plane: alignment of the keys, rotation of the queries per step of distance (in units of the plane's "
        "angle), and how closely the queries follow it."
    )
    shown = {"task": "task", "layer": "layer", "softmax_mean_frequency": "mean ID, table 1", "mean_frequency": "linear"}
    shown |= {"frequency": "most used", "concentration": "keys aligned", "slope": "slope", "fan": "fan"}
    console.print(Padding(_table(_first_run(made.geometry).filter(shown).rename(columns=shown)), (0, 2, 1, 2)))


def _first_run(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first recipe and seed, at the best checkpoint if it was measured."""
    rows: Any = best_or_last(table)
    recipe, seed = rows[["recipe", "seed"]].iloc[0]
    return rows[(rows["recipe"] == recipe) & (rows["seed"] == seed)]


def show_demo(demo: Demo, console: Console) -> None:
    """For each embedded model its task, the plane, and one line per head."""
    console.print(Text("Does a head look at where, or at what?", style="bold"))
    console.print("Two small GPT-Js of twelve layers with one head each, trained on tasks of equal structure.\n")
    for name, profile in demo.profiles.items():
        heads, right, first = profile.heads, profile.about["accuracy"], profile.about["prompts"][0]
        console.print(Text.assemble((name, "bold"), f": {TAUGHT[name]}"))
        console.print(Text(f"  {first['text']} -> {first['says']}", "dim"))
        console.print(f"  {right['right']} of {right['of']} answers correct\n")
        labels = [f"{layer:x}" for layer in heads["layer"]]
        points = list(zip(labels, heads["positional"], heads["symbolic"], strict=True))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("layer", "looks at", "pos.", "sym.", "ID"):
            table.add_column(column, no_wrap=True, justify="left" if column == "looks at" else "right")
        for label, row in zip(labels, heads.to_dict("records"), strict=True):
            scores = (f"{row['positional']:.2f}", f"{row['symbolic']:.2f}", f"{row['mean_frequency']:.0f}")
            table.add_row(label, Text(row["kind"], STYLE[row["kind"]]), *scores)
        beside = Table.grid(padding=(0, 2))
        beside.add_row(plane(points, width=24, height=12), table)
        console.print(Padding(beside, (0, 0, 1, 2)))
    deviation = max(max(profile.about["self_check"].values()) for profile in demo.profiles.values())
    console.print(
        "Each head is drawn as the number of its layer (a: 10, b: 11, *: several heads): where (positional) bottom "
        "right, what (symbolic) top left. ID: the mean RoPE frequency that it uses, from 1, the fastest, to 64, the "
        f"slowest. Self-check: within {deviation:.0e} of the models' own attention."
    )
