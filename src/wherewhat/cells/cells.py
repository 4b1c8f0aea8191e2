"""Every long study runs as cells: a frozen description, a pure function, and one file named by the description's hash.

Cells that have a file are skipped, so an interrupted study resumes, however it was stopped. Files are written under a
temporary name and then renamed, so a file is never incomplete. A file holds the description of its cell and a digest;
both are checked when it is read, and a file that does not hold is set aside and computed again.
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

from torch import Tensor

from ..errors import BadInput, CellsFailed, Damaged
from ..files import read_tensors, sealed_tensors, set_aside, write_atomically
from ..remote import clear_unfinished
from .executors import current

Cell = TypeVar("Cell")  # a frozen dataclass of plain values


def cell_hash(cell: Any) -> str:
    """The name of a cell's file; equal descriptions have equal names."""
    return hashlib.sha256(_canonical(cell).encode()).hexdigest()[:20]


def run_cells(
    folder: Path | None, cells: Sequence[Cell], compute: Callable[[Cell], dict[str, Tensor]], name: str = "parts"
) -> Iterator[dict[str, Tensor]]:
    """Yield the result of every cell in order: read from its file if it has one, else computed and saved.

    Without a folder nothing is saved. After Control-C, the message states how many cells, called `name`, are kept.
    Within `executing`, all cells without a file are computed first, in parallel.
    """
    if folder is not None:
        clear_unfinished(folder)
    run_ahead(folder, cells, compute, name)
    for cell in cells:
        if folder is None:
            yield compute(cell)
            continue
        result = read_cell(folder, cell)
        if result is None:
            with _stoppable(folder, cells, name):
                content, path = cell_content(compute, (cell,)), cell_path(folder, cell)
                write_atomically(path, content)
            result = read_tensors(path, _canonical(cell), content)
        yield result


def read_cell(folder: Path, cell: Any) -> dict[str, Tensor] | None:
    """The result of a cell, or None if it has no file; a file that does not hold is set aside."""
    path = cell_path(folder, cell)
    if not path.exists():
        return None
    try:
        return read_tensors(path, _canonical(cell))
    except Damaged as error:
        set_aside(path, error)
        return None


def cell_content(compute: Callable[..., dict[str, Tensor]], item: tuple[Any, ...]) -> bytes:
    """Compute a cell, given with its further arguments, and return the content of its file."""
    return sealed_tensors(compute(*item), _canonical(item[0]))


def run_ahead(
    folder: Path | None,
    cells: Sequence[Cell],
    compute: Callable[..., dict[str, Tensor]],
    name: str = "parts",
    given: Callable[[Cell], tuple[Any, ...]] = lambda cell: (),
) -> None:
    """Within `executing`, compute all cells without a file in parallel, each with a log; otherwise do nothing.

    `given` returns further arguments of a cell. It is called in this process just before the cell is submitted, because
    a worker may run on a machine without access to the folder. Failed cells are reported when all others are done.
    """
    executor, status = current()
    if folder is None or executor is None:
        return
    missing = {cell_hash(cell): cell for cell in cells if read_cell(folder, cell) is None}
    if not missing:
        return
    keys, items = list(missing), _Items(list(missing.values()), given)
    done, failed = 0, dict[str, str]()

    def report(running: int) -> None:
        status(name, done, running, len(failed), len(items))

    report(0)
    with (
        _stoppable(folder, cells, name),
        closing(executor.run(partial(cell_content, compute), items, report)) as outcomes,
    ):
        for number, outcome in outcomes:
            key, cell = keys[number], missing[keys[number]]
            log = {"cell": json.loads(_canonical(cell)), "failed": outcome.reason or None, "printed": outcome.log}
            log |= {"where": outcome.where, "seconds": round(outcome.seconds, 3)}
            write_atomically(folder / "logs" / f"{key}.json", json.dumps(log, indent=1) + "\n", lasting=False)
            if outcome.content is None:
                failed[key] = outcome.reason
            else:
                write_atomically(cell_path(folder, cell), outcome.content)
                done += 1
    report(0)
    if failed:
        raise CellsFailed(name, len(items), failed, folder / "logs")


class _Items(Sequence[Any]):
    """Cells with their further arguments, which are computed when an item is read."""

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
        present = sum(cell_path(folder, cell).exists() for cell in cells)
        raise KeyboardInterrupt(
            f"{present} of {len(cells)} {name} are kept in {folder}; rerun the command to resume"
        ) from None


def kept(folder: Path | None, cells: Sequence[Any]) -> int:
    """How many of the cells have a file that holds."""
    return 0 if folder is None else sum(read_cell(folder, cell) is not None for cell in cells)


def check_writable(folder: Path) -> None:
    """Refuse a folder that is not writable, before any work is done."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written ({error.strerror})") from error


def cell_path(folder: Path, cell: Any) -> Path:
    """The path of a cell's file."""
    return folder / f"{cell_hash(cell)}.safetensors"


def _canonical(cell: Any) -> str:
    return json.dumps(asdict(cell), sort_keys=True, separators=(",", ":"))
