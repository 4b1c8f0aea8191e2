"""What the commands share: options, quiet libraries, and what Control-C does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder or .gguf file.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")]
DeviceMap = Annotated[str | None, typer.Option(help="Spread a big model over devices, such as auto; needs accelerate.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Numbers for machines on standard output.")]


def model_name(model: str) -> str:
    """The last part of a path or hub id, without .gguf."""
    return Path(model.rstrip("/")).name.removesuffix(".gguf")


@contextmanager
def stoppable(kept: str = "nothing was measured yet") -> Iterator[None]:
    """Control-C ends in one line that says what is kept, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(f"wherewhat: stopped; {str(stop) or kept}", file=sys.stderr)
        raise typer.Exit(130) from None


def quiet_libraries() -> None:
    """Progress bars and advice of the libraries below are not what the user asked for."""
    os.environ["TQDM_DISABLE"] = "1"
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
