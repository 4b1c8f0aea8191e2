"""What commands show: progress, sentences, results; quiet libraries; and what Control-C does."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from ..remote import with_urls
from ..words import printable


@contextmanager
def stoppable(kept: str = "nothing was measured yet") -> Iterator[None]:
    """Control-C ends the command with one line that states what is kept, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(f"wherewhat: stopped; {str(stop) or kept}", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def study(
    as_json: bool = False, kept: str = "nothing was measured yet", quiet: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield `progress` (a bar) and `say` (lines on standard error) for the function that a command calls.

    Control-C ends the command with one line that states what is `kept`; with --json nothing is shown.
    """
    from ..display.terminal import SafeConsole, progress_bar

    if quiet:
        quiet_libraries()
    screen = SafeConsole(stderr=True, quiet=as_json, highlight=False, soft_wrap=True, markup=False)

    def say(sentence: str) -> None:
        screen.print(with_urls(sentence))

    with stoppable(kept), progress_bar(screen) as progress, logged(say):
        yield {"progress": progress, "say": say}


@contextmanager
def logged(show: Callable[[str], None]) -> Iterator[None]:
    """Show what the package logs."""
    log, handler = logging.getLogger("wherewhat"), logging.Handler()
    handler.emit = lambda record: show(record.getMessage())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


def standard_output() -> Any:
    """The console for results; text from models and prompts is never interpreted as markup."""
    from ..display.terminal import SafeConsole

    return SafeConsole(highlight=False, markup=False)


def saved(folder: str | Path, as_json: bool = False) -> None:
    """Print on standard error where a result was saved."""
    if not as_json:
        report_line(f"Saved in {folder}")


def report_line(line: str) -> None:
    """Print on standard error: URLs instead of temporary copies, and no control characters from names."""
    print(printable(with_urls(line)), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    print(with_urls(json.dumps(value)))


def quiet_libraries() -> None:
    """Silence the progress bars and advice of transformers and other libraries."""
    os.environ["TQDM_DISABLE"] = "1"
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
