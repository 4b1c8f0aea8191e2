"""The commands that ablate heads and frequencies: `wherewhat ablate` and `wherewhat deposit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import model_name
from .options import AsJson, Seed, flag, folder_option, in_cells, model_options, option, output_folder
from .output import print_json, saved, standard_output, study

app = typer.Typer()
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Hub id, local folder, .gguf file or folder of a training run; or number, letter."
    ),
]
Pairs = Annotated[int, option("Statements per binding prompt.")]
Several = list[str] | None


@app.command()
@in_cells
@model_options
def ablate(
    model: Model,
    profile: Annotated[
        Path | None, folder_option(help="Folder of the model's profile; number, letter and runs need none.")
    ] = None,
    folder: Annotated[Path | None, output_folder("Folder for the result.", "ablations/MODEL")] = None,
    pairs: Pairs = 8,
    samples: Annotated[int | None, option("Prompts of each kind.", "32; number, letter and runs: 200")] = None,
    text: Annotated[Path | None, option("A .txt file to measure loss on.", "an included story")] = None,
    fraction: Annotated[
        list[float] | None, option("Fraction of heads to ablate; may be repeated.", "0.05 0.1 0.2 0.4")
    ] = None,
    draws: Annotated[int, option("Random controls of each kind.")] = 5,
    ablation: Annotated[str, option("Output of an ablated head: mean (over other text) | zero.")] = "mean",
    each_head: Annotated[
        bool, flag("--each-head", "Also ablate every head by itself, compared with the mean of all.")
    ] = False,
    drop: Annotated[Several, option("Remove these frequencies from the attention logits.", metavar="WORDS")] = None,
    keep: Annotated[Several, option("Remove all other frequencies of the same heads.", metavar="WORDS")] = None,
    freeze: Annotated[Several, option("Stop the rotation of these frequencies.", metavar="WORDS")] = None,
    ablate: Annotated[Several, option("Replace the output of these heads.", metavar="WORDS")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Ablate heads and frequencies of a model and measure what breaks, compared with random ablations.

    By default, the most positional and the most symbolic heads are ablated,
    and four bands of frequencies are dropped, frozen, and each kept alone.
    Models are measured on binding, induction, copying and text; number,
    letter and training runs on their own task. Every effect is compared with
    that of random ablations of the same size. Existing results are reused.
    With --each-head, wherewhat report can show the effect of each head.

    With --drop, --keep, --freeze or --ablate, which may be repeated, only
    these are measured. WORDS are "3.1" (head 1 of layer 3), "3.1.5" (its
    frequency 5), "*.*.5", "fastest quarter", "10 most positional heads", or
    "frequencies with symbolic score above .9".

    [bold]Examples:[/bold]

    wherewhat ablate models/SmolLM2.Q4_1.gguf --profile profiles/smollm2
    wherewhat ablate number --drop "fastest quarter"
    """
    import wherewhat as ww

    folder = folder or Path("ablations") / model_name(model)
    with study(as_json) as listening:
        found = ww.ablate(
            model, profile=profile, folder=folder, pairs=pairs, samples=samples, text=text, fraction=fraction,
            draws=draws, ablation=ablation, each_head=each_head, drop=drop, keep=keep, freeze=freeze, ablate=ablate,
            seed=seed, **loading, **listening,
        )  # fmt: skip

    from ..results import records
    from ..studies.ablation.figures import save_ablation_figure
    from ..studies.ablation.terminal import show_ablation

    save_ablation_figure(found, folder / "ablation.png")
    if as_json:
        print_json(found.about | {"folder": f"{folder}", "effects": records(found.effects)})
    else:
        show_ablation(found, standard_output())
        saved(folder)


@app.command()
@in_cells
@model_options
def deposit(
    model: Model,
    folder: Annotated[Path | None, output_folder("Folder for the result.", "deposit/MODEL")] = None,
    pairs: Pairs = 8,
    samples: Annotated[int | None, option("Prompts of each kind.", "16; number, letter and runs: 200")] = None,
    ablation: Annotated[str, option("Output of an ablated head: zero | mean (over other text).")] = "zero",
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Ablate every head of a model by itself: does an ability depend on a single head?

    Reports how unevenly the costs are spread over heads, on binding,
    induction, copying and text; for number, letter and training runs on their
    own task. Existing results are reused.

    [bold]Examples:[/bold]

    wherewhat deposit models/stories15M --samples 8
    """
    import wherewhat as ww

    folder = folder or Path("deposit") / model_name(model)
    with study(as_json) as listening:
        found = ww.deposit(
            model, folder=folder, pairs=pairs, samples=samples, ablation=ablation, seed=seed, **loading, **listening
        )

    from ..results import records
    from ..studies.ablation.terminal import show_deposit

    if as_json:
        print_json(found.about | {"folder": f"{folder}", "measures": records(found.measures)})
    else:
        show_deposit(found, standard_output())
        saved(folder)
