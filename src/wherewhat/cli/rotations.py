"""The command that plans which rotations a model can do without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import model_name
from .options import AsJson, Model, Seed, flag, in_cells, model_options, option, output_folder
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
@model_options
def rotations(
    model: Model,
    keep: Annotated[int, option("Rotary planes to keep per key head.", min=0)] = 8,
    budget: Annotated[str, option("model: one budget for all heads | head: the same number in every head.")] = "model",
    folder: Annotated[Path | None, output_folder("Folder for the plan.", "rotations/MODEL")] = None,
    text: Annotated[Path | None, option("A .txt file to calibrate on.", "prose in the package")] = None,
    length: Annotated[
        list[int] | None, option("Tokens per document: as long as what the model will read. May be repeated.", "64 256")
    ] = None,
    samples: Annotated[int, option("Documents of each length.", min=1)] = 2,
    evaluate: Annotated[
        bool, flag("--evaluate", "Measure what the plan and other criteria cost on further documents.")
    ] = False,
    test_length: Annotated[
        list[int] | None, option("With --evaluate: tokens per test document; may be repeated.", "as --length")
    ] = None,
    draws: Annotated[int, option("With --evaluate: random plans.", min=1)] = 5,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Plan partial RoPE: which rotary planes each key head needs, from one measurement.

    For every plane of every key head it measures what its rotation does to attention, and keeps the planes whose rotation matters most. The folder holds the plan as a table, as JSON and as rank tensors in safetensors; in Python, ww.gate(model, plan) applies it. With --evaluate the plan is compared with other criteria (norms, the fastest, the slowest, evenly spaced and random planes) on text, copying and binding, at any length that the model takes.

    [bold]Examples:[/bold]

    wherewhat rotations models/stories15M --keep 8 --evaluate
    wherewhat rotations models/SmolLM2.Q4_1.gguf --keep 16 --budget head --text book.txt --length 1024
    wherewhat rotations models/SmolLM2.Q4_1.gguf --evaluate --length 256 --test-length 256 --test-length 2048
    """  # noqa: E501 - paragraphs of help are wrapped by the terminal
    import wherewhat as ww

    folder = folder or Path("rotations") / model_name(model)
    with study(as_json, f"measured documents are kept in {folder}; rerun the command to resume") as listening:
        plan = ww.rotations(
            model, keep=keep, budget=budget, folder=folder, text=text, length=length, samples=samples,
            evaluate=evaluate, test_length=test_length, draws=draws, seed=seed, **loading, **listening,
        )  # fmt: skip
    from ..display.style import save_drawn
    from ..studies.rotations.figures import plan_figure
    from ..studies.rotations.terminal import show_plan

    save_drawn(folder / "rotations.png", lambda: plan_figure(plan))
    if as_json:
        print_json(plan.summary() | {"folder": f"{folder}"})
    else:
        show_plan(plan, standard_output())
        saved(folder)
