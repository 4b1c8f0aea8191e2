"""Commands that train small models and watch them learn."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadInput, CellsFailed
from .canonical import decoupling
from .encodings import encodings
from .shared import (
    AsJson,
    Device,
    DeviceMap,
    Dtype,
    Seed,
    TrustRemoteCode,
    folder_option,
    in_cells,
    quiet_libraries,
    stoppable,
)

app = typer.Typer()
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads.", show_default="all")]


@app.command()
def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="number or letter.")],
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder of the run.", show_default="runs/TASK-SEED")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training; one epoch is 6750.")] = 6750,
    batch: Annotated[int, typer.Option(min=1, help="Sequences a step.")] = 64,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 1e-4,
    warmup: Annotated[int, typer.Option(min=0, help="Steps until the rate is at its largest.")] = 750,
    schedule: Annotated[str, typer.Option(help="linear or cosine, down to 0.")] = "linear",
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of activities dropped.")] = 0.1,
    every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    threads: Threads = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a small GPT-J (12 layers of one head) on a multi-hop task; the defaults are the paper's.

    A run that was stopped, however rudely, goes on with the same command and ends with the same weights.

    [bold]Example:[/bold] wherewhat train number -o runs/number-0
    """
    import pandas as pd
    from rich.console import Console

    from ..lab import Recipe
    from ..report.terminal import training_bar
    from ..studies.multihop import train_task

    use_threads(threads)
    folder = output or Path("runs") / f"{task}-{seed}"
    recipe = Recipe(steps, batch, rate, warmup=warmup, schedule=schedule, dropout=dropout, seed=seed)
    screen = Console(stderr=True, quiet=as_json, markup=False)
    with stoppable(f"the checkpoints in {folder} are kept; the same command goes on"), training_bar(screen) as progress:
        train_task(task, folder, recipe, every=every, progress=partial(progress, task))
    accuracy = pd.read_parquet(folder / "accuracy.parquet")["accuracy"].tolist()[-4:]
    if as_json:
        print(json.dumps({"folder": f"{folder}", "accuracy": accuracy}))
    else:
        shares = ", ".join(f"{share:.1%}" for share in accuracy)
        Console(highlight=False, markup=False).print(f"{task}: accuracy of 1, 2, 3, 4 hops {shares}. Saved in {folder}")


