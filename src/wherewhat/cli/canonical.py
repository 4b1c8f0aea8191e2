"""Commands in which frequency is a knob."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared import AsJson, folder_option, in_cells, model_name, quiet_libraries, stoppable

if TYPE_CHECKING:
    from ..studies.profile_file import Profile

app = typer.Typer()
# What the paper shows of real models: all heads, single ones by frequency and before and after a swap, depth.
OF_REAL_MODELS = ("heatmaps", "plane", "head", "swap", "path", "layers", "heads")


@app.command()
@in_cells
def sweep(
    task: Annotated[str, typer.Argument(metavar="TASK", help="index, retrieval or induction.")],
    output: Annotated[Path, folder_option("-o", "--output", help="Folder for what is trained.")] = Path("runs/sweeps"),
    still: Annotated[bool, typer.Option("--still", help="Give every head a second plane, of angle 0.")] = False,
    symbols: Annotated[int, typer.Option(min=2, help="Different symbols.")] = 16,
    frequency: Annotated[
        list[int] | None, typer.Option(help="Frequency ID, 1 to 32; may be given again.", show_default="all 32")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds an angle.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 3000,
    batch: Annotated[int, typer.Option(min=1, help="Prompts a step.")] = 256,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 3e-2,
    spread: Annotated[float, typer.Option(help="Standard deviation of what training starts from.")] = 0.3,
    as_json: AsJson = False,
) -> None:
    """Train one head for every angle on a canonical task, all at once, and see which angles can learn it.

    Angles are 10000^(-(ID-1)/32). A sweep that is in the folder already is not trained again.

    [bold]Example:[/bold] wherewhat sweep index --frequency 1 --frequency 7 --frequency 13 --seeds 2
    """
    from dataclasses import replace

    from rich.console import Console

    from ..lab.ensemble import RECIPE
    from ..report.canonical import show_sweeps
    from ..report.terminal import progress_bar
    from ..studies.canonical import FREQUENCIES, Setting
    from ..studies.canonical import sweep as run_sweep

    recipe = replace(RECIPE, steps=steps, batch=batch, rate=rate)
    screen = Console(stderr=True, quiet=as_json, markup=False)
    with stoppable(), progress_bar(screen) as progress:
        made = run_sweep(
            [Setting(task, symbols, still)], output, frequencies=frequency or range(1, FREQUENCIES + 1),
            seeds=range(seeds), recipe=recipe, spread=spread, progress=progress,
        )  # fmt: skip
    if as_json:
        print(json.dumps(made.members.to_dict("records")))
    else:
        show_sweeps(made, Console(highlight=False, markup=False))
        screen.print(f"Kept in {output}")


def decoupling(output: Path, seeds: int, model: str | None, as_json: bool) -> None:
    """`reproduce decoupling`: every setting trained, tables and figures saved, claims beside findings."""
    quiet_libraries()
    from rich.console import Console

    from ..report.canonical import show_decoupling
    from ..report.canonical_figures import FIGURES
    from ..report.figures import save_drawn
    from ..report.sentences import profile_sentences
    from ..report.terminal import progress_bar
    from ..studies.decoupling import reproduce_decoupling

    screen = Console(stderr=True, quiet=as_json, markup=False)
    with stoppable(f"what was done in {output} is kept; the same command goes on"), progress_bar(screen) as progress:
        real = None if model is None else draw_model(model, output, progress)
        made = reproduce_decoupling(output, range(seeds), progress=progress)
    made.save(output / "results" / "decoupling")
    for name, draw in FIGURES.items():
        save_drawn(output / "results" / f"decoupling-{name}.png", lambda draw=draw: draw(made.sweeps))
    if as_json:
        tables = {"findings": made.findings, "curvature": made.curvature, "members": made.sweeps.members}
        plain = {name: table.astype(object).where(table.notna(), None) for name, table in tables.items()}
        about = {"model": {name: real.about[name] for name in ("model", "correlation", "medians")}} if real else {}
        print(json.dumps({name: table.to_dict("records") for name, table in plain.items()} | about))
    else:
        console = Console(highlight=False, markup=False)
        show_decoupling(made, console)
        if real:
            console.print(f"{real.about['model']}: {' '.join(profile_sentences(real))}")
        screen.print(f"Tables and figures saved in {output / 'results'}")


def draw_model(model: str, output: Path, progress: Any) -> Profile:
    """The paper's figures of a real model: of the profile in a folder, or of one made as `wherewhat profile` does."""
    from ..capture.check import stated_context
    from ..capture.load import load, load_tokenizer
    from ..prompts.task import Task, make_prompts
    from ..report.plots import plot
    from ..studies.profile import Profile, profile

    if (Path(model) / "profile.json").exists():
        found = Profile.load(model)
    else:
        loaded = load(model)
        prompts, made = make_prompts(Task(), load_tokenizer(model), stated_context(loaded) or 2048)
        found = profile(
            loaded, prompts, folder=output / "profiles" / model_name(model), settings=made.settings(),
            about={"model": model}, progress=progress,
        )  # fmt: skip
    for name in OF_REAL_MODELS:
        plot(found, name, output / "results" / f"decoupling-model-{name}.pdf")
    return found
