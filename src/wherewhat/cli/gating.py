"""The command that turns heads and frequencies off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import (
    AsJson,
    Device,
    DeviceMap,
    Dtype,
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
Several = list[str] | None


@app.command()
@in_cells
def gate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, local folder or .gguf file; or number, letter.")
    ],
    profile: Annotated[
        Path | None, folder_option(help="Folder of the model's profile; number and letter need none.")
    ] = None,
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder for what is found.", show_default="gating/MODEL")
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Statements a binding prompt.")] = 8,
    samples: Annotated[int | None, typer.Option(min=2, help="Prompts of each kind.", show_default="32 | 200")] = None,
    text: Annotated[Path | None, typer.Option(help="A .txt file.", show_default="a story of its own")] = None,
    fraction: Annotated[
        list[float] | None, typer.Option(help="Shares of heads to turn off.", show_default="0.05 0.1 0.2 0.4")
    ] = None,
    draws: Annotated[int, typer.Option(min=2, help="Random controls of each kind.")] = 5,
    ablation: Annotated[str, typer.Option(help="A head's output becomes: mean, over text | zero.")] = "mean",
    each_head: Annotated[
        bool, typer.Option("--each-head", help="Also every head by itself, against all of them.")
    ] = False,
    drop: Annotated[Several, typer.Option(metavar="WORDS", help="Take these frequencies out of the logits.")] = None,
    keep: Annotated[Several, typer.Option(metavar="WORDS", help="Take all but these out.")] = None,
    freeze: Annotated[Several, typer.Option(metavar="WORDS", help="Stop the rotation of these frequencies.")] = None,
    ablate: Annotated[Several, typer.Option(metavar="WORDS", help="Replace the output of these heads.")] = None,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Turn heads and frequencies of a model off and see what breaks, beside as many chosen at random.

    The battery: the most positional and the most symbolic heads, ablated; four bands of frequencies dropped, frozen,
    and each kept alone. Measured on binding, induction, copying and text; number and letter on their own tasks. What
    was measured before is not measured again. With --each-head, wherewhat report can show what each head does.

    With --drop, --keep, --freeze or --ablate, which may be repeated, only these in place of the battery. WORDS are
    "3.1" (head 1 of layer 3), "3.1.5" (its frequency 5), "*.*.5", "fastest quarter", "10 most positional heads",
    "frequencies with symbolic score above .9".

    [bold]Example:[/bold] wherewhat gate models/SmolLM2.Q4_1.gguf --profile profiles/smollm2

    [bold]Example:[/bold] wherewhat gate number --drop "fastest quarter"
    """
    quiet_libraries()
    from rich.console import Console
    from rich.text import Text

    from ..errors import BadInput
    from ..report.gating import save_gating_figure, show_gating
    from ..report.terminal import progress_bar
    from ..studies.behaviour import of_language_model, of_task
    from ..studies.gating import run_gating
    from ..studies.profile_file import Profile
    from ..studies.selections import check_profile, select
    from ..studies.trials import FRACTIONS, Trials
    from ..tasks import TASKS

    screen = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)
    folder = output or Path("gating") / model_name(model)
    if not all(0 < share < 1 for share in fraction or ()):
        raise BadInput(f"--fraction is a share of the heads between 0 and 1, got {fraction}")
    with stoppable(), progress_bar(screen) as progress:
        if model in TASKS:
            from ..lab import embedded
            from ..studies.selections import profile_embedded

            loaded = embedded(model)
            measured = Profile.load(profile) if profile else profile_embedded(model, seed)
            behaviour = of_task(model, samples or 200, seed)
        else:
            from ..capture.load import load, load_tokenizer
            from ..prompts.other import read_text

            if profile is None:
                raise BadInput(f"give --profile DIR, the folder that `wherewhat profile {model}` made")
            measured, written = Profile.load(profile), read_text(text) if text else None
            with screen.status(Text(f"loading {model}")):
                source = {"revision": revision, "trust_remote_code": trust_remote_code}
                loaded = load(model, dtype=dtype, device=device, device_map=device_map, **source)
            behaviour = of_language_model(
                loaded, load_tokenizer(model, **source), pairs=pairs, samples=samples or 32, text=written, seed=seed
            )
        weights = check_profile(measured, loaded)
        made = Trials(measured.heads, max(measured.frequencies["frequency"], default=0))
        asked = {"drop": drop, "keep": keep, "freeze": freeze, "ablate": ablate}
        trials = [
            made.trial(words, how, select(words, measured)) for how, several in asked.items() for words in several or ()
        ] or made.battery(fraction or FRACTIONS)
        if each_head:
            trials += made.each_head()
        found = run_gating(
            loaded,
            behaviour,
            [*trials, *made.controls(trials, draws, seed)],
            weights=weights,
            ablation=ablation,
            seed=seed,
            folder=folder,
            about={"model": model_name(model), "profile": str(profile) if profile else None, "draws": draws},
            progress=progress,
            say=screen.print,
        )
        save_gating_figure(found, folder / "gating.png")
    if as_json:
        print((folder / "gating.json").read_text())
    else:
        show_gating(found, Console(highlight=False, markup=False))
        screen.print(f"Saved in {folder}")
