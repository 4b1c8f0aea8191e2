"""Options that commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from ..remote import local_copy
from ..words import MOST_PAIRS, check_dtype_name, check_model_name
from .output import report_line


def option(help: str, default: str | None = None, *flags: str, **settings: Any) -> Any:
    """An option with its help text and, where its default is computed, what help says about the default."""
    return typer.Option(*flags, help=help, show_default=default or True, **settings)


def within(low: int, high: int | None = None) -> Callable[..., Any]:
    """A callback that refuses numbers outside of a range in one line, before torch is imported."""

    def check(_: Any, parameter: Any, value: int | None) -> int | None:
        if value is not None and (value < low or (high is not None and value > high)):
            wanted = f"at least {low}" if high is None else f"{low} to {high}"
            report_line(f"wherewhat: {parameter.name} must be {wanted}, got {value}")
            raise typer.Exit(2)
        return value

    return check


PAIRS = within(2, MOST_PAIRS)  # of a binding prompt


def flag(name: str, help: str) -> Any:
    """An option without a value and without a --no- form."""
    return typer.Option(name, help=help)


Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub ID, local folder or .gguf file.")]
Revision = Annotated[str | None, option("Branch, tag or commit on the hub.")]
Dtype = Annotated[str, option("Number type of the weights: float32, bfloat16 or float16.")]
Device = Annotated[str, option("Device of the model, such as cpu, cuda or cuda:1.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="Spread a big model over devices and disk: auto, or with memory limits auto:0=20GB,cpu=50GB. "
        "Needs accelerate."
    ),
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Cache = Annotated[bool, typer.Option(help="Convert a .gguf file once, and read the conversion after that.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def folder_here(place: str | Path) -> Path:
    """The folder for an option or argument: a path, or the local copy of a remote folder given by its URL."""
    try:
        return local_copy(place)
    except BadInput as error:
        report_line(f"wherewhat: {error}")
        raise typer.Exit(2) from error


def existing_folder(place: str | Path) -> Path:
    """A folder to read from; one that is missing is refused at once, before torch is imported."""
    folder = folder_here(place)
    if not folder.is_dir():
        report_line(f"wherewhat: {folder}: no such folder".replace("\n", " "))
        raise typer.Exit(2)
    return folder


folder_option = partial(typer.Option, parser=folder_here, metavar="FOLDER")
existing_folder_option = partial(typer.Option, parser=existing_folder, metavar="FOLDER")
folder_argument = partial(typer.Argument, parser=existing_folder)


def output_folder(help: str, default: str | None = None) -> Any:
    """The option -o/--output, the folder of a result."""
    return folder_option("-o", "--output", help=help, show_default=default or True)


WHERE = "Parallel execution"
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        help="Worker processes; each computes one cell (a prompt, checkpoint or ablation) at a time.",
        rich_help_panel=WHERE,
    ),
]
Ray = Annotated[
    str | None, typer.Option(help="Compute cells on a Ray cluster: local, auto or host:port.", rich_help_panel=WHERE)
]
GpusPerCell = Annotated[float, typer.Option(min=0, help="With --ray: GPUs per cell.", rich_help_panel=WHERE)]
MemoryPerCell = Annotated[
    float, typer.Option(min=0, help="With --ray: gigabytes of memory per cell.", rich_help_panel=WHERE)
]
SPREAD: dict[str, tuple[Any, Any]] = {
    "jobs": (Jobs, 1),
    "ray": (Ray, None),
    "gpus_per_cell": (GpusPerCell, 0.0),
    "memory_per_cell": (MemoryPerCell, 0.0),
}


LOADING: dict[str, tuple[Any, Any]] = {
    "revision": (Revision, None),
    "dtype": (Dtype, "float32"),
    "device": (Device, "cpu"),
    "device_map": (DeviceMap, None),
    "trust_remote_code": (TrustRemoteCode, False),
    "cache": (Cache, True),
}


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --revision, --dtype, --device, --device-map, --trust-remote-code and --cache to a command that loads a model.

    The command receives them as `**loading`, which it passes to the function of the library. A model that cannot exist
    and an unknown number type are refused at once, before torch is imported.
    """

    @wraps(command)
    def checked(**options: Any) -> None:
        model = options.get("model")
        if isinstance(model, str) and "://" not in model and not (Path(model) / "run.json").is_file():
            check_model_name(model, options["revision"])
        check_dtype_name(options["dtype"])
        command(**options)

    return _with_options(checked, command, LOADING)


def in_cells(command: Callable[..., None]) -> Callable[..., None]:
    """Add --jobs and --ray to a command whose study runs as cells, and compute the cells accordingly."""

    @wraps(command)
    def spread(**options: Any) -> None:
        jobs, ray, gpus, memory = (options.pop(name) for name in SPREAD)
        if ray is None and (gpus or memory):
            raise BadInput("--gpus-per-cell and --memory-per-cell need --ray")
        if ray is not None and jobs > 1:
            raise BadInput("--jobs computes on this machine, --ray on a cluster: give only one of them")
        if ray is None and jobs == 1:
            return command(**options)
        from ..cells.executors import executing
        from ..cells.processes import ProcessExecutor
        from ..cells.ray import RayExecutor
        from ..display.terminal import cell_status

        with executing(ProcessExecutor(jobs) if ray is None else RayExecutor(ray, gpus, memory), cell_status):
            return command(**options)

    return _with_options(spread, command, SPREAD)


def _with_options(
    wrapper: Callable[..., None], command: Callable[..., None], options: dict[str, tuple[Any, Any]]
) -> Callable[..., None]:
    """Give the wrapper the signature of the command plus these options: typer reads options from the signature."""
    known = inspect.signature(command, eval_str=True)
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in known.parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ] + [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    vars(wrapper)["__signature__"] = known.replace(parameters=parameters)
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper
