"""Commands that ask how far something holds as sequences grow."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .shared import AsJson, Seed, stoppable

app = typer.Typer()


@app.command()
def lengths(
    source: Annotated[
        str, typer.Argument(metavar="DIR_OR_MODEL", help="Folder of a run, or number or letter, the embedded models.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for tables and figure.", show_default="lengths/NAME")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Sequences a length.")] = 200,
    longest: Annotated[int, typer.Option(help="Leave out lengths of the paper's grid beyond this.")] = 5000,
    sharpen: Annotated[
        bool, typer.Option("--sharpen", help="Multiply all logits by log n / log 17 at n tokens: undoes dilution.")
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how accuracy falls as sequences grow, by hops: the same paths, with more symbols on their left.

    Also the length at which each head loses the token that it looks at, beside what the short prompts alone predict.
    Stopped and started again, it goes on where it was. wherewhat report draws the folder as a page.

    [bold]Example:[/bold] wherewhat lengths number --longest 1000

    [bold]Example:[/bold] wherewhat lengths letter --longest 1000 --sharpen

    [bold]Example:[/bold] wherewhat lengths runs/letter-1 -o lengths/letter-1
    """
    from rich.console import Console

    from ..report.figures import save_drawn
    from ..report.length_figures import length_curves
    from ..report.lengths import show_lengths
    from ..report.terminal import progress_bar
    from ..studies.lengths import GRID, lengths, model_and_task

    model, task = model_and_task(source)
    folder = output or Path("lengths") / (Path(source).name + "-sharpened" * sharpen)
    screen = Console(stderr=True, quiet=as_json, markup=False, highlight=False)
    with stoppable(f"what was measured is kept in {folder}; the same command goes on"), progress_bar(screen) as bar:
        grid = [length for length in GRID if length <= longest]
        found = lengths(
            model, task, folder / "cells", grid=grid, prompts=prompts, sharpen=sharpen, seed=seed, progress=bar
        )
        found = replace(found, about=found.about | {"model": source, "longest": longest})
        found.save(folder)
        save_drawn(folder / "lengths.pdf", lambda: length_curves(found, task))
    if as_json:
        loss = found.loss.replace(math.inf, None).to_dict("records")
        print(
            json.dumps(
                {"task": task, "folder": str(folder), "lengths": found.accuracy.to_dict("records"), "loss": loss}
            )
        )
    else:
        show_lengths(found, task, Console(highlight=False, markup=False))
        screen.print(f"Saved in {folder}")
