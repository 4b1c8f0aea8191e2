"""Commands that measure a model and show what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import model_name
from .options import (
    PAIRS,
    AsJson,
    Model,
    Seed,
    flag,
    folder_argument,
    in_cells,
    model_options,
    option,
    output_folder,
    within,
)
from .output import print_json, report_line, saved, standard_output, study

app = typer.Typer()
HEADLINES = """model level tau accuracy answer_probability by_position correlation medians sinks little retrieval
skipped swaps sensitivity warnings self_check""".split()


@app.command()
def demo(
    folder: Annotated[Path, output_folder("Folder for both profiles and the page.")] = Path("demo"),
    prompts: Annotated[int, option("Number of sequences of each task to measure on.", callback=within(1))] = 64,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Profile the two small models that ship with wherewhat: one task needs positions, the other does not.

    Writes both profiles, and report.html: an interactive page that also replays how the models learnt.

    [bold]Examples:[/bold]

    wherewhat demo --prompts 200
    """
    import wherewhat as ww

    from ..explorer.page import demo_html
    from ..files import write_atomically
    from ..results import records
    from ..studies.multihop.terminal import show_demo

    with study(as_json) as listening:
        shown = ww.demo(folder, prompts=prompts, seed=seed, **listening)
    page = folder / "report.html"
    write_atomically(page, demo_html(shown))
    if as_json:
        models = {
            name: {headline: found.about[headline] for headline in HEADLINES} | {"heads": records(found.heads)}
            for name, found in shown.profiles.items()
        }
        print_json(models | {"report": str(page)})
    else:
        show_demo(shown, standard_output())
        saved(f"{folder}; open {page} in a browser to explore the profiles")
        report_line("A live page of either model: wherewhat serve number, wherewhat serve letter")


@app.command()
@in_cells
@model_options
def profile(
    model: Model,
    folder: Annotated[Path | None, output_folder("Folder for the profile.", "profiles/MODEL")] = None,
    task: Annotated[
        list[str] | None,
        option("binding | repeats | prose | a .jsonl file of prompts | a .txt file; may be repeated.", "binding"),
    ] = None,
    kind: Annotated[str | None, option("binding: color, fruit, city or animal.", "color")] = None,
    template: Annotated[str | None, option("binding: plain, favorite, record or owner.", "plain")] = None,
    pairs: Annotated[
        int | None,
        option("binding: statements per prompt, 2 to 512.", "64, or as many as fit", callback=PAIRS),
    ] = None,
    group: Annotated[int | None, option("binding: statements per block.", "1", callback=within(1))] = None,
    samples: Annotated[int | None, option("Number of prompts.", "8", callback=within(1))] = None,
    chat: Annotated[bool | None, option("binding: apply the model's chat template.", "no-chat")] = None,
    width: Annotated[int | None, option("Text: tokens per block.", "8", callback=within(1))] = None,
    stretch: Annotated[
        int | None, option("Text: tokens per prompt; fewer for a short text.", "256", callback=within(1))
    ] = None,
    level: Annotated[
        str, option("keys: swap inside each head | prompt: swap in the prompt and rerun the model.")
    ] = "keys",
    swaps: Annotated[
        int | None, option("level prompt: most swaps to run per prompt.", "128", callback=within(1))
    ] = None,
    tau: Annotated[float, option("Temperature of the weights over swaps; inf: unweighted mean.")] = 1e-4,
    overwrite: Annotated[bool, flag("--overwrite", "Replace a profile with other settings.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Measure whether each head and frequency of a model attends by position (where) or by symbol (what).

    With several tasks, the profile shows the heads on the first, and how many of them keep their kind on each of the others; "prose" is a story that comes with wherewhat.

    An interrupted profile resumes when the command is rerun. Models that add positions to their embeddings, such as GPT-2, can only be measured at level prompt.

    A .jsonl file holds one prompt per line, with its blocks as spans of characters (start, stop):

    {"text": "A list. Ann likes red. Bob likes tan. Ann likes", "blocks": [[7, 22], [22, 37]], "answer": " red"}

    or of tokens, with "ids": [5, 17, ...] instead of "text". "answer" is optional.

    [bold]Examples:[/bold]

    wherewhat profile models/SmolLM2.Q4_1.gguf -o profiles/smollm2 --pairs 64 --samples 8
    wherewhat profile models/SmolLM2.Q4_1.gguf --task binding --task prose
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    folder = folder or Path("profiles") / model_name(model)
    with study(as_json) as listening:
        found = ww.profile(
            model, folder=folder, task=task, kind=kind, template=template, pairs=pairs, group=group, samples=samples,
            chat=chat, width=width, stretch=stretch, level=level, swaps=swaps, tau=tau, overwrite=overwrite, seed=seed,
            **loading, **listening,
        )  # fmt: skip
    if as_json:
        tasks = {"tasks": found.about["tasks"]} if "tasks" in found.about else {}
        print_json({name: found.about[name] for name in HEADLINES} | tasks | {"folder": f"{folder}"})
    else:
        from ..studies.profile.terminal import show_profile

        show_profile(found, standard_output())
        saved(folder)


@app.command()
def compare(
    a: Annotated[Path, folder_argument(metavar="A", help="Folder of a profile.")],
    b: Annotated[Path, folder_argument(metavar="B", help="Folder of another profile.")],
    folder: Annotated[Path | None, output_folder("Folder for the comparison.")] = None,
    movers: Annotated[int, option("Number of heads to list, those that moved most.", min=0)] = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare two profiles head by head, with intervals over prompts.

    Nothing is saved without --output.

    [bold]Examples:[/bold]

    wherewhat compare profiles/smollm2 profiles/smollm2-chat
    """
    import wherewhat as ww

    from ..results import records
    from ..studies.profile.terminal import show_comparison

    found = ww.compare(a, b, folder=folder, seed=seed)
    if as_json:
        print_json(found.about | {"heads": None if found.heads is None else records(found.heads)})
    else:
        show_comparison(found, (str(a), str(b)), movers, standard_output())
    if folder is not None:
        saved(folder, as_json)


@app.command()
@model_options
def doctor(
    model: Model,
    folder: Annotated[Path | None, output_folder("Folder for the diagnosis.")] = None,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Compare the measured rotation, windows and scaling of every layer with what the configuration declares.

    Exit code 0: healthy; 1: something is not as declared. Nothing is saved without --output.

    Weights laid out for the other pairing of dimensions cannot be detected this way: the rotation itself is then as declared.

    [bold]Examples:[/bold]

    wherewhat doctor models/SmolLM2.Q4_1.gguf
    """  # noqa: E501 - a paragraph of help is one line
    import wherewhat as ww

    from ..studies.doctor.terminal import show_diagnosis

    with study(as_json) as listening:
        diagnosis = ww.doctor(model, folder=folder, **loading, **listening)
    if as_json:
        print_json({"model": model} | diagnosis.as_dict())
    else:
        show_diagnosis(diagnosis, standard_output())
    if folder is not None:
        saved(folder, as_json)
    if not diagnosis.healthy:
        raise typer.Exit(1)
