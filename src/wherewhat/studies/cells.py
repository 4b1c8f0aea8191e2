"""Every long study runs as cells: a frozen description, a pure function, one file under the description's hash.

What is there is skipped, so a study that was stopped, however rudely, goes on where it was; files are written beside
their place and moved into it, so there is never half a file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import BadInput

Cell = TypeVar("Cell")  # a frozen dataclass of plain values


def cell_hash(cell: Any) -> str:
    """The name of a cell's file: equal descriptions, equal names."""
    return hashlib.sha256(_canonical(cell).encode()).hexdigest()[:20]


def run_cells(
    folder: Path | None, cells: Sequence[Cell], compute: Callable[[Cell], dict[str, Tensor]]
) -> Iterator[dict[str, Tensor]]:
    """The result of every cell in order, from its file if it has one, else computed and kept; no folder, no files."""
    for cell in cells:
        if folder is None:
            yield compute(cell)
            continue
        path = folder / f"{cell_hash(cell)}.safetensors"
        if not path.exists():
            tensors = {name: value.contiguous() for name, value in compute(cell).items()}
            write_atomically(path, save(tensors, {"cell": _canonical(cell)}))
        yield read_tensors(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file; a damaged one is refused by its name."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path}: damaged or unreadable ({error})") from error


def write_atomically(path: Path, content: bytes | str) -> None:
    """All or nothing: the content goes to a file of its own first and is moved into place when it is on disk."""
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from error


def _canonical(cell: Any) -> str:
    return json.dumps(asdict(cell), sort_keys=True, separators=(",", ":"))
