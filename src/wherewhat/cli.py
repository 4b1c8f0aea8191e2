"""The command line: parse, call a study, show. Bad input is one line on standard error and exit code 2."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .errors import BadInput, NotMeasurable

app = typer.Typer(
    name="wherewhat",
    help="Does this attention head look at where, or at what?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

HEADLINES = ("model", "level", "accuracy", "answer_probability", "correlation", "sensitivity", "self_check")
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Numbers for machines on standard output.")]


@app.callback()
def wherewhat() -> None:
    """Does this attention head look at where, or at what?"""


@app.command()
def demo(
    prompts: Annotated[int, typer.Option(min=1, help="How many random prompts to measure on.")] = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure four heads built by hand and see that each lands where theory puts it.

    [bold]Example:[/bold] wherewhat demo --prompts 32
    """
    from rich.console import Console

    from .report.terminal import show_demo
    from .studies.demo import demo as run_demo

    heads, check = run_demo(prompts, seed)
    if as_json:
        print(json.dumps({"heads": [asdict(head) for head in heads], "self_check": check}))
    else:
        show_demo(heads, check, Console())
    if not all(head.as_theory_says for head in heads):
        raise typer.Exit(1)


@app.command()
def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder or .gguf file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the profile.")],
    task: Annotated[str, typer.Option(help="binding | repeats | a .jsonl file of prompts | a .txt file.")] = "binding",
    kind: Annotated[str, typer.Option(help="What the binding task is about: color, fruit, city, animal.")] = "color",
    pairs: Annotated[int | None, typer.Option(help="Statements a prompt; default 64, or as many as fit.")] = None,
    samples: Annotated[int, typer.Option(help="How many prompts.")] = 8,
    width: Annotated[int, typer.Option(help="Tokens a block, for a .txt file.")] = 8,
    chat: Annotated[bool, typer.Option(help="Put the prompt into the model's chat template.")] = False,
    tau: Annotated[float, typer.Option(help="Temperature of the weights over swaps.")] = 1e-4,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "cpu",
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Tell, for every head and frequency of a model, whether it looks at where or at what.

    An interrupted profile goes on where it was when the same command is given again.

    [bold]Example:[/bold] wherewhat profile models/SmolLM2.Q4_1.gguf -o profiles/smollm2 --pairs 64 --samples 8
    """
    quiet_libraries()
    from rich.console import Console

    from .report.terminal import progress_bar, show_profile
    from .studies.profile import load_with_tokenizer, make_prompts
    from .studies.profile import profile as run_profile

    screen = Console(stderr=True)
    with screen.status(f"loading {model}"):
        loaded, tokenizer = load_with_tokenizer(
            model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code
        )
        prompts, note = make_prompts(loaded, tokenizer, task, pairs, samples, seed, kind=kind, chat=chat, width=width)
    if note and not as_json:
        screen.print(note)
    described = {"model": model, "revision": revision, "task": task}
    with progress_bar(screen) as progress:
        made = run_profile(loaded, prompts, tau=tau, seed=seed, folder=output, about=described, progress=progress)
    if as_json:
        print(json.dumps({name: made.about[name] for name in HEADLINES} | {"folder": str(output)}))
    else:
        show_profile(made, Console())
        screen.print(f"Saved in {output}", highlight=False)


def quiet_libraries() -> None:
    """Progress bars and advice of the libraries below are not what the user asked for."""
    os.environ["TQDM_DISABLE"] = "1"
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main() -> None:
    """Entry point: what the library refuses becomes one line and exit code 2."""
    try:
        app()
    except (BadInput, NotMeasurable) as error:
        print(f"wherewhat: {error}", file=sys.stderr)
        sys.exit(2)
