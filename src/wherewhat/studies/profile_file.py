"""A profile on disk: its tables, all that it takes to repeat it, and the refusal to write over another one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import save
from torch import Tensor

from ..errors import BadInput
from ..files import read_tensors, write_atomically, write_table
from .cells import check_writable
from .explorable import Explorable

FILES = ("profile.json", "heads.parquet", "frequencies.parquet", "tensors.safetensors")


@dataclass(frozen=True)
class Profile(Explorable):
    """The tables of a profile, and all that it takes to repeat it.

    `tensors` hold the scores a prompt (prompt, L, H), the attention of each block (prompt, L, H, M; NaN where a prompt
    has fewer), and for the first prompt `log_mass` (L, H, G, G), the placement table summed over blocks, whose rows
    `about["table"]` names.

    >>> profile = Profile.load("profiles/smollm2")                    # doctest: +SKIP
    >>> profile.heads.query("kind == 'where'")                        # doctest: +SKIP
    """

    heads: pd.DataFrame
    frequencies: pd.DataFrame
    about: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)

    @property
    def name(self) -> str:
        """The model's: the last part of its path or hub id, without .gguf."""
        return Path(str(self.about["model"]).rstrip("/")).name.removesuffix(".gguf")

    def save(self, folder: str | Path) -> None:
        """Four files, each written atomically, profile.json last: a folder with it is whole."""
        folder = Path(folder)
        for name, table in (("heads", self.heads), ("frequencies", self.frequencies)):
            write_table(folder / f"{name}.parquet", table)
        write_atomically(folder / "tensors.safetensors", save(self.tensors))
        digests = {name: _sha256((folder / name).read_bytes()) for name in FILES[1:]}
        digests["profile.json"] = _sha256(_canonical(self.about))
        about = json.dumps(self.about | {"sha256": digests}, indent=1, allow_nan=False)
        write_atomically(folder / "profile.json", about + "\n")

    @staticmethod
    def load(folder: str | Path) -> Profile:
        """Read a profile; a missing or damaged file is named."""
        folder = Path(folder)
        about = _about(folder)
        if about is None:
            raise BadInput(f"{folder}: holds no profile (no profile.json)")
        digests = about.pop("sha256")
        for name in FILES[1:]:
            path = folder / name
            if not path.is_file() or _sha256(path.read_bytes()) != digests.get(name):
                raise BadInput(f"{path}: missing or damaged; make the profile again with --overwrite")
        return Profile(
            pd.read_parquet(folder / "heads.parquet"),
            pd.read_parquet(folder / "frequencies.parquet"),
            about,
            read_tensors(folder / "tensors.safetensors"),
        )


def already_there(folder: Path, settings: Mapping[str, Any], overwrite: bool = False) -> bool:
    """Whether the folder holds a profile with these settings; one with others, or of another model, is not replaced.

    Settings that are not known yet may be missing.
    """
    check_writable(folder)
    about = None if overwrite else _about(folder)
    if about is None:
        return False
    before = about["settings"]
    if "weights" in settings and before["weights"] != settings["weights"]:
        raise BadInput(
            f"{folder}: holds the profile of another model, {about['model']}; choose another folder or give --overwrite"
        )
    differ = [name for name, value in settings.items() if name != "weights" and before.get(name) != value]
    if differ:
        held = ", ".join(_said(name, before.get(name)) for name in differ)
        raise BadInput(f"{folder}: holds a profile with {held}; choose another folder or give --overwrite")
    return True


def plain(number: float) -> float | str | None:
    """A number as JSON can hold it.

    >>> plain(0.5), plain(math.inf), plain(math.nan)
    (0.5, 'inf', None)
    """
    return number if math.isfinite(number) else None if math.isnan(number) else str(number)


def _said(option: str, value: Any) -> str:
    """A setting as the user would give it."""
    if option == "prompts":
        return "other prompts"
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"no --{option}" if value is None else f"--{option} {value}"


def _about(folder: Path) -> dict[str, Any] | None:
    path = folder / "profile.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["sha256"]["profile.json"] == _sha256(_canonical(about)):
            return about
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise BadInput(f"{path}: damaged or unreadable; make the profile again with --overwrite")


def _canonical(about: dict[str, Any]) -> bytes:
    """All that profile.json says except for the digests."""
    said = {name: value for name, value in about.items() if name != "sha256"}
    return json.dumps(said, sort_keys=True, allow_nan=False).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
