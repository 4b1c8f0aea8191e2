"""The commands that ablate heads and frequencies: `wherewhat ablate` and `wherewhat deposit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import model_name
from .options import (
    PAIRS,
    AsJson,
    Seed,
    existing_folder_option,
    flag,
    in_cells,
    model_options,
    option,
    output_folder,
    within,
)
from .output import print_json, saved, standard_output, study

app = typer.Typer()
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Hub id, local folder, .gguf file or folder of a training run; or number, letter."
    ),
]
Pairs = Annotated[int, option("Statements per binding prompt.", callback=PAIRS)]
Several = list[str] | None


@app.command()
@in_cells
@model_options
def ablate(
    model: Model,
    profile: Annotated[
        Path | None,
        existing_folder_option(help="Folder of the model's profile; heads and frequencies given by number need none."),
    ] = None,
    folder: Annotated[Path | None, output_folder("Folder for the result.", "ablations/MODEL")] = None,
    pairs: Pairs = 8,
    samples: Annotated[
        int | None, option("Prompts of each kind.", "32; number, letter and runs: 200", callback=within(1))
    ] = None,
    text: Annotated[Path | None, option("A .txt file to measure loss on.", "an included story")] = None,
    stretch: Annotated[int | None, option("Tokens per stretch of text; fewer for a short text.", "128", min=26)] = None,
    fraction: Annotated[
        list[float] | None, option("Fraction of heads to ablate; may be repeated.", "0.05 0.1 0.2 0.4")
    ] = None,
    draws: Annotated[int, option("Random controls of each kind.", callback=within(1))] = 5,
    ablation: Annotated[str, option("Output of an ablated head: mean (over other text) | zero.")] = "mean",
    each_head: Annotated[
        bool, flag("--each-head", "Also ablate every head by itself, compared with the mean of all.")
    ] = False,
    heads: Annotated[
        Several, option("Replace the output of these heads.", None, "--heads", "--ablate", metavar="WORDS")
    ] = None,
    drop: Annotated[Several, option("Remove these frequencies from the attention logits.", metavar="WORDS")] = None,
    keep: Annotated[Several, option("Remove all other frequencies of the same heads.", metavar="WORDS")] = None,
    freeze: Annotated[Several, option("Stop the rotation of these frequencies.", metavar="WORDS")] = None,
    stream: Annotated[
        Several,
        option(
            "Let heads see the first and last tokens only: heads, folder of a pattern, need | distant | echo, or all.",
            metavar="WORDS",
        ),
    ] = None,
    sink: Annotated[int | None, option("First tokens that a streaming head sees.", "4, or the pattern's")] = None,
    recent: Annotated[int | None, option("Last tokens that a streaming head sees.", "64, or the pattern's")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Ablate heads and frequencies of a model and measure what breaks, compared with random ablations.

    --heads, --drop, --keep and --freeze choose what to ablate; each may be repeated, and each is measured by itself. WORDS are "16.3, 16.7" (heads 3 and 7 of layer 16), @FILE, "10 most retrieving heads", "retrieving heads with on_blocks above 0.2", "20% most positional heads"; for frequencies "3.1.5" (frequency 5 of head 1 of layer 3), "*.*.5", "fastest quarter", "slowest quarter of 10 most retrieving heads", "frequencies with symbolic score above .9". Words that speak of scores need --profile.

    Without these, the most positional and the most symbolic heads are ablated, and four bands of frequencies are dropped, frozen, and each kept alone.

    --stream evaluates a bounded key-value cache: the given heads, or those of the key heads with the smallest scores (a quarter, half and three quarters of them, or each --fraction), see the first --sink and the last --recent tokens only. Scores are those of a pattern of wherewhat export --to duo, or a criterion: need (the score of that pattern, from --profile), distant (attention beyond the window), echo (attention on the same token and the next in repeated tokens, as in RazorAttention). Controls are drawn within the same layers.

    Models are measured on binding, induction, copying and text; number, letter and training runs on their own task. A set of heads is compared with as many heads drawn at random within the same layers, everything else with random ablations of the same size. The answers to three prompts are shown before and after.

    Existing results are reused. With --each-head, wherewhat report can show the effect of each head.

    [bold]Examples:[/bold]

    wherewhat ablate models/SmolLM2.Q4_1.gguf --heads "16.3, 16.7"
    wherewhat ablate models/SmolLM2.Q4_1.gguf --profile profiles/smollm2 --heads "10 most retrieving heads"
    wherewhat ablate models/SmolLM2.Q4_1.gguf --profile profiles/smollm2
    wherewhat ablate models/SmolLM2.Q4_1.gguf --profile profiles/smollm2 --stream all --recent 32 --pairs 16
    wherewhat ablate number --drop "fastest quarter"
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    folder = folder or Path("ablations") / model_name(model)
    with study(as_json) as listening:
        found = ww.ablate(
            model, profile=profile, folder=folder, pairs=pairs, samples=samples, text=text, stretch=stretch,
            fraction=fraction, draws=draws, ablation=ablation, each_head=each_head, heads=heads, drop=drop, keep=keep,
            freeze=freeze, stream=stream, sink=sink, recent=recent, seed=seed, **loading, **listening,
        )  # fmt: skip

    from ..results import records
    from ..studies.ablation.figures import save_ablation_figure
    from ..studies.ablation.terminal import show_ablation

    save_ablation_figure(found, folder / "ablation.png")
    if as_json:
        tables = {"effects": found.effects, "trials": found.trials, "answers": found.answers}
        listed = {name: [] if table is None else records(table) for name, table in tables.items()}
        print_json(found.about | {"folder": f"{folder}"} | listed)
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
    samples: Annotated[
        int | None, option("Prompts of each kind.", "16; number, letter and runs: 200", callback=within(1))
    ] = None,
    ablation: Annotated[str, option("Output of an ablated head: zero | mean (over other text).")] = "zero",
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Ablate every head of a model by itself: does an ability depend on a single head?

    Reports how unevenly the costs are spread over heads, on binding, induction, copying and text; for number, letter and training runs on their own task. Existing results are reused.

    [bold]Examples:[/bold]

    wherewhat deposit models/stories15M --samples 8
    """  # noqa: E501 - a paragraph of help is one line
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
