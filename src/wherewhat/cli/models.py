"""Commands that measure a model and show what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .shared import (
    AsJson,
    Device,
    DeviceMap,
    Dtype,
    Model,
    Revision,
    Seed,
    TrustRemoteCode,
    folder_argument,
    folder_option,
    in_cells,
    model_name,
    quiet_libraries,
    stoppable,
)

app = typer.Typer()
HEADLINES = """model level tau accuracy answer_probability by_position correlation medians sinks left_out swaps
sensitivity warnings self_check""".split()


@app.command()
def demo(
    output: Annotated[Path, folder_option("-o", "--output", help="Folder for profiles and page.")] = Path("demo"),
    prompts: Annotated[int, typer.Option(min=1, help="How many sequences of each task to measure on.")] = 64,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Profile the two small models that ship with wherewhat: one had to learn positions, the other had not.

    Writes both profiles and report.html, a page to explore them, which also shows as a film how they learnt.

    [bold]Example:[/bold] wherewhat demo --prompts 200
    """
    quiet_libraries()
    from rich.console import Console

    from ..files import write_atomically
    from ..report.explorer import explorer_html
    from ..report.terminal import progress_bar, show_demo
    from ..studies.demo import demo as run_demo

    screen = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)
    with stoppable(), progress_bar(screen) as progress:
        models = run_demo(output, prompts, seed, progress)
    sources = {shown.name: shown.profile for shown in models}
    sources |= {f"{shown.name}, learning": shown.learning for shown in models}
    page = output / "report.html"
    write_atomically(page, explorer_html(list(sources.values()), list(sources)))
    if as_json:
        about = {shown.name: {name: shown.profile.about[name] for name in HEADLINES} for shown in models}
        heads = {shown.name: {"heads": shown.profile.heads.to_dict("records")} for shown in models}
        print(json.dumps({name: about[name] | heads[name] for name in about} | {"report": str(page)}))
    else:
        show_demo(models, Console(highlight=False, markup=False))
        screen.print(f"Profiles saved in {output}; open {page} in a browser to explore them")


