"""Every long study runs as cells: a frozen description, a pure function, one file under the description's hash.

What is there is skipped, so a study that was stopped, however rudely, goes on where it was; files are written beside
their place and moved into it, so there is never half a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from safetensors.torch import save
from torch import Tensor

from ..errors import BadInput, CellsFailed
from ..files import read_tensors, write_atomically
from .executors import current

Cell = TypeVar("Cell")  # a frozen dataclass of plain values


def cell_hash(cell: Any) -> str:
    """The name of a cell's file: equal descriptions, equal names."""
    return hashlib.sha256(_canonical(cell).encode()).hexdigest()[:20]


def run_cells(
    folder: Path | None, cells: Sequence[Cell], compute: Callable[[Cell], dict[str, Tensor]], name: str = "parts"
) -> Iterator[dict[str, Tensor]]:
    """The result of every cell in order, from its file if it has one, else computed and kept; no folder, no files.

    Stopped from the keyboard, it says how many of them, called by `name`, are kept. Within `executing` all cells
    without a file are computed first, by many at a time.
    """
    if folder is not None and current()[0] is not None:
        compute_elsewhere(folder, [cell for cell in cells if not _path(folder, cell).exists()], compute, name)
    for cell in cells:
        if folder is None:
            yield compute(cell)
            continue
        path = _path(folder, cell)
        if not path.exists():
            with _stoppable(folder, cells, name):
                write_atomically(path, file_of(compute, cell))
        yield read_tensors(path)


def file_of(compute: Callable[[Cell], dict[str, Tensor]], cell: Cell) -> bytes:
    """The file of a cell, computed: the same bytes wherever that is done."""
    tensors = {name: value.contiguous() for name, value in compute(cell).items()}
    return save(tensors, {"cell": _canonical(cell)})


def compute_elsewhere(
    folder: Path, cells: Sequence[Cell], compute: Callable[[Cell], dict[str, Tensor]], name: str
) -> None:
    """Compute cells through the executor in force, each with a log; what fails is told when all others are done."""
    executor, status = current()
    assert executor is not None
    unique = list({cell_hash(cell): cell for cell in cells}.values())
    failed: dict[str, str] = {}
    with _stoppable(folder, unique, name):
        for done, (number, outcome) in enumerate(executor.run(partial(file_of, compute), unique), 1):
            cell = unique[number]
            log = {"cell": json.loads(_canonical(cell)), "failed": outcome.reason or None, "printed": outcome.log}
            write_atomically(folder / "logs" / f"{cell_hash(cell)}.json", json.dumps(log, indent=1) + "\n")
            if outcome.content is None:
                failed[cell_hash(cell)] = outcome.reason
            else:
                write_atomically(_path(folder, cell), outcome.content)
            running = min(executor.at_once, len(unique) - done)
            status(name, done - len(failed), running, len(failed), len(unique))
    if failed:
        raise CellsFailed(name, len(cells), failed, folder / "logs")


@contextmanager
def _stoppable(folder: Path, cells: Sequence[Any], name: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{kept(folder, cells)} of {len(cells)} {name} are kept in {folder}; the same command goes on"
        ) from None


def kept(folder: Path | None, cells: Sequence[Any]) -> int:
    """How many of the cells have their file."""
    return 0 if folder is None else sum(_path(folder, cell).exists() for cell in cells)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing could be written, before any work is done for it."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written ({error.strerror})") from error


def _path(folder: Path, cell: Any) -> Path:
    return folder / f"{cell_hash(cell)}.safetensors"


def _canonical(cell: Any) -> str:
    return json.dumps(asdict(cell), sort_keys=True, separators=(",", ":"))
