"""Every long study runs as cells: a frozen description, a pure function, one file under the description's hash.

What is there is skipped, so a study that was stopped, however rudely, goes on where it was; files are written beside
their place and moved into it, so there is never half a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
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
    run_ahead(folder, cells, compute, name)
    for cell in cells:
        if folder is None:
            yield compute(cell)
            continue
        path = cell_path(folder, cell)
        if not path.exists():
            with _stoppable(folder, cells, name):
                write_atomically(path, file_of(compute, (cell,)))
        yield read_tensors(path)


def file_of(compute: Callable[..., dict[str, Tensor]], item: tuple[Any, ...]) -> bytes:
    """The file of a cell, computed from it and what is given with it: the same bytes wherever that is done."""
    tensors = {name: value.contiguous() for name, value in compute(*item).items()}
    return save(tensors, {"cell": _canonical(item[0])})


def run_ahead(
    folder: Path | None,
    cells: Sequence[Cell],
    compute: Callable[..., dict[str, Tensor]],
    name: str = "parts",
    given: Callable[[Cell], tuple[Any, ...]] = lambda cell: (),
) -> None:
    """Within `executing`, compute all cells without a file, many at a time, each with a log; otherwise nothing is done.

    `given` is asked here, when a cell's turn comes, for what else is needed to compute it: a worker may be on a machine
    that does not see the folder. What fails is told when all others are done.
    """
    executor, status = current()
    if folder is None or executor is None:
        return
    missing = {cell_hash(cell): cell for cell in cells if not cell_path(folder, cell).exists()}
    if not missing:
        return
    keys, items = list(missing), _Items(list(missing.values()), given)
    done, failed = 0, dict[str, str]()

    def tell(running: int) -> None:
        status(name, done, running, len(failed), len(items))

    tell(0)
    with _stoppable(folder, cells, name), closing(executor.run(partial(file_of, compute), items, tell)) as made:
        for number, outcome in made:
            key, cell = keys[number], missing[keys[number]]
            log = {"cell": json.loads(_canonical(cell)), "failed": outcome.reason or None, "printed": outcome.log}
            log |= {"where": outcome.where, "seconds": round(outcome.seconds, 3)}
            write_atomically(folder / "logs" / f"{key}.json", json.dumps(log, indent=1) + "\n", lasting=False)
            if outcome.content is None:
                failed[key] = outcome.reason
            else:
                write_atomically(cell_path(folder, cell), outcome.content)
                done += 1
    tell(0)
    if failed:
        raise CellsFailed(name, len(items), failed, folder / "logs")


class _Items(Sequence[Any]):
    """Cells with what is given for them, which is asked for when an item is."""

    def __init__(self, cells: Sequence[Any], given: Callable[[Any], tuple[Any, ...]]) -> None:
        self.cells, self.given = cells, given

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, number: Any) -> Any:
        return self.cells[number], *self.given(self.cells[number])


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
    return 0 if folder is None else sum(cell_path(folder, cell).exists() for cell in cells)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing could be written, before any work is done for it."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written ({error.strerror})") from error


def cell_path(folder: Path, cell: Any) -> Path:
    """The file of a cell."""
    return folder / f"{cell_hash(cell)}.safetensors"


def _canonical(cell: Any) -> str:
    return json.dumps(asdict(cell), sort_keys=True, separators=(",", ":"))
