"""What the commands share: options, quiet libraries, and what Control-C does."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..elsewhere import here
from ..errors import BadInput

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder or .gguf file.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="Spread a big model over devices and disk: auto, or auto:0=20GB,cpu=50GB with limits; needs accelerate."
    ),
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Numbers for machines on standard output.")]


def folder_here(place: str | Path) -> Path:
    """A folder as it is given: a path, or the URL of one elsewhere."""
    try:
        return here(place)
    except BadInput as error:
        print(f"wherewhat: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


folder_option = partial(typer.Option, parser=folder_here, metavar="FOLDER")
folder_argument = partial(typer.Argument, parser=folder_here)


def model_name(model: str) -> str:
    """The last part of a path or hub id, without .gguf."""
    return Path(model.rstrip("/")).name.removesuffix(".gguf")


WHERE = "Where cells are computed"
Jobs = Annotated[
    int,
    typer.Option(
        min=1, help="Cells at a time, each in a process with its share of the threads.", rich_help_panel=WHERE
    ),
]
Ray = Annotated[
    str | None, typer.Option(help="Compute on a Ray cluster: local, auto or host:port.", rich_help_panel=WHERE)
]
GpusPerCell = Annotated[float, typer.Option(min=0, help="Ray: GPUs that a cell needs.", rich_help_panel=WHERE)]
MemoryPerCell = Annotated[
    float, typer.Option(min=0, help="Ray: gigabytes of memory that a cell needs.", rich_help_panel=WHERE)
]
SPREAD: dict[str, tuple[Any, Any]] = {
    "jobs": (Jobs, 1),
    "ray": (Ray, None),
    "gpus_per_cell": (GpusPerCell, 0.0),
    "memory_per_cell": (MemoryPerCell, 0.0),
}


def in_cells(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose study runs as cells: it takes --jobs and --ray, and its cells are computed there."""
    known = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in SPREAD.items()
    ]

    @wraps(command)
    def spread(**options: Any) -> None:
        jobs, ray, gpus, memory = (options.pop(name) for name in SPREAD)
        if ray is None and (gpus or memory):
            raise BadInput("--gpus-per-cell and --memory-per-cell are for --ray")
        if ray is not None and jobs > 1:
            raise BadInput("--jobs is for this machine, --ray for a cluster: give one of them")
        if ray is None and jobs == 1:
            return command(**options)
        from ..report.terminal import cell_status
        from ..studies.executors import Processes, executing
        from ..studies.on_ray import OnRay

        with executing(Processes(jobs) if ray is None else OnRay(ray, gpus, memory), cell_status):
            return command(**options)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in known.parameters.values()]
    vars(spread)["__signature__"] = known.replace(parameters=[*parameters, *more])
    spread.__annotations__ = {one.name: one.annotation for one in [*parameters, *more]}
    return spread


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
