"""Commands that train small models and measure how heads change during training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import CellsFailed
from ..words import model_name
from .options import (
    PAIRS,
    AsJson,
    Device,
    DeviceMap,
    Dtype,
    Seed,
    TrustRemoteCode,
    flag,
    in_cells,
    option,
    output_folder,
    within,
)
from .output import print_json, saved, standard_output, study

app = typer.Typer()
Threads = Annotated[int | None, option("Processor threads.", "all", callback=within(1))]


@app.command()
def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="number or letter.")],
    folder: Annotated[Path | None, output_folder("Folder of the run.", "runs/TASK-SEED")] = None,
    steps: Annotated[int, option("Training steps; one epoch is 6750.", callback=within(1))] = 6750,
    batch: Annotated[int, option("Sequences per step.", callback=within(1))] = 64,
    rate: Annotated[float, option("Peak learning rate.")] = 1e-4,
    warmup: Annotated[int, option("Steps until the peak learning rate.", callback=within(0))] = 750,
    schedule: Annotated[str, option("Decay of the learning rate to 0: linear or cosine.")] = "linear",
    dropout: Annotated[float, option("Dropout rate.")] = 0.1,
    embedding_dropout: Annotated[float | None, option("Dropout rate of embeddings.", "same as --dropout")] = None,
    exact_gelu: Annotated[bool, flag("--exact-gelu", "Use the exact GELU, not its tanh approximation.")] = False,
    half: Annotated[bool, flag("--half", "Mixed precision: matrix products in float16, emulated.")] = False,
    bfloat16: Annotated[
        bool, flag("--bfloat16", "Matrix products in bfloat16: faster where the processor has it.")
    ] = False,
    every: Annotated[int, option("Steps between checkpoints.", callback=within(1))] = 50,
    threads: Threads = None,
    seed: Seed = 0,
    data_seed: Annotated[int | None, option("Seed of the order of the sequences.", "same as --seed")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a small GPT-J on a multi-hop task.

    The model has 12 layers with one head each; the defaults are the paper's. An interrupted run resumes when the command is rerun, and ends with the same weights.

    [bold]Examples:[/bold]

    wherewhat train number -o runs/number-0
    wherewhat train number --exact-gelu --embedding-dropout 0    # as the authors' scripts do
    """  # noqa: E501 - help texts wrap where they are shown
    import wherewhat as ww

    folder = folder or Path("runs") / f"{task}-{seed}"
    with study(as_json, f"the checkpoints in {folder} are kept; rerun the command to resume", quiet=False) as listening:
        run = ww.train(
            task, folder=folder, steps=steps, batch=batch, rate=rate, warmup=warmup, schedule=schedule, dropout=dropout,
            embedding_dropout=embedding_dropout, exact_gelu=exact_gelu, half=half, bfloat16=bfloat16, every=every,
            threads=threads, seed=seed, data_seed=data_seed, **listening,
        )  # fmt: skip
    last = run.accuracy[run.accuracy["step"] == run.accuracy["step"].max()]
    if as_json:
        print_json({"folder": f"{folder}", "accuracy": last["accuracy"].tolist()})
    else:
        hops, shares = (", ".join(texts) for texts in (map(str, last["hops"]), map("{:.1%}".format, last["accuracy"])))
        standard_output().print(f"{task}: accuracy for {hops} hops {shares}")
        saved(folder)


@app.command()
@in_cells
def dynamics(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="The folder of a training run; or models: folders, .gguf files, owner/name@revision.",
        ),
    ],
    folder: Annotated[
        Path | None, output_folder("Folder for the result.", "RUN/dynamics | dynamics | dynamics/MODEL")
    ] = None,
    prompts: Annotated[int | None, option("Number of prompts.", "2400 | models: 8", callback=within(1))] = None,
    hop_positions: Annotated[
        bool, flag("--hop-positions", "Training run: also score queries at the intermediate positions of each path.")
    ] = False,
    pairs: Annotated[int, option("Models: statements per binding prompt.", callback=PAIRS)] = 32,
    tau: Annotated[float, option("Temperature of the weights over swaps.")] = 1e-4,
    revisions: Annotated[
        str | None,
        option(
            "Shell pattern that selects revisions of one model: subfolders, or branches and tags in git or on the hub."
        ),
    ] = None,
    allow_repeated: Annotated[bool, flag("--allow-repeated", "Accept checkpoints with the same weights.")] = False,
    evict: Annotated[bool, flag("--evict", "Remove each download from the hub after measuring it.")] = False,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Score every head at every checkpoint of a series, and show when each head became pure.

    All checkpoints get the same prompts, and existing results are reused. Revisions are sorted by step: the number after "step" in their names, else the number at the end.

    [bold]Examples:[/bold]

    wherewhat dynamics runs/number-0 --prompts 400
    wherewhat dynamics EleutherAI/pythia-70m --revisions 'step*' --evict
    wherewhat dynamics EleutherAI/pythia-70m@step1000 EleutherAI/pythia-70m@step8000
    """  # noqa: E501 - help texts wrap where they are shown
    import wherewhat as ww

    from ..lab.checkpoint import is_run

    if folder is None:
        of_run = len(sources) == 1 and is_run(sources[0])
        folder = Path(sources[0] if of_run else "") / "dynamics" / ("" if revisions is None else model_name(sources[0]))
    with study(as_json) as listening:
        found = ww.dynamics(
            sources, folder=folder, prompts=prompts, hop_positions=hop_positions, pairs=pairs, tau=tau,
            revisions=revisions, allow_repeated=allow_repeated, evict=evict, dtype=dtype, device=device,
            device_map=device_map, trust_remote_code=trust_remote_code, seed=seed, **listening,
        )  # fmt: skip
    if as_json:
        from ..results import records

        print_json(found.about | {"purity": records(found.purity), "folder": f"{folder}"})
    else:
        from ..studies.dynamics.terminal import show_dynamics

        show_dynamics(found, standard_output())
        saved(folder)
    if failed := found.about.get("failed"):
        raise CellsFailed("checkpoints", len(found.about["series"]) + len(failed), failed, folder / "cells" / "logs")
