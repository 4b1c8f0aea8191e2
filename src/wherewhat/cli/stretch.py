"""The command that predicts from short prompts at what length heads lose their token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import model_name
from .options import AsJson, Model, Seed, in_cells, model_options, option, output_folder, within
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
@model_options
def stretch(
    model: Model,
    folder: Annotated[Path | None, output_folder("Folder for the tables.", "stretch/MODEL")] = None,
    longest: Annotated[
        int | None, option("Predict up to this many tokens.", "the model's context, at most 8192")
    ] = None,
    measure: Annotated[list[int] | None, option("Also run the model at this length; can be repeated.")] = None,
    pairs: Annotated[int, option("Statements per short prompt, at least 3.", callback=within(3))] = 16,
    samples: Annotated[int, option("Number of short prompts.", callback=within(1))] = 4,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Predict from short prompts the length at which each head loses the token it attends to most.

    The keys of the short prompts are placed at larger distances. The model itself runs only on the short prompts, and at the lengths given by --measure for comparison. A short prompt cannot show how a longer context changes the inputs of deeper layers, so the first layers are predicted best.

    [bold]Examples:[/bold]

    wherewhat stretch SmolLM2-135M-Instruct.Q4_1.gguf --longest 8192
    wherewhat stretch stories15M --pairs 8 --measure 128 --measure 256
    """  # noqa: E501 - help texts wrap where they are shown
    import wherewhat as ww

    folder = folder or Path("stretch") / model_name(model)
    with study(as_json) as listening:
        found = ww.stretch(
            model, folder=folder, longest=longest, measure=measure, pairs=pairs, samples=samples, seed=seed,
            **loading, **listening,
        )  # fmt: skip
    if as_json:
        from ..results import records

        agreement = {name: value if math.isfinite(value) else None for name, value in found.agreement().items()}
        summary = {"model": model, "longest": found.about["longest"], "folder": f"{folder}", "agreement": agreement}
        print_json(summary | {"heads": records(found.heads)})
    else:
        from ..studies.lengths.terminal import show_stretch

        show_stretch(found, standard_output())
        saved(folder)
