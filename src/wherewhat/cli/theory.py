"""Commands that check what was proved."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .shared import AsJson, Seed, stoppable

app = typer.Typer()


@app.command()
def verify(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this claim, such as h-pos or no-symbolic-index; may be given again.", show_default="all"
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Check every theorem numerically, and show why a pure head cannot do what it cannot do.

    Heads with weights set by hand solve their tasks in real forward passes; for what is impossible there are two
    inputs that a head cannot tell apart. Exit code 0: all hold; 1: some do not.

    [bold]Example:[/bold] wherewhat verify

    [bold]Example:[/bold] wherewhat verify --only h-pos --only no-symbolic-index --json
    """
    import torch
    from rich.console import Console

    from ..report.terminal import progress_bar
    from ..report.verify import show_verified
    from ..studies.verify import verify as run_verify

    torch.set_num_threads(1)  # matrices this small are slower on several
    with stoppable(), progress_bar(Console(stderr=True, quiet=as_json, markup=False)) as progress:
        rows = run_verify(only or (), seed, progress)
    if as_json:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        show_verified(rows, Console(highlight=False, markup=False))
    if not all(row.passed for row in rows):
        raise typer.Exit(1)
