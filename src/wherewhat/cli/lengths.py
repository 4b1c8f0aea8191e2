"""Commands that ask how far something holds as sequences grow."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadInput
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
from .text_lengths import measure_text, read_fields, read_key

app = typer.Typer()
ENDPOINT = "Models behind an endpoint"


@app.command()
@in_cells
def lengths(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR_OR_MODEL]",
            help="Folder of a run; number or letter (embedded); or a language model: hub id, folder or .gguf file.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, folder_option("-o", "--output", help="Folder for tables and figure.", show_default="lengths/NAME")
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sequences a length; of language models: a task, window and run.", show_default="200; 20"
        ),
    ] = None,
    longest: Annotated[int, typer.Option(help="Leave out lengths of the paper's grid beyond this.")] = 5000,
    sharpen: Annotated[
        bool, typer.Option("--sharpen", help="Runs: logits times log n / log 17 at n tokens, which undoes dilution.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Language models: runs, with seeds from --seed on.", show_default="5")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask there, such as https://api.openai.com/v1.", rich_help_panel=ENDPOINT),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Whom to ask.", rich_help_panel=ENDPOINT)] = None,
    key_from: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="The variable of the environment that holds the key.",
            show_default="OPENAI_API_KEY", rich_help_panel=ENDPOINT,
        ),
    ] = None,
    per_minute: Annotated[
        float | None,
        typer.Option(min=0.01, help="Most requests a minute.", show_default="no limit", rich_help_panel=ENDPOINT),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests at a time.", show_default="4", rich_help_panel=ENDPOINT)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds to wait.", show_default="60", rich_help_panel=ENDPOINT)
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="Further tries, after longer pauses.", show_default="8", rich_help_panel=ENDPOINT),
    ] = None,
    price_in: Annotated[
        float | None, typer.Option(min=0, help="Price of a million tokens read.", rich_help_panel=ENDPOINT)
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(min=0, help="Price of a million tokens written.", rich_help_panel=ENDPOINT)
    ] = None,
    extra: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="""More fields of every request, such as '{"reasoning_effort": "none"}'.""",
            rich_help_panel=ENDPOINT,
        ),
    ] = None,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure how accuracy falls as sequences grow: of a run by hops, of a language model by one hop as text.

    Runs and embedded models: the same paths, with more symbols on their left. Also the length at which each head loses
    the token that it looks at, beside what the short prompts alone predict. wherewhat report draws it as a page.

    Language models: a window of 12 to 300 symbols and a query that names one of them, by its place (number) or by its
    letter (letter), after an instruction and three worked examples. Every answer is kept as it comes.

    Stopped and started again, it goes on where it was.

    [bold]Example:[/bold] wherewhat lengths number --longest 1000

    [bold]Example:[/bold] wherewhat lengths letter --longest 1000 --sharpen

    [bold]Example:[/bold] wherewhat lengths runs/letter-1 -o lengths/letter-1

    [bold]Example:[/bold] wherewhat lengths HuggingFaceTB/SmolLM2-135M-Instruct --prompts 4

    [bold]Example:[/bold] wherewhat lengths --endpoint http://localhost:8000/v1 --model qwen3 --per-minute 60
    """
    quiet_libraries()
    given = {"per_minute": per_minute, "concurrency": concurrency, "timeout": timeout, "retries": retries}
    given = {name: value for name, value in given.items() if value is not None}
    if endpoint is None:
        others = {"model": model, "key-from": key_from, "price-in": price_in, "price-out": price_out, "extra": extra}
        for name in [*given, *(name for name, value in others.items() if value is not None)]:
            raise BadInput(f"--{name.replace('_', '-')} is for models behind an --endpoint")
        if source is None:
            raise BadInput("which model? a run, number, letter, a language model, or --endpoint URL --model NAME")
    elif source is not None or model is None:
        raise BadInput("an endpoint is asked as --endpoint URL --model NAME, and nothing else is measured with it")

    if endpoint is None and source is not None and is_lab_model(source):
        if runs is not None:
            raise BadInput("--runs is for language models")
        measure_lab_model(source, output, prompts or 200, longest, sharpen, seed, as_json)
        return

    if sharpen:
        raise BadInput("--sharpen is for runs and embedded models")
    from ..studies.executors import current

    if current()[0] is not None:
        raise BadInput("--jobs and --ray are for runs and embedded models; an endpoint takes --concurrency")
    from ..studies.text_lengths import PROMPTS, SEEDS, WINDOWS

    windows = [window for window in WINDOWS if window <= longest]
    if not windows:
        raise BadInput(f"windows start at {WINDOWS[0]} symbols, got --longest {longest}")
    if endpoint is not None:
        from ..studies.endpoint import Endpoint

        key = read_key(key_from or "OPENAI_API_KEY", asked=key_from is not None)
        answerer = Endpoint(endpoint, model or "", key, read_fields(extra), **given)
    else:
        from ..capture import load, load_tokenizer
        from ..studies.local_model import LocalModel

        where = {"revision": revision, "trust_remote_code": trust_remote_code}
        tokenizer = load_tokenizer(source or "", **where)
        answerer = LocalModel(load(source or "", dtype=dtype, device=device, device_map=device_map, **where), tokenizer)
    name = model_name(model or source or "")
    prices = None if price_in is None and price_out is None else (price_in or 0.0, price_out or 0.0)
    measure_text(
        answerer, name, output or Path("lengths") / name, windows=windows, prompts=prompts or PROMPTS,
        seeds=range(seed, seed + (runs or SEEDS)), prices=prices, as_json=as_json,
    )  # fmt: skip


def is_lab_model(source: str) -> bool:
    """A run or an embedded model, not a language model."""
    from ..tasks import TASKS

    path = Path(source)
    return not (path / "config.json").is_file() if path.is_dir() else source in TASKS


def measure_lab_model(
    source: str, output: Path | None, prompts: int, longest: int, sharpen: bool, seed: int, as_json: bool
) -> None:
    """Accuracy by hops of a run or an embedded model, and where its heads lose their token."""
    from rich.console import Console

    from ..report.figures import save_drawn
    from ..report.length_figures import length_curves
    from ..report.lengths import show_lengths
    from ..report.terminal import progress_bar
    from ..studies.lengths import GRID, lengths, model_and_task

    model, task = model_and_task(source)
    folder = output or Path("lengths") / (Path(source).name + "-sharpened" * sharpen)
    screen = Console(stderr=True, quiet=as_json, markup=False, highlight=False)
    with stoppable(f"what was measured is kept in {folder}; the same command goes on"), progress_bar(screen) as bar:
        grid = [length for length in GRID if length <= longest]
        found = lengths(
            model, task, folder / "cells", grid=grid, prompts=prompts, sharpen=sharpen, seed=seed, progress=bar
        )
        found = replace(found, about=found.about | {"model": source, "longest": longest})
        found.save(folder)
        save_drawn(folder / "lengths.pdf", lambda: length_curves(found, task))
    if as_json:
        loss = found.loss.astype(object).where(found.loss.abs() < math.inf, None).to_dict("records")
        print(
            json.dumps(
                {"task": task, "folder": f"{folder}", "lengths": found.accuracy.to_dict("records"), "loss": loss}
            )
        )
    else:
        show_lengths(found, task, Console(highlight=False, markup=False))
        screen.print(f"Saved in {folder}")
