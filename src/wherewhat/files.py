"""Atomic writes, and readers that name a damaged file in their error."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pandas as pd
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import BadInput
from .remote import unfinished, upload


def write_atomically(path: Path, content: bytes | str, lasting: bool = True) -> None:
    """Write a file completely or not at all: to a temporary name first, renamed once it is on disk.

    In the local copy of a remote folder, the file is uploaded as well. With `lasting=False` the file is not synced to
    disk, so a power failure may lose it.
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
    upload(path)


def table_bytes(table: pd.DataFrame) -> bytes:
    """A table as Parquet; equal tables give equal bytes."""
    buffer = BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as Parquet, atomically."""
    write_atomically(path, table_bytes(table))


def write_tables(folder: str | Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table to FOLDER/NAME.parquet."""
    for name, table in tables.items():
        write_table(Path(folder) / f"{name}.parquet", table)


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet file; a damaged one is named in the error."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: damaged or unreadable ({error})") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; a damaged one is named in the error."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path}: damaged or unreadable; delete it and rerun the command ({error})") from error


def plain(number: float) -> float | str | None:
    """A number in a form that JSON can hold.

    >>> plain(0.5), plain(math.inf), plain(math.nan)
    (0.5, 'inf', None)
    """
    return number if math.isfinite(number) else None if math.isnan(number) else str(number)
