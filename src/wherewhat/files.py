"""Files that are whole or not there, and tensors that are read back or refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pandas as pd
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .elsewhere import send, unfinished
from .errors import BadInput


def write_atomically(path: Path, content: bytes | str, lasting: bool = True) -> None:
    """All or nothing: the content goes to a file of its own first and is moved into place when it is on disk.

    In the copy of a folder elsewhere it goes there as well. What need not outlast a loss of power is not waited for.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(unfinished(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    send(path)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """A table as Parquet, all or nothing; the same table, the same bytes."""
    buffer = BytesIO()
    table.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


def write_tables(folder: str | Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Each table under its name, FOLDER/NAME.parquet."""
    for name, table in tables.items():
        write_table(Path(folder) / f"{name}.parquet", table)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file; a damaged one is refused by its name."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path}: damaged or unreadable; delete it and give the command again ({error})") from error
