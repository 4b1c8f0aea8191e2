"""A full disk: one line that names the file, nothing half-written, and the command resumes once there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wherewhat as ww
from conftest import missing, share
from wherewhat.errors import BadInput


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 40 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", folder], capture_output=True).returncode:
        missing("a small tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def resize(disk: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)


@pytest.mark.slow
def test_a_profile_on_a_full_disk_resumes_once_there_is_room(disk: Path, tmp_path: Path, tried: Any) -> None:
    wanted, failed = ww.profile("number", samples=3, folder=tmp_path / "whole"), 0
    for kilobytes in range(40, share(600, 200), 40):
        resize(disk, kilobytes)
        try:
            ww.profile("number", samples=3, folder=disk / "p")
        except BadInput as error:
            failed += 1
            assert "cannot be written (No space left on device)" in str(error)
            assert not list(disk.rglob("*.partial"))
        else:
            break
    resize(disk, 100_000)
    found = ww.profile("number", samples=3, folder=disk / "p")
    assert found.heads.equals(wanted.heads)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole" / "cells").iterdir()}
    assert {path.name: path.read_bytes() for path in (disk / "p" / "cells").iterdir()} == whole
    assert failed >= 2
    tried("full disks", failed)