@app.command()
@in_cells
def dynamics(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...", help="A run of `wherewhat train`, or models: folders, files, owner/name@revision."
        ),
    ],
    prompts: Annotated[
        int | None, typer.Option(min=1, help="How many prompts.", show_default="2400 | models: 8")
    ] = None,
    hop_positions: Annotated[
        bool, typer.Option("--hop-positions", help="A run: look from the tokens hopped to as well.")
    ] = False,
    output: Annotated[
        Path | None,
        folder_option("-o", "--output", help="Folder for the tables.", show_default="DIR/dynamics | dynamics[/MODEL]"),
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Models: statements a binding prompt.")] = 32,
    tau: Annotated[float, typer.Option(help="Temperature of the weights over swaps.")] = 1e-4,
    revisions: Annotated[
        str | None,
        typer.Option(help="Revisions of one model by pattern: folders in it, or branches and tags in git or the hub."),
    ] = None,
    allow_repeated: Annotated[
        bool, typer.Option("--allow-repeated", help="Measure checkpoints with the same weights.")
    ] = False,
    evict: Annotated[
        bool, typer.Option("--evict", help="Remove what is downloaded from the hub when it was measured.")
    ] = False,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Score every checkpoint of a series on the same prompts, and say when each head became pure.

    Checkpoints that were measured before are not measured again. Those of a folder, a git repository or the hub are
    in the order of their steps: the number after "step" in their names, or the one at the end.

    [bold]Example:[/bold] wherewhat dynamics runs/number-0 --prompts 400

    [bold]Example:[/bold] wherewhat dynamics EleutherAI/pythia-70m --revisions 'step*' --evict

    [bold]Example:[/bold] wherewhat dynamics EleutherAI/pythia-70m@step1000 EleutherAI/pythia-70m@step8000
    """
    quiet_libraries()
    from rich.console import Console

    from ..capture.load import check_devices, check_dtype
    from ..core.measure import check_tau
    from ..report.learning import show_dynamics
    from ..report.terminal import progress_bar
    from ..studies.watching import watch_models, watch_run

    check_tau(tau)
    check_dtype(dtype)
    check_devices(device, device_map)
    with stoppable(), progress_bar(Console(stderr=True, quiet=as_json, markup=False)) as progress:
        if len(sources) == 1 and (Path(sources[0]) / "run.json").exists():
            if revisions is not None:
                raise BadInput(f"--revisions is for models, and {sources[0]} is a run, whose checkpoints are all taken")
            made, folder = watch_run(sources[0], output, prompts or 2400, hop_positions, tau, progress)
        else:
            made, folder = watch_models(
                sources,
                output,
                prompts or 8,
                pairs,
                tau,
                seed,
                progress,
                revisions=revisions,
                allow_repeated=allow_repeated,
                evict=evict,
                trust_remote_code=trust_remote_code,
                dtype=dtype,
                device=device,
                device_map=device_map,
            )
    if as_json:
        print(json.dumps(made.about | {"purity": made.purity.to_dict("records"), "folder": f"{folder}"}))
    else:
        show_dynamics(made, Console(highlight=False, markup=False))
        Console(stderr=True, highlight=False, markup=False).print(f"Saved in {folder}")
    if failed := made.about.get("failed"):
        raise CellsFailed("checkpoints", len(made.about["series"]) + len(failed), failed, folder / "cells" / "logs")


@app.command()
@in_cells
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="dynamics, decoupling or encodings.")],
    output: Annotated[Path, folder_option("-o", "--output", help="Folder for runs and tables.")] = Path("runs"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds a task.", show_default="2 | decoupling: 5 | encodings: 3")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="decoupling: draw a real model too; hub id, folder, .gguf file or folder of its profile."),
    ] = None,
    longest: Annotated[int, typer.Option(min=17, help="dynamics: leave out lengths beyond this many tokens.")] = 5000,
    quick: Annotated[bool, typer.Option("--quick", help="encodings: one seed of four encodings.")] = False,
    size: Annotated[str, typer.Option(help="encodings: small, or paper, the published size, for a GPU.")] = "small",
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments again and put what is found beside what was published.

    dynamics: both multi-hop tasks, trained in full (about 25 minutes a run on 2 cores), scored at every checkpoint
    and tried on sequences of up to 5,000 tokens (about 20 minutes more), with the discrepancy of the constructions.
    decoupling: one head for each of 32 angles on three tasks, with figures (some minutes), and with --model what the
    paper draws of a real model's heads. encodings: every positional encoding on two tasks, about a minute a run, 150
    runs (--quick: 8). Whatever is in the folder already is not done again.

    [bold]Example:[/bold] wherewhat reproduce dynamics -o runs

    [bold]Example:[/bold] wherewhat reproduce decoupling --model profiles/smollm2
    """
    from rich.console import Console

    from ..report.geometry_figures import draw_learning
    from ..report.learning import show_learning
    from ..report.terminal import progress_bar, training_bar
    from ..studies.discrepancies import discrepancy_curves
    from ..studies.learning import reproduce_learning

    if paper not in ("dynamics", "decoupling", "encodings"):
        raise BadInput(f"no paper {paper!r}: dynamics, decoupling, encodings")
    if model is not None and paper != "decoupling":
        raise BadInput(f"--model does not apply to {paper}")
    if (quick or size != "small" or device != "cpu") and paper != "encodings":
        raise BadInput(f"--quick, --size and --device do not apply to {paper}")
    use_threads(threads)
    if paper == "encodings":
        encodings(output, seeds or 3, quick, size, device, as_json)
        return
    if paper == "decoupling":
        decoupling(output, seeds or 5, model, as_json)
        return
    screen = Console(stderr=True, quiet=as_json, markup=False)
    with stoppable(f"what was done in {output} is kept; the same command goes on"):
        with training_bar(screen) as training, progress_bar(screen) as progress:
            made = reproduce_learning(output, range(seeds or 2), longest=longest, training=training, progress=progress)
            progress("discrepancy", 0, 1)
            curves = discrepancy_curves()
        made.save(output / "results")
        draw_learning(made, curves, output)
    if as_json:
        print(json.dumps({name: table.to_dict("records") for name, table in made.small_tables().items()}))
    else:
        show_learning(made, Console(highlight=False, markup=False))
        screen.print(f"Tables and figures saved in {output / 'results'}")


def use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
