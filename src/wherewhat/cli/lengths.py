"""The command that measures how far a model generalises in length."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from ..words import model_name
from .options import AsJson, Seed, flag, in_cells, model_options, option, output_folder, within
from .output import print_json, saved, standard_output, study

app = typer.Typer()
endpoint_option = partial(option, rich_help_panel="Models behind an endpoint")


@app.command()
@in_cells
@model_options
def lengths(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a training run; number or letter (embedded); a language model: hub id, folder or .gguf "
            "file; with --endpoint, the name of a model there.",
        ),
    ],
    folder: Annotated[Path | None, output_folder("Folder for tables and figure.", "lengths/MODEL")] = None,
    prompts: Annotated[
        int | None,
        option(
            "Sequences per length; language models: prompts per task, window and run.", "200; 20", callback=within(1)
        ),
    ] = None,
    longest: Annotated[int, option("Longest sequence, in tokens (language models: symbols).")] = 5000,
    sharpen: Annotated[
        bool,
        flag(
            "--sharpen",
            "Training runs, number, letter: multiply logits by log n / log 17 at n tokens, to offset dilution.",
        ),
    ] = False,
    runs: Annotated[
        int | None, option("Language models: number of runs; seeds count up from --seed.", "5", callback=within(1))
    ] = None,
    one_message: Annotated[
        bool, flag("--one-message", "Language models: instruction and examples in one message of a chat, as published.")
    ] = False,
    endpoint: Annotated[
        str | None,
        endpoint_option("OpenAI-compatible API, such as https://api.openai.com/v1.", metavar="URL"),
    ] = None,
    api_key_env: Annotated[
        str | None,
        endpoint_option("Environment variable that holds the API key.", "OPENAI_API_KEY", metavar="VARIABLE"),
    ] = None,
    per_minute: Annotated[float | None, endpoint_option("Maximum number of requests per minute.", "no limit")] = None,
    concurrency: Annotated[int | None, endpoint_option("Requests at a time.", "4", callback=within(1))] = None,
    timeout: Annotated[float | None, endpoint_option("Seconds to wait for an answer.", "60")] = None,
    retries: Annotated[
        int | None, endpoint_option("Retries per request, with increasing pauses.", "8", callback=within(0))
    ] = None,
    price_in: Annotated[float | None, endpoint_option("Price of a million tokens read.")] = None,
    price_out: Annotated[float | None, endpoint_option("Price of a million tokens written.")] = None,
    extra: Annotated[
        str | None,
        endpoint_option(
            """Additional fields of every request, such as '{"reasoning_effort": "none"}'.""", metavar="JSON"
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **loading: Any,
) -> None:
    """Measure how accuracy falls as sequences grow longer.

    Training runs and embedded models: the same sequences, extended on the left with more symbols. Also measures and predicts the length at which the attention of each head on its token falls to half. wherewhat report shows the result as a page.

    Language models: a window of 12 to 300 symbols and a query that names one of them, by its position (number) or by its letter (letter), after an instruction and three worked examples. Every answer is saved as it arrives.

    An interrupted run resumes when the command is rerun.

    [bold]Examples:[/bold]

    wherewhat lengths number --longest 1000
    wherewhat lengths letter --longest 1000 --sharpen
    wherewhat lengths runs/letter-1 -o lengths/letter-1
    wherewhat lengths HuggingFaceTB/SmolLM2-135M-Instruct --prompts 4
    wherewhat lengths HuggingFaceTB/SmolLM2-135M-Instruct --one-message
    wherewhat lengths qwen3 --endpoint http://localhost:8000/v1 --per-minute 60
    """  # noqa: E501 - help texts wrap where they are shown
    import wherewhat as ww

    folder = folder or Path("lengths") / (model_name(model) + "-sharpened" * sharpen + "-one-message" * one_message)
    with study(as_json, kept=f"results so far are kept in {folder}; rerun the command to resume") as listening:
        found = ww.lengths(
            model, folder=folder, prompts=prompts, longest=longest, sharpen=sharpen, runs=runs,
            one_message=one_message, endpoint=endpoint, api_key_env=api_key_env, per_minute=per_minute,
            concurrency=concurrency, timeout=timeout, retries=retries, price_in=price_in, price_out=price_out,
            extra=None if extra is None else read_object(extra), seed=seed, **loading, **listening,
        )  # fmt: skip
    if isinstance(found, ww.Lengths):
        show_lab_model(found, folder, as_json)
    else:
        show_language_model(found, folder, as_json)


def show_lab_model(found: Any, folder: Path, as_json: bool) -> None:
    from ..results import records

    if as_json:
        tables = {"lengths": records(found.accuracy), "loss": records(found.loss)}
        print_json({"task": found.about["task"], "folder": f"{folder}"} | tables)
    else:
        from ..studies.lengths.terminal import show_lengths

        show_lengths(found, standard_output())
        saved(folder)


def show_language_model(found: Any, folder: Path, as_json: bool) -> None:
    from ..results import records

    if as_json:
        accuracy, (read, written) = records(found.accuracy), found.tokens
        summary = {"model": found.name, "folder": f"{folder}", "lengths": accuracy, "kept": found.kept}
        print_json(summary | {"tokens_read": read, "tokens_written": written, "cost": found.cost})
    else:
        from ..studies.lengths.terminal import show_text_lengths

        show_text_lengths(found, standard_output())
        saved(folder)


def read_object(text: str) -> dict[str, Any]:
    """The JSON object given as --extra."""
    from ..files import parse_json

    try:
        fields = parse_json(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise BadInput(f"--extra must be a JSON object, got {text[:200]}")
    return fields
