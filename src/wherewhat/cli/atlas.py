"""The command that profiles many models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, in_cells, output_folder
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
def atlas(
    models: Annotated[Path, typer.Argument(metavar="MODELS.TOML", help="The list of models.")],
    folder: Annotated[Path, output_folder("Folder for the data set.")] = Path("atlas"),
    as_json: AsJson = False,
) -> None:
    """Profile a list of models and collect them into one data set, with a card and an interactive page.

    The list is a TOML file with defaults at the top, a table \\[card] with the title and licence of the data, and one \\[\\[models]] entry per model. An entry has model (a hub id, or the path of a folder or .gguf file, relative to the list) and may override the defaults: name, family, licence, revision, dtype, device, device_map, trust_remote_code, seed, level, swaps, tau, task, kind, template, pairs, group, samples, chat, width, stretch.

    Existing results are reused. Failed models are listed at the end, with exit code 1; all others are kept. With --jobs or --ray several models are measured at a time.

    The folder is ready for the hub: data/*.parquet, README.md, report.html; profiles/ holds every model by itself.

    [bold]Examples:[/bold]

    wherewhat atlas examples/atlas.toml -o atlas
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    from ..explorer.page import report
    from ..files import plain
    from ..results import records
    from ..studies.atlas.terminal import show_atlas

    with study(as_json) as listening:
        found = ww.atlas(models, folder, **listening)
    page = folder / "report.html"
    report([folder], page)
    if as_json:
        taus = [{"tau": plain(tau)} for tau in found.models["tau"]]
        rows = [row | tau for row, tau in zip(records(found.models), taus, strict=True)]
        print_json(found.about | {"folder": str(folder), "models": rows})
    else:
        show_atlas(found, standard_output())
        saved(f"{folder}; open {page} in a browser to explore it")
    if found.failed:
        total = len(found.models) + len(found.failed)
        failed = f"{len(found.failed)} of {total} models were not measured"
        print(f"wherewhat: {failed}; rerun the command to try only these again", file=sys.stderr)
        raise typer.Exit(1)
