"""Commands that check theorems numerically."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Seed, option, output_folder
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
def verify(
    only: Annotated[
        list[str] | None, option("Name of a theorem, such as h-pos or no-symbolic-index; can be repeated.", "all")
    ] = None,
    folder: Annotated[Path | None, output_folder("Folder in which to save the result.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Check every theorem numerically, with inputs that show why a pure head must fail.

    Heads with hand-set weights solve their tasks in real forward passes. For each impossibility, two inputs with different answers are found between which a pure head cannot distinguish.

    Exit code 0: all theorems hold; 1: some do not.

    [bold]Examples:[/bold]

    wherewhat verify
    wherewhat verify --only h-pos --only no-symbolic-index --json
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    with study(as_json, quiet=False) as listening:
        found = ww.verify(only, seed=seed, folder=folder, progress=listening["progress"])
    if as_json:
        from ..results import records

        print_json(records(found.rows))
    else:
        from ..studies.theorems.terminal import show_verification

        show_verification(found, standard_output())
        if folder is not None:
            saved(folder)
    if not found.passed:
        raise typer.Exit(1)