@app.command()
@in_cells
def profile(
    model: Model,
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder for the profile.", show_default="profiles/MODEL")
    ] = None,
    task: Annotated[str, typer.Option(help="binding | repeats | a .jsonl file of prompts | a .txt file.")] = "binding",
    kind: Annotated[
        str | None, typer.Option(help="binding: color, fruit, city or animal.", show_default="color")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="binding: plain, favorite, record or owner.", show_default="plain")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(help="binding: statements a prompt, 2 to 512.", show_default="64, or as many as fit")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="How many prompts.", show_default="8")] = None,
    chat: Annotated[
        bool | None, typer.Option(help="binding: put it into the model's chat template.", show_default="no-chat")
    ] = None,
    width: Annotated[int | None, typer.Option(help=".txt file: tokens a block.", show_default="8")] = None,
    level: Annotated[
        str, typer.Option(help="keys: swap inside each head | prompt: swap in the prompt and run the model again.")
    ] = "keys",
    swaps: Annotated[
        int | None, typer.Option(help="level prompt: swaps to run a prompt, if there are more.", show_default="128")
    ] = None,
    tau: Annotated[float, typer.Option(help="Temperature of the weights over swaps; inf: plain mean.")] = 1e-4,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a profile with other settings.")] = False,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Tell, for every head and frequency of a model, whether it looks at where or at what.

    An interrupted profile goes on where it was when the same command is given again. Models that add positions to
    their embeddings, such as GPT-2, have scores at level prompt only.

    A .jsonl file holds one prompt a line, with its blocks as spans of characters (start, stop):
    {"text": "A list. Ann likes red. Bob likes tan. Ann likes", "blocks": [[7, 22], [22, 37]], "answer": " red"},
    or of tokens, with "ids": [5, 17, ...] instead of "text"; "answer" may be missing.

    [bold]Example:[/bold] wherewhat profile models/SmolLM2.Q4_1.gguf -o profiles/smollm2 --pairs 64 --samples 8
    """
    from ..prompts.task import Task

    asked = Task(task, kind, template, pairs, samples, chat, width)
    quiet_libraries()
    from rich.console import Console
    from rich.text import Text

    from ..capture.check import stated_context
    from ..capture.load import check_dtype, load, load_tokenizer
    from ..core.measure import check_tau
    from ..prompts.task import make_prompts
    from ..report.terminal import progress_bar, show_profile
    from ..studies.profile import check_level, measure_settings
    from ..studies.profile import profile as run_profile
    from ..studies.profile_file import already_there

    folder = output or Path("profiles") / model_name(model)
    screen = Console(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)
    number_of_swaps = check_level(level, swaps)
    check_tau(tau)
    check_dtype(dtype)
    settings = {name: value for name, value in asked.settings().items() if value is not None}
    there = already_there(folder, settings | measure_settings(level, number_of_swaps, tau, seed, dtype), overwrite)
    with stoppable():
        with screen.status(Text(f"loading {model}")):
            source = {"revision": revision, "trust_remote_code": trust_remote_code}
            tokenizer = load_tokenizer(model, **source)
            loaded = load(model, dtype=dtype, device=device, device_map=device_map, **source)
            prompts, made = make_prompts(asked, tokenizer, stated_context(loaded) or 2048, seed)
        with progress_bar(screen) as progress:
            finished = run_profile(
                loaded,
                prompts,
                level=level,
                swaps=swaps,
                tau=tau,
                seed=seed,
                folder=folder,
                overwrite=overwrite,
                settings=made.settings(),
                about={"model": model, "revision": revision},
                progress=progress,
                say=screen.print,
            )
    if as_json:
        print(json.dumps({name: finished.about[name] for name in HEADLINES} | {"folder": f"{folder}"}))
    else:
        show_profile(finished, Console(highlight=False, markup=False))
        if not there:
            screen.print(f"Saved in {folder}")


@app.command()
def compare(
    one: Annotated[Path, folder_argument(metavar="A", help="Folder of a profile.")],
    other: Annotated[Path, folder_argument(metavar="B", help="Folder of another.")],
    movers: Annotated[int, typer.Option(min=0, help="How many of the heads that moved most to list.")] = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare two profiles head by head: what moved, and by how much more than the prompts explain.

    [bold]Example:[/bold] wherewhat compare profiles/smollm2 profiles/smollm2-chat
    """
    from rich.console import Console

    from ..report.comparison import show_comparison
    from ..studies.compare import compare as run_compare
    from ..studies.profile_file import Profile

    found = run_compare(Profile.load(one), Profile.load(other), seed=seed)
    if as_json:
        heads = None if found.heads is None else found.heads.astype(object).where(found.heads.notna(), None)
        print(json.dumps(found.about | {"heads": None if heads is None else heads.to_dict("records")}))
    else:
        show_comparison(found, (str(one), str(other)), movers, Console(highlight=False, markup=False))


@app.command()
def doctor(
    model: Model,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Compare the measured rotation, windows and scaling of every layer with what the configuration promises.

    Exit code 0: healthy; 1: something is not as promised. Weights laid out for the other pairing of dimensions cannot
    be seen this way: the rotation itself is then as promised.

    [bold]Example:[/bold] wherewhat doctor models/SmolLM2.Q4_1.gguf
    """
    quiet_libraries()
    from rich.console import Console
    from rich.text import Text

    from ..capture.load import load
    from ..report.doctor import show_diagnosis
    from ..studies.doctor import doctor as examine
    from ..studies.promise import settings_of

    screen = Console(stderr=True, quiet=as_json, markup=False)
    with stoppable():
        with screen.status(Text(f"loading {model}")):
            source = {"revision": revision, "trust_remote_code": trust_remote_code}
            loaded = load(model, dtype=dtype, device=device, device_map=device_map, **source)
        with screen.status("measuring how position acts on every layer"):
            diagnosis = examine(loaded, settings_of(model, revision))
    if as_json:
        print(json.dumps({"model": model} | diagnosis.as_dict()))
    else:
        show_diagnosis(model_name(model), diagnosis, Console(highlight=False))
    if not diagnosis.healthy:
        raise typer.Exit(1)
