"""Commands that show results on a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of profiles, dynamics, or runs with dynamics.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page on which every head of a model can be explored; it opens from disk and needs no network.

    Several profiles can be compared side by side; a series of checkpoints plays as a film.

    [bold]Example:[/bold] wherewhat report profiles/smollm2 -o smollm2.html

    [bold]Example:[/bold] wherewhat report runs/number-0 runs/letter-0 -o film.html
    """
    from ..report.explorer import write_report

    size = write_report(folders, output)
    print(f"Saved {output} ({size / 1e6:.1f} MB)", file=sys.stderr)
