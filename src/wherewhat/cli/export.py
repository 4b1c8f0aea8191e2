"""`wherewhat export`: a profile in the format of another program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import folder_argument, option

app = typer.Typer()


@app.command()
def export(
    profile: Annotated[Path, folder_argument(metavar="PROFILE", help="Folder of a profile.")],
    to: Annotated[str, option("csv | latex | json | heads | duo | headvis.", None)],
    path: Annotated[Path, option("The file to write; for duo and headvis, the folder.", None, "-o", "--output")],
    heads: Annotated[str | None, option("Only these heads; for duo, those that keep full attention.", "all")] = None,
    share: Annotated[float, option("duo: share of the key heads that stream.")] = 0.5,
    sink: Annotated[int, option("duo: first tokens that a streaming head sees.")] = 4,
    recent: Annotated[int, option("duo: last tokens that a streaming head sees.")] = 64,
) -> None:
    """Write a profile in the format of another program.

    csv: the table of heads. latex: its main columns. json: heads, frequencies and how they were measured. heads: a set of heads, which wherewhat ablate --heads @FILE reads. duo: the pattern of full-attention heads that DuoAttention and kvpress read. headvis: the data that the page of HeadVis (anthropics/headvis) shows, with our scores among its metrics.

    [bold]Examples:[/bold]

    wherewhat export profiles/smollm2 --to csv -o heads.csv
    wherewhat export profiles/smollm2 --to heads --heads "10 most retrieving heads" -o retrieving.json
    wherewhat export profiles/smollm2 --to duo -o patterns/smollm2
    wherewhat export profiles/smollm2 --to headvis -o headvis/data
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    written = ww.export(profile, to=to, path=path, heads=heads, share=share, sink=sink, recent=recent)
    print(f"Saved {written}", file=sys.stderr)
