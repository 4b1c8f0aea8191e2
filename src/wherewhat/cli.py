"""The command line: parse, call a study, show. Bad input is one line on standard error and exit code 2."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
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


def main() -> None:
    """Entry point: what the library refuses becomes one line and exit code 2."""
    try:
        app()
    except (BadInput, NotMeasurable) as error:
        print(f"wherewhat: {error}", file=sys.stderr)
        sys.exit(2)
