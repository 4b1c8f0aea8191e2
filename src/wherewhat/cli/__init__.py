"""The command line: parse, call a study, show. Bad input is one line on standard error and exit code 2."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from ..errors import BadInput, CellsFailed, NotMeasurable
from . import atlas, canonical, encodings, explore, gating, lab, lengths, models, spectrum, stretching, theory

app = typer.Typer(
    name="wherewhat",
    help="Does this attention head look at where, or at what?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app)
app.add_typer(atlas.app)
app.add_typer(lab.app)
app.add_typer(lengths.app)
app.add_typer(stretching.app)
app.add_typer(canonical.app)
app.add_typer(theory.app)
app.add_typer(explore.app)
app.add_typer(gating.app)
app.add_typer(spectrum.app)
app.add_typer(encodings.app)


def show_version(asked: bool) -> bool:
    if asked:
        print(version("wherewhat"))
        raise typer.Exit
    return asked


@app.callback()
def wherewhat(
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Does this attention head look at where, or at what?"""


def main() -> None:
    """Entry point: what the library refuses becomes one line and exit code 2."""
    # Threads that wait by spinning take the processor from those at work: on a busy machine 7 to 18 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except (BadInput, NotMeasurable) as error:
        print(f"wherewhat: {error}", file=sys.stderr)
        sys.exit(2)
    except CellsFailed as error:
        print(f"wherewhat: {error}", file=sys.stderr)
        sys.exit(1)
