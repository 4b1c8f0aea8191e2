"""Atomic writes, files that carry their own digest, and readers that name a damaged file in their error.

A sealed file, of tensors or a table, holds the SHA-256 digest of its own bytes, computed with zeros in the digest's
place. It is checked whenever the file is read, so a changed byte anywhere in the file is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .errors import BadInput, Damaged, SetAside
from .remote import unfinished, upload

UNSEALED = "0" * 64


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_hash(path: Path) -> str:
    """The SHA-256 digest of a file of any size."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; one that is nested too deeply is a ValueError, like any other mistake."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def set_aside(path: Path, error: Exception) -> None:
    """Rename a damaged file to NAME.damaged, with a warning that says why."""
    with suppress(OSError):
        path.replace(path.with_name(f"{path.name}.damaged"))
    warnings.warn(f"{error}; set aside as {path.name}.damaged, computed again", SetAside, stacklevel=3)


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


def write_sealed_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as Parquet, with its digest in the metadata, atomically."""
    arrow, buffer = pa.Table.from_pandas(table, preserve_index=False), BytesIO()
    with pq.ParquetWriter(buffer, arrow.schema) as writer:
        writer.write_table(arrow)
        writer.add_key_value_metadata({"sha256": UNSEALED})
    write_atomically(path, _seal(buffer.getvalue()))


def write_tables(folder: str | Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table to FOLDER/NAME.parquet."""
    for name, table in tables.items():
        write_table(Path(folder) / f"{name}.parquet", table)


def read_table(path: Path, content: bytes | None = None) -> pd.DataFrame:
    """Read a Parquet file, or its content; a damaged one is named in the error."""
    try:
        content = path.read_bytes() if content is None else content
        if not _holds(content, (pq.read_metadata(BytesIO(content)).metadata or {}).get(b"sha256", b"").decode()):
            raise Damaged(f"{path}: damaged, its digest does not match")
        return pd.read_parquet(BytesIO(content))
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, BadInput):
            raise
        raise Damaged(f"{path}: damaged or unreadable ({_first_line(error)})") from error


def sealed_tensors(tensors: Mapping[str, Tensor], about: str) -> bytes:
    """Tensors as a safetensors file that holds a description and the digest of the file."""
    seal = json.dumps({"about": about, "sha256": UNSEALED})  # one entry: the order of several is random
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    return _seal(save(contiguous, {"seal": seal}))


def read_tensors(
    path: Path, about: str | None = None, content: bytes | None = None, *, unsealed: bool = False
) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; a damaged one is named in the error.

    With `about`, the file must be sealed and have this description; with `unsealed` also, files of earlier versions,
    which have neither, are read unchecked.
    """
    try:
        content = path.read_bytes() if content is None else content
        tensors = dict(sorted(load(content).items()))
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        seal = parse_json(header.get("__metadata__", {}).get("seal", "{}"))
        if not _holds(content, seal.get("sha256", "")):
            raise Damaged(f"{path}: damaged, its digest does not match")
        if about is not None and seal.get("about") != about and (seal or not unsealed):
            raise Damaged(f"{path}: {'holds something else' if seal else 'has no digest'}")
        return tensors
    except FileNotFoundError as error:
        raise Damaged(f"{path}: no such file") from error
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise Damaged(f"{path}: damaged or unreadable; delete it and rerun the command ({error})") from error


def _seal(content: bytes) -> bytes:
    before, _, after = content.rpartition(UNSEALED.encode())
    return before + sha256(content).encode() + after


def _holds(content: bytes, digest: str) -> bool:
    """Whether a file has the digest that it holds, if it holds one."""
    before, found, after = content.rpartition(digest.encode() or b"\0")
    return not digest or bool(found and sha256(before + UNSEALED.encode() + after) == digest)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def plain(number: float) -> float | str | None:
    """A number in a form that JSON can hold.

    >>> plain(0.5), plain(math.inf), plain(math.nan)
    (0.5, 'inf', None)
    """
    return number if math.isfinite(number) else None if math.isnan(number) else str(number)
