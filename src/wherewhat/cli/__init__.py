"""The command line: parse, call one function, show its result."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, Any

import typer

from ..errors import BadInput, CellsFailed, NotMeasurable, SetAside
from . import (
    ablation,
    atlas,
    dynamics,
    export,
    lengths,
    profile,
    report,
    reproduce,
    rotations,
    serve,
    spectrum,
    stretch,
    sweep,
    theorems,
)
from .output import report_line

app = typer.Typer(
    name="wherewhat",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
TOPICS = (profile, atlas, dynamics, reproduce, lengths, stretch, sweep, theorems, report, export, serve)
TOPICS += (ablation, rotations, spectrum)
for topic in TOPICS:  # in the order of `wherewhat --help`
    app.add_typer(topic.app)


def show_version(wanted: bool) -> bool:
    if wanted:
        print(version("wherewhat"))
        raise typer.Exit
    return wanted


@app.callback()
def wherewhat(
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Does this attention head look at where, or at what?

    Measures, for every head and every RoPE frequency of a Transformer, whether it attends by position (where) or by symbol (what).
    """  # noqa: E501 - a paragraph of help is one line


def main() -> None:
    """Entry point. BadInput and NotMeasurable are reported in one line with exit code 2, CellsFailed with 1."""
    # Threads that spin while they wait slow down the working ones: on a busy machine by a factor of 7 to 18.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.showwarning = _show_warning
    try:
        app()
    except (BadInput, NotMeasurable) as error:
        report_line(f"wherewhat: {error}".replace("\n", " "))
        sys.exit(2)
    except CellsFailed as error:
        report_line(f"wherewhat: {error}")
        sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A damaged file that was set aside is one line; other warnings are shown as usual."""
    if issubclass(category, SetAside):
        report_line(f"wherewhat: {message}")
    else:
        _show_others(message, category, *where, **more)


_show_others = warnings.showwarning
