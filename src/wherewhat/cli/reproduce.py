"""The command that reproduces a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .dynamics import Threads
from .options import AsJson, Device, flag, in_cells, option, output_folder, within
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="dynamics, decoupling or encodings.")],
    folder: Annotated[Path, output_folder("Folder for runs and results.")] = Path("runs"),
    seeds: Annotated[int | None, option("Seeds per setting.", "3 | decoupling: 5", callback=within(1))] = None,
    model: Annotated[
        str | None,
        option("decoupling: also draw a language model: hub id, folder, .gguf file or the folder of its profile."),
    ] = None,
    longest: Annotated[int, option("dynamics: skip sequences of more tokens.")] = 5017,
    recipe: Annotated[
        list[str] | None, option("dynamics: 64, 192, half, init, order or tanh; can be repeated.", "64")
    ] = None,
    finished_only: Annotated[
        bool, flag("--finished-only", "dynamics: train nothing, measure all finished runs in the folder.")
    ] = False,
    quick: Annotated[bool, flag("--quick", "encodings: only one seed of four encodings.")] = False,
    size: Annotated[
        str, option("encodings: small, medium (for two cores), or paper, the published size, for a GPU.")
    ] = "small",
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Rerun the experiments of a paper, and show what is found beside what was published.

    dynamics trains models on both multi-hop tasks (about 25 minutes per run on 2 cores), scores them at every checkpoint, and tests the best and the last one with up to 5,000 added tokens (about 40 minutes more). Recipe 64 follows the authors' scripts; 192, half, init and order change one thing each; tanh has the tanh GELU and embedding dropout. It also measures the discrepancy of the constructions.

    decoupling trains one head for each of 32 angles on three tasks, as lookup tables (10 minutes) and as attention-only Transformers (15 minutes), with figures. With --model it also draws the paper's figures of the heads of a language model.

    encodings trains every positional encoding on two tasks: 150 runs of about a minute each (--quick: 8 runs). --size medium trains larger models on longer sequences. What it will cost is stated first; interrupted runs resume.

    Existing results in the folder are reused.

    [bold]Examples:[/bold]

    wherewhat reproduce dynamics -o runs
    wherewhat reproduce dynamics -o runs --recipe 192 --seeds 1
    wherewhat reproduce dynamics -o runs --finished-only
    wherewhat reproduce decoupling --model profiles/smollm2
    wherewhat reproduce encodings --size medium --quick
    """  # noqa: E501 - help texts wrap where they are shown
    import wherewhat as ww

    with study(as_json, f"finished parts in {folder} are kept; rerun the command to resume") as listening:
        found = ww.reproduce(
            paper, folder=folder, seeds=seeds, model=model, longest=longest, recipe=recipe, finished_only=finished_only,
            quick=quick, size=size, device=device, threads=threads, **listening,
        )  # fmt: skip
    if as_json:
        from ..explorer.reproduce import reproduction_records

        print_json(reproduction_records(found))
    else:
        from ..explorer.reproduce import show_reproduction

        show_reproduction(found, standard_output())
        saved(folder / "results")
