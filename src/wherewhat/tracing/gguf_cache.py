"""GGUF files are converted once: transformers parses their vocabulary and dequantises their weights at every load.

A conversion is a folder that transformers saved: CACHE/<SHA-256 of the file>/<part>, where the part is the dtype of the
weights or "tokenizer". It is found by the contents of the file, so a renamed or copied file is not converted again, and
a changed one is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

from ..files import write_atomically

MARK = "conversion.json"  # written last: what the other files must be
LIMIT = 20  # gigabytes, if WHEREWHAT_CACHE_GB is not set
log = logging.getLogger("wherewhat")


def cache_folder() -> Path:
    """Where conversions are kept: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wherewhat" / "gguf"


def converted(path: Path, part: str) -> Path | None:
    """The folder of an intact conversion of this file, if there is one; a damaged one is removed."""
    folder = _folder(path, part)
    try:
        made = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if made["transformers"] == version("transformers") and made["sha256"] == _digests(folder):
            os.utime(folder / MARK)  # the least recently used conversions are removed first
            log.info("Reading %s from %s", path.name, folder)
            return folder
    except (OSError, ValueError, KeyError, TypeError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


def keep_converted(path: Path, part: str, save: Callable[[str], object]) -> None:
    """Keep what `save` writes into the folder that it is given. A full or read-only disk is no error."""
    folder = _folder(path, part)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(prefix=f".{part}-", dir=folder.parent))
        try:
            save(str(made))
            written = {"transformers": version("transformers"), "sha256": _digests(made)}
            write_atomically(made / MARK, json.dumps(written, indent=1) + "\n")
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        log.info("Converted %s once; it is kept in %s (--no-cache: do not)", path.name, folder)
        _remove_oldest(float(os.environ.get("WHEREWHAT_CACHE_GB") or LIMIT) * 1e9, folder)
    except OSError as error:
        log.info("%s is converted at every load: %s", path.name, error)


def _folder(path: Path, part: str) -> Path:
    with path.open("rb") as file:
        return cache_folder() / hashlib.file_digest(file, "sha256").hexdigest() / part


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for file in sorted(folder.iterdir()):
        if file.name != MARK:
            with file.open("rb") as opened:
                found[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def _remove_oldest(limit: float, newest: Path) -> None:
    """Remove the least recently used conversions until the rest fit into the limit; the newest one stays."""
    sizes = {
        mark.parent: sum(file.stat().st_size for file in mark.parent.iterdir())
        for mark in sorted(cache_folder().glob(f"*/*/{MARK}"), key=lambda mark: mark.stat().st_mtime)
    }
    for folder, size in list(sizes.items()):
        if folder != newest and sum(sizes.values()) > limit:
            shutil.rmtree(folder, ignore_errors=True)
            log.info("Removed %s from the cache: %.1f GB", folder, size / 1e9)
            del sizes[folder]
