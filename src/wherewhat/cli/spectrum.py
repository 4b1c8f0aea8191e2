"""The command `wherewhat spectrum`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import model_name
from .options import PAIRS, AsJson, Seed, in_cells, model_options, option, output_folder, within
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
@model_options
def spectrum(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Hub id, local folder, .gguf file or folder of a training run; or number, letter."
        ),
    ],
    folder: Annotated[Path | None, output_folder("Folder for the result.", "spectra/MODEL")] = None,
    task: Annotated[
        str | None, option("binding | repeats | a .jsonl file of prompts | a .txt file.", "binding")
    ] = None,
    pairs: Annotated[
        int | None, option("binding: statements per prompt.", "64, or as many as fit", callback=PAIRS)
    ] = None,
    samples: Annotated[
        int | None, option("Number of prompts.", "4; number, letter and runs: 32", callback=within(1))
    ] = None,
    base: Annotated[list[float] | None, option("Other RoPE base; may be repeated.", "100 1e3 1e4 1e5 1e6")] = None,
    top: Annotated[int, option("Number of heads to list for each share.", min=0)] = 5,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Decompose the logits of every head: which heads look at distance alone, and what does rotation change?

    Measures how much of the logits is explained by content, by position, by both together and by distance alone, and compares their singular values with those of the same queries and keys without rotation and with other RoPE bases.

    The model runs once per prompt. An interrupted run resumes when the command is rerun. Tables and a figure, spectrum.pdf, are saved.

    [bold]Examples:[/bold]

    wherewhat spectrum models/SmolLM2.Q4_1.gguf --samples 4
    wherewhat spectrum number
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    folder = folder or Path("spectra") / model_name(model)
    with study(as_json) as listening:
        found = ww.spectrum(
            model, folder=folder, task=task, pairs=pairs, samples=samples, base=base, seed=seed, **loading,
            **listening,
        )  # fmt: skip

    from ..display.style import save_drawn
    from ..results import records
    from ..studies.spectrum.figures import spectrum_figure
    from ..studies.spectrum.terminal import show_spectrum

    save_drawn(folder / "spectrum.pdf", lambda: spectrum_figure(found))
    if as_json:
        print_json(found.about | {"folder": f"{folder}", "heads": records(found.heads)})
    else:
        show_spectrum(found, top, standard_output())
        saved(folder)
