"""Folders elsewhere, s3://, gs://, hf://, sftp:// or any other that fsspec knows, worked on through a copy here.

What is there comes here when the folder is asked for; a file that is written here goes there as soon as it is whole,
first under another name, so that there is never half a file either.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

from .errors import BadInput

URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_folders: dict[Path, tuple[Any, str, str]] = {}  # copy: the file system, the folder in it, how it is told


class Copy(type(Path())):
    """A path in the copy of a folder elsewhere; told to people, as in f"{path}", it is the one elsewhere."""

    def __format__(self, how: str) -> str:
        for copy, (_, _, told) in _folders.items():
            if self.is_relative_to(copy):
                return format("/".join([told, *self.relative_to(copy).parts]), how)
        return format(str(self), how)


def here(place: str | Path) -> Path:
    """The folder to work in: the place itself, or the copy of one that is given by its URL.

    >>> here("runs/number"), f"{here('memory://runs/number')}"
    (PosixPath('runs/number'), 'memory://runs/number')
    """
    if isinstance(place, Path) or not URL.match(place):
        return Path(place)
    told = re.sub(r"(?<=://)[^/@]*@", "", place).rstrip("/")  # neither user nor password
    for copy, (_, _, known) in _folders.items():
        if known == told:
            return Copy(copy)
    try:
        from fsspec import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        system, root = url_to_fs(place)
        if isinstance(system, LocalFileSystem):
            return Path(root)
        copy = Path(mkdtemp(prefix="wherewhat-"))
        atexit.register(partial(_leave, copy, os.getpid()))
        _fetch(system, root.rstrip("/"), copy)
    except Exception as error:  # every file system has errors of its own
        raise BadInput(f"{told}: cannot be read ({_reason(error)})") from error
    _folders[copy] = (system, root.rstrip("/"), told)
    return Copy(copy)


def unfinished(name: str) -> str:
    """A name for a file while it is written, which no other writer takes: not even one of the same number on another
    machine."""
    return f".{name}.{uuid4().hex[:12]}.partial"


def send(path: Path) -> None:
    """Bring a file of a copy to where it belongs; of all others there is nothing to do."""
    for copy, (system, root, _) in _folders.items():
        if path.is_relative_to(copy):
            there = "/".join([root, *path.relative_to(copy).parts])
            folder, _, name = there.rpartition("/")
            partly = f"{folder}/{unfinished(name)}"
            try:
                system.makedirs(folder, exist_ok=True)
                system.put_file(str(path), partly)
                system.mv(partly, there)
            except Exception as error:
                raise BadInput(f"{Copy(path)}: cannot be written ({_reason(error)})") from error


def _fetch(system: Any, root: str, copy: Path) -> None:
    try:
        found = system.find(root)
    except FileNotFoundError:
        return
    names = [name for name in found if not name.endswith(".partial")]
    if names:
        places = [copy / name[len(root) :].lstrip("/") for name in names]
        for folder in {place.parent for place in places}:
            folder.mkdir(parents=True, exist_ok=True)
        system.get(names, [str(place) for place in places])


def _leave(copy: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(copy, ignore_errors=True)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
