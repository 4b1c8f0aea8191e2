"""The command that profiles many models."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from .shared import AsJson, folder_option, in_cells, quiet_libraries, stoppable

app = typer.Typer()


@app.command()
@in_cells
def atlas(
    models: Annotated[Path, typer.Argument(metavar="MODELS.TOML", help="The list of models.")],
    output: Annotated[Path, folder_option("-o", "--output", help="Folder for the data set.")] = Path("atlas"),
    as_json: AsJson = False,
) -> None:
    """Profile a list of models, and make one data set of them, with a card and a page to explore it.

    The list has defaults at its top, a table [card] with title and licence of the data, and [[models]], each with
    model (a hub id, or the path of a folder or a .gguf file from the list) and what is its own: name, family, licence,
    revision, dtype, device, device_map, trust_remote_code, seed, level, swaps, tau, task, kind, template, pairs,
    samples, chat, width.

    What was measured before is not measured again. A model that fails is told at the end, with exit code 1, and all
    others are kept. With --jobs or --ray several models are measured at a time.

    The folder is ready for the hub: data/*.parquet, README.md, report.html; profiles/ has every model by itself.

    [bold]Example:[/bold] wherewhat atlas examples/atlas.toml -o atlas
    """
    quiet_libraries()
    from rich.console import Console

    from ..report.atlas import show_atlas
    from ..report.atlas_card import write_card
    from ..report.explorer import write_report
    from ..report.terminal import progress_bar
    from ..studies.atlas import atlas as run_atlas

    screen = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)
    with stoppable(), progress_bar(screen) as progress:
        made = run_atlas(models, output, progress=progress, say=screen.print)
    write_card(made, output)
    write_report([output], output / "report.html")
    if as_json:
        rows = made.models.astype(object).where(made.models.notna(), None).replace(math.inf, "inf").to_dict("records")
        print(json.dumps(made.about | {"folder": str(output), "models": rows}))
    else:
        show_atlas(made, Console(highlight=False, markup=False))
        screen.print(f"Saved in {output}; open {output / 'report.html'} in a browser to explore it")
    if made.failed:
        told = f"{len(made.failed)} of {len(made.models) + len(made.failed)} models were not measured"
        print(f"wherewhat: {told}; the same command tries only these again", file=sys.stderr)
        raise typer.Exit(1)
