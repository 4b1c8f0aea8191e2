"""The command that reproduces a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .dynamics import Threads
from .options import AsJson, Device, flag, in_cells, option, output_folder
from .output import print_json, saved, standard_output, study

app = typer.Typer()


@app.command()
@in_cells
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="dynamics, decoupling or encodings.")],
    folder: Annotated[Path, output_folder("Folder for runs and results.")] = Path("runs"),
    seeds: Annotated[int | None, option("Seeds per setting.", "2 | decoupling: 5 | encodings: 3")] = None,
    model: Annotated[
        str | None,
        option("decoupling: also draw a language model: hub id, folder, .gguf file or the folder of its profile."),
    ] = None,
    longest: Annotated[int, option("dynamics: skip sequences of more tokens.")] = 5000,
    quick: Annotated[bool, flag("--quick", "encodings: only one seed of four encodings.")] = False,
    size: Annotated[str, option("encodings: small, or paper, the published size, for a GPU.")] = "small",
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Rerun the experiments of a paper, and show what is found beside what was published.

    dynamics trains models on both multi-hop tasks (about 25 minutes per run on 2 cores), scores them at every checkpoint, and tests them on sequences of up to 5,000 tokens (about 20 minutes more). It also measures the discrepancy of the constructions.

    decoupling trains one head for each of 32 angles on three tasks, with figures (a few minutes). With --model it also draws the paper's figures of the heads of a language model.

    encodings trains every positional encoding on two tasks: 150 runs of about a minute each (--quick: 8 runs).

    Existing results in the folder are reused.

    [bold]Examples:[/bold]

    wherewhat reproduce dynamics -o runs
    wherewhat reproduce decoupling --model profiles/smollm2
    """  # noqa: E501 - help texts wrap where they are shown
    import wherewhat as ww

    with study(as_json, f"finished parts in {folder} are kept; rerun the command to resume") as listening:
        found = ww.reproduce(
            paper, folder=folder, seeds=seeds, model=model, longest=longest, quick=quick, size=size, device=device,
            threads=threads, **listening,
        )  # fmt: skip
    if as_json:
        from ..explorer.reproduce import reproduction_records

        print_json(reproduction_records(found))
    else:
        from ..explorer.reproduce import show_reproduction

        show_reproduction(found, standard_output())
        saved(folder / "results")
