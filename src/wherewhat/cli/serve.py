"""The live page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import existing_folder_option, flag, model_options, option
from .output import study

app = typer.Typer()


@app.command()
@model_options
def serve(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Hub ID, local folder, .gguf file, training run, number or letter."),
    ],
    profile: Annotated[
        Path | None, existing_folder_option("--profile", help="Folder of a profile of this model, to compare with.")
    ] = None,
    host: Annotated[str, option("Address to listen on; anything but loopback lets other machines in.")] = "127.0.0.1",
    port: Annotated[int | None, option("Port to listen on.", "the first free one from 8420 on")] = None,
    open: Annotated[bool, flag("--open", "Open the page in a browser.")] = False,
    **loading: Any,
) -> None:
    """Serve a live page: type a prompt, see every head, swap blocks, ablate heads, watch the answer change.

    The page is reached at the address that is printed, which contains a random token. Control-C stops it.

    [bold]Examples:[/bold]

    wherewhat serve models/SmolLM2.Q4_1.gguf --open
    wherewhat serve number
    """
    import wherewhat as ww

    with study(kept="no page was served yet") as listening:
        ww.serve(model, profile=profile, host=host, port=port, open=open, **loading, **listening)
