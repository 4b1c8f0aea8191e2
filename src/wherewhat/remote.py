"""Remote folders (s3://, gs://, hf://, sftp:// or anything else that fsspec supports), used through a local copy.

The files of a remote folder are downloaded when it is first used. A file written to the copy is uploaded as soon as it
is complete, under a temporary name that is then renamed, so the remote folder never holds an incomplete file either.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
from functools import partial
from pathlib import Path
from socket import gethostname
from tempfile import mkdtemp
from typing import Any, NamedTuple
from uuid import uuid4

from .errors import BadInput

URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


class RemoteFolder(NamedTuple):
    system: Any  # a file system of fsspec
    root: str  # the folder in it
    url: str  # without user and password


_remote_folders: dict[Path, RemoteFolder] = {}  # by their local copy


class RemotePath(type(Path())):
    """A path in the local copy of a remote folder; formatted, as in f"{path}", it is the remote URL."""

    def __format__(self, how: str) -> str:
        for copy, folder in _remote_folders.items():
            if self.is_relative_to(copy):
                return format("/".join([folder.url, *self.relative_to(copy).parts]), how)
        return format(str(self), how)


def with_urls(text: str) -> str:
    """A text in which paths in the local copy of a remote folder are replaced by URLs."""
    for copy, folder in _remote_folders.items():
        text = text.replace(str(copy), folder.url)
    return text


def local_copy(place: str | Path) -> Path:
    """The folder to work in: a path as it is, or the local copy of a remote folder given by its URL.

    >>> local_copy("runs/number"), f"{local_copy('memory://runs/number')}"
    (PosixPath('runs/number'), 'memory://runs/number')
    """
    if isinstance(place, Path) or not URL.match(place):
        return Path(place)
    url = re.sub(r"(?<=://)[^/@]*@", "", place).rstrip("/")  # without user and password
    for copy, folder in _remote_folders.items():
        if folder.url == url:
            return RemotePath(copy)
    try:
        from fsspec import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        system, root = url_to_fs(place)
        if isinstance(system, LocalFileSystem):
            return Path(root)
        copy = Path(mkdtemp(prefix="wherewhat-"))
        atexit.register(partial(_remove, copy, os.getpid()))
        _download(system, root.rstrip("/"), copy, url)
    except BadInput:
        raise
    except Exception as error:  # every file system has its own exceptions
        raise BadInput(f"{url}: cannot be read ({_reason(error)})") from error
    _remote_folders[copy] = RemoteFolder(system, root.rstrip("/"), url)
    return RemotePath(copy)


def unfinished(name: str) -> str:
    """A temporary name for a file that is being written, unique across all processes and machines."""
    return f".{name}.{gethostname()}.{os.getpid()}.{uuid4().hex[:12]}.partial"


def clear_unfinished(folder: Path) -> None:
    """Remove the temporary files that killed processes of this machine left in a folder."""
    for path in folder.glob(".*.partial"):
        *_, host, process, _, _ = path.name.rsplit(".", 4)
        if host == gethostname() and process.isdecimal() and not _is_alive(int(process)):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def upload(path: Path) -> None:
    """Upload a file of a local copy to its remote folder; other files are left alone."""
    for copy, remote in _remote_folders.items():
        if path.is_relative_to(copy):
            name = _checked("/".join(path.relative_to(copy).parts), remote.url)
            if not path.resolve().is_relative_to(copy.resolve()):
                raise BadInput(f"{RemotePath(path)}: a link to a file outside the folder, which is not uploaded")
            target = f"{remote.root}/{name}"
            folder, _, name = target.rpartition("/")
            partial_file = f"{folder}/{unfinished(name)}"
            try:
                remote.system.makedirs(folder, exist_ok=True)
                remote.system.put_file(str(path), partial_file)
                remote.system.mv(partial_file, target)
            except Exception as error:
                raise BadInput(f"{RemotePath(path)}: cannot be written ({_reason(error)})") from error


def _download(system: Any, root: str, copy: Path, url: str) -> None:
    try:
        listed: dict[str, dict[str, Any]] = system.find(root, detail=True)
    except FileNotFoundError:
        return
    if root in listed:
        raise BadInput(f"{url}: is a file, not a folder")
    names = {
        name: _checked(name[len(root) :].lstrip("/") if name.startswith(root) else "..", url)
        for name in listed
        if not name.endswith(".partial")
    }
    for name, inside in names.items():
        if listed[name].get("type", "file") != "file" or listed[name].get("islink"):
            raise BadInput(f"{url}: {inside!r} is a link, which is not followed")
    if names:
        targets = [copy / inside for inside in names.values()]
        for folder in {target.parent for target in targets}:
            folder.mkdir(parents=True, exist_ok=True)
        system.get(list(names), [str(target) for target in targets])


def _checked(name: str, url: str) -> str:
    """The name of a file relative to its folder; a name that could lead out of the folder is refused.

    >>> _checked("cells/a.safetensors", "memory://runs")
    'cells/a.safetensors'
    """
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts) or re.match(r"[a-zA-Z]:", name):
        raise BadInput(f"{url}: holds a name that leads out of the folder, {name!r}")
    return name


def _remove(copy: Path, process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(copy, ignore_errors=True)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
