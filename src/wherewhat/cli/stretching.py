"""The command that says from short prompts how far the heads of a model will hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from .shared import (
    AsJson,
    DeviceMap,
    Dtype,
    Model,
    Revision,
    Seed,
    TrustRemoteCode,
    folder_option,
    in_cells,
    model_name,
    quiet_libraries,
    stoppable,
)

app = typer.Typer()


@app.command()
@in_cells
def stretch(
    model: Model,
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder for the tables.", show_default="stretch/NAME")
    ] = None,
    longest: Annotated[
        int | None, typer.Option(help="Predict up to so many tokens.", show_default="the model's context, at most 8192")
    ] = None,
    measure: Annotated[
        list[int] | None, typer.Option(help="Also run the model at this length; may be given again.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=3, help="Statements a short prompt.")] = 16,
    samples: Annotated[int, typer.Option(min=1, help="Short prompts.")] = 4,
    dtype: Dtype = "float32",
    device_map: DeviceMap = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Predict from short prompts at what length each head loses the token that it attends to most.

    Contents of the prompt are placed at distances that they never had; the model itself is only run on the short
    prompts, and at the lengths of --measure if prediction and truth are to be compared. What deeper layers would make
    of a longer context is not in a short prompt, so the first layers are predicted best.

    [bold]Example:[/bold] wherewhat stretch SmolLM2-135M-Instruct.Q4_1.gguf --longest 8192

    [bold]Example:[/bold] wherewhat stretch stories15M --pairs 8 --measure 128 --measure 256
    """
    quiet_libraries()
    from rich.console import Console

    from ..capture.check import stated_context
    from ..capture.load import load, load_tokenizer
    from ..errors import BadInput
    from ..prompts.binding import MOST_PAIRS, binding
    from ..prompts.task import Task, make_prompts
    from ..report.holding import show_holding
    from ..report.terminal import progress_bar
    from ..studies.holding import fillers_for, holding

    folder = output or Path("stretch") / model_name(model)
    screen = Console(stderr=True, quiet=as_json, markup=False, highlight=False)
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    loaded = load(model, dtype=dtype, device_map=device_map, **source)
    context = stated_context(loaded)
    far = longest or min(context or 8192, 8192)
    most = max(far, *(measure or [0]))
    if context is not None and most > context:
        raise BadInput(f"the model takes {context} tokens, asked for {most}")
    tokenizer = load_tokenizer(model, **source)
    prompts, _ = make_prompts(Task(pairs=pairs, samples=samples), tokenizer, far, seed)
    fillers = fillers_for(prompts, binding(tokenizer, MOST_PAIRS, samples=1, seed=seed + 1)) if measure else ()
    with stoppable(), progress_bar(screen) as progress:
        found = holding(
            loaded, prompts, far, folder / "cells", measure=measure or (), fillers=fillers, seed=seed, progress=progress
        )
    found.save(folder)
    if as_json:
        heads = found.heads.astype(object).where(found.heads.abs() < math.inf, None).to_dict("records")
        agreement = {name: value if math.isfinite(value) else None for name, value in found.agreement().items()}
        print(json.dumps({"model": model, "longest": far, "agreement": agreement, "heads": heads}))
    else:
        show_holding(found, model_name(model), far, Console(highlight=False, markup=False))
        screen.print(f"Saved in {folder}")
