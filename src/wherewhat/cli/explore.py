"""Commands that show results: on a page to explore, and on paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .shared import folder_argument, quiet_libraries

app = typer.Typer()


@app.command()
def report(
    folders: Annotated[
        list[Path],
        folder_argument(metavar="DIR...", help="Profiles, dynamics, runs with dynamics, lengths, gates, atlases."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page on which every head of a model can be explored; it opens from disk and needs no network.

    Several can be compared side by side; a series of checkpoints plays as a film; lengths are drawn as curves.

    Gates, made by wherewhat gate with --each-head, join the profile of their model: what is lost without each head.

    [bold]Example:[/bold] wherewhat report profiles/smollm2 -o smollm2.html

    [bold]Example:[/bold] wherewhat report profiles/smollm2 gating/smollm2

    An atlas, made by wherewhat atlas, shows many models on one plane and side by side.

    [bold]Example:[/bold] wherewhat report runs/number-0 runs/letter-0 -o film.html
    """
    from ..report.explorer import write_report

    size = write_report(folders, output)
    print(f"Saved {output} ({size / 1e6:.1f} MB)", file=sys.stderr)


@app.command()
def plot(
    folders: Annotated[
        list[Path],
        folder_argument(metavar="DIR...", help="Folder of a profile, dynamics or a run with dynamics; plane: several."),
    ],
    figure: Annotated[
        str | None, typer.Option(help="What to draw, see above.", show_default="plane | scores | atlas")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .png, .pdf or .svg file.", show_default="FIGURE.png")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Of one head: its layer.", show_default="the purest heads of both kinds")
    ] = None,
    head: Annotated[int | None, typer.Option(help="Of one head: the head.", show_default="0 with --layer")] = None,
    frequency: Annotated[
        int | None, typer.Option(help="plane-projection: the frequency ID, 1 the fastest.", show_default="1")
    ] = None,
    blocks: Annotated[
        tuple[int, int] | None,
        typer.Option(help="swap: two blocks, counted from 1.", show_default="most and least attended"),
    ] = None,
) -> None:
    """Draw a profile, how heads learnt or an atlas, for print: the same folder, the same bytes.

    Of all heads of a profile: plane, heatmaps, heads (small pictures of every head), layers, frequencies, use.

    Of one head: head (score and use by frequency), path (through the plane, by frequency), swap (attention before and
    after two blocks change places), plane-projection (query and keys on one rotation plane, captured again).

    Of dynamics: scores, purity, accuracy, mean-frequency. Of an atlas: atlas.

    [bold]Example:[/bold] wherewhat plot profiles/smollm2 --figure plane -o plane.pdf

    [bold]Example:[/bold] wherewhat plot profiles/smollm2 --figure swap --layer 3 --head 5 --blocks 2 9

    [bold]Example:[/bold] wherewhat plot runs/number-0 --figure purity
    """
    quiet_libraries()
    from ..report.explorer import load_source
    from ..report.plots import default_figure
    from ..report.plots import plot as draw

    sources = [load_source(folder) for folder in folders]
    name = figure or default_figure(sources)
    path = output or Path(f"{name}.png")
    draw(sources, name, path, layer=layer, head=head, frequency=frequency, blocks=blocks)
    print(f"Saved {path}", file=sys.stderr)
