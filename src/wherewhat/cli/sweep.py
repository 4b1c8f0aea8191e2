"""Commands that train heads at chosen rotation frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, flag, in_cells, option, output_folder, within
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
def sweep(
    task: Annotated[str, typer.Argument(metavar="TASK", help="index, retrieval or induction.")],
    folder: Annotated[Path | None, output_folder("Folder for the sweep.", "runs/sweeps/TASK")] = None,
    second_plane: Annotated[bool, flag("--second-plane", "Give every head a second plane, of angle 0.")] = False,
    symbols: Annotated[int, option("Number of different symbols.", callback=within(1))] = 16,
    frequency: Annotated[list[int] | None, option("Frequency ID, 1 to 32; can be repeated.", "all 32")] = None,
    seeds: Annotated[int, option("Seeds per angle.", callback=within(1))] = 5,
    steps: Annotated[int, option("Training steps.", callback=within(1))] = 3000,
    batch: Annotated[int, option("Prompts per step.", callback=within(1))] = 256,
    rate: Annotated[float, option("Peak learning rate.")] = 3e-2,
    init_std: Annotated[float, option("Standard deviation of the initial weights.")] = 0.3,
    as_json: AsJson = False,
) -> None:
    """Train one-head models on a canonical task, one per rotation angle, and show which angles can learn it.

    The angle of a frequency ID is 10000^(-(ID-1)/32). All angles and seeds are trained at once. A sweep that was already trained in the folder is reused.

    [bold]Examples:[/bold]

    wherewhat sweep index --frequency 1 --frequency 7 --frequency 13 --seeds 2
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    folder = folder or Path("runs/sweeps") / task
    with study(as_json, quiet=False) as listening:
        found = ww.sweep(
            task, folder=folder, second_plane=second_plane, symbols=symbols, frequency=frequency, seeds=seeds,
            steps=steps, batch=batch, rate=rate, init_std=init_std, **listening,
        )  # fmt: skip
    if as_json:
        from ..results import records

        print_json(records(found.members))
    else:
        from ..studies.sweep.terminal import show_sweep

        show_sweep(found, standard_output())
        saved(folder)
