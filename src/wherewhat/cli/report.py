"""Commands that show results: as a page to explore, and as figures for print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import folder_argument, option, within
from .output import quiet_libraries

app = typer.Typer()


@app.command()
def report(
    results: Annotated[
        list[Path],
        folder_argument(metavar="DIR", help="Folders of profiles, dynamics, runs, lengths, ablations or atlases."),
    ],
    path: Annotated[Path, option("The page to write.", None, "-o", "--output")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page on which every head of a model can be explored.

    Several results can be compared side by side. Dynamics play as a film; an atlas shows many models on one plane.

    An ablation made with --each-head adds the effect of ablating each head to the profile of its model.

    [bold]Examples:[/bold]

    wherewhat report profiles/smollm2 -o smollm2.html
    wherewhat report profiles/smollm2 ablations/smollm2
    wherewhat report runs/number-0 runs/letter-0 -o film.html
    """
    import wherewhat as ww

    written = ww.report(results, path)
    print(f"Saved {written} ({written.stat().st_size / 1e6:.1f} MB)", file=sys.stderr)


@app.command()
def plot(
    results: Annotated[
        list[Path],
        folder_argument(
            metavar="DIR", help="Folder of a profile, dynamics, a run, an ablation or an atlas; plane: several."
        ),
    ],
    figure: Annotated[str | None, option("What to draw, see above.", "plane | scores | ablation | atlas")] = None,
    path: Annotated[Path | None, option("A .png, .pdf or .svg file.", "FIGURE.png", "-o", "--output")] = None,
    layer: Annotated[
        int | None, option("Figures of one head: its layer.", "the purest heads of both kinds", callback=within(0))
    ] = None,
    head: Annotated[int | None, option("Figures of one head: the head.", "0 with --layer", callback=within(0))] = None,
    frequency: Annotated[
        int | None, option("plane-projection: the frequency ID; 1 is the fastest.", "1", callback=within(1))
    ] = None,
    blocks: Annotated[
        tuple[int, int] | None, option("swap: two blocks, counted from 1.", "most and least attended")
    ] = None,
) -> None:
    """Draw a figure for print from a profile, dynamics, an ablation or an atlas; the same folder gives the same bytes.

    All heads of a profile: plane, heatmaps, heads (one small picture per head), layers, frequencies, use.

    One head, by frequency: head (score and use), path (through the plane).

    One head, other: swap (attention before and after two blocks are swapped), plane-projection (query and keys).

    Dynamics: scores, purity, accuracy, mean-frequency. Ablation: ablation. Atlas: atlas.

    [bold]Examples:[/bold]

    wherewhat plot profiles/smollm2 --figure plane -o plane.pdf
    wherewhat plot profiles/smollm2 --figure swap --layer 3 --head 5 --blocks 2 9
    wherewhat plot runs/number-0 --figure purity
    """
    quiet_libraries()
    import wherewhat as ww

    from ..explorer.load import load_drawable
    from ..explorer.plots import default_figure

    figure = figure or default_figure(load_drawable(results))
    path = path or Path(f"{figure}.png")
    ww.plot(results, figure, path, layer=layer, head=head, frequency=frequency, blocks=blocks)
    print(f"Saved {path}", file=sys.stderr)
