"""What every study returns: tables, tensors and provenance, saved in one folder with a digest of every file."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd
from pandas.api.types import is_numeric_dtype
from safetensors.torch import save as tensor_bytes

from .errors import BadInput, Damaged
from .files import parse_json, read_table, read_tensors, sha256, table_bytes, write_atomically, write_table
from .remote import clear_unfinished, with_urls
from .words import model_name

Progress = Callable[[str, float | int, int], None]  # the current task, how much of it is done, and the total
AnyResult = TypeVar("AnyResult", bound="Result")
Say = Callable[[str], None]  # a sentence for the user


TEXTS = ("kind", "model", "what", "how", "measure")  # columns that hold text


def ignore_progress(what: str, done: float | int, total: int) -> None:
    """The default of every `progress` parameter."""


def ignore_sentence(sentence: str) -> None:
    """The default of every `say` parameter."""


MOST = 100_000  # prompts, samples, runs or draws of one study; more is a mistake


def check_count(value: int, what: str, least: int = 1) -> None:
    """Refuse numbers of prompts, samples and the like that are too small, or beyond what could ever be computed."""
    if value < least:
        raise BadInput(f"{what} must be at least {least}, got {value}")
    if value > MOST:
        raise BadInput(f"{what} must be at most {MOST}, got {value}")


def check_seed(seed: int, what: str = "seed") -> None:
    """Refuse a seed that not every random generator takes.

    >>> check_seed(2**63 - 1)
    """
    if seed < 0:
        raise BadInput(f"{what} must not be negative, got {seed}")
    if seed >= 2**63:
        raise BadInput(f"{what} must be below 2**63, got {seed}")


class Result:
    """Base class of all results: a frozen dataclass whose fields are tables, dictionaries of tensors, and `about`.

    `save` writes each table to NAME.parquet, each dictionary of tensors to NAME.safetensors, and `about` last to
    `FILE`, together with the SHA-256 digest of every file: a folder that holds `FILE` is complete. `load` checks the
    digests. A field that is None has no file.

    A subclass names its `file`, the JSON file that marks a folder as holding this result, and its `kind`, what error
    messages call it; optionally the `remedy` for a damaged folder, the `subfolder` of its tables, and what it `needs`
    to be shown.
    """

    FILE: ClassVar[str]
    KIND: ClassVar[str]
    REMEDY: ClassVar[str] = "rerun the command that made it"
    SUBFOLDER: ClassVar[str] = ""
    NEEDS: ClassVar[dict[str, Any]] = {}  # keys of `about` with their types, and columns of tables

    about: dict[str, Any]

    def __init_subclass__(cls, **named: Any) -> None:
        for name, value in named.items():
            setattr(cls, name.upper(), value)

    @property
    def name(self) -> str:
        """Its title, or the model without the folders of its path."""
        return self.about.get("title") or model_name(self.about.get("model", self.KIND))

    def save(self, folder: str | Path) -> None:
        """Write all files atomically, `FILE` last; then files of an earlier result that this one lacks are deleted."""
        for place in {Path(folder), *((Path(folder) / path).parent for path in self._paths().values())}:
            clear_unfinished(place)
        earlier: set[str] = set()
        with suppress(Damaged):
            earlier |= (self.read_about(folder) or {"sha256": {}})["sha256"].keys()
        contents: dict[str, bytes] = {}
        for name, path in self._paths().items():
            value = getattr(self, name)
            if value is not None:
                contents[path] = table_bytes(value) if isinstance(value, pd.DataFrame) else tensor_bytes(value)
        for path, content in contents.items():
            write_atomically(Path(folder) / path, content)
        digests = {path: sha256(content) for path, content in contents.items()}
        stated = json.loads(with_urls(json.dumps(self.about, allow_nan=False)))
        digests[self.FILE] = sha256(_canonical(stated))
        about = json.dumps(stated | {"sha256": digests}, indent=1, allow_nan=False)
        write_atomically(Path(folder) / self.FILE, about + "\n")
        for path in earlier - digests.keys():
            (Path(folder) / path).unlink(missing_ok=True)

    @classmethod
    def load(cls: type[AnyResult], folder: str | Path) -> AnyResult:
        """Read a saved result; a file that is missing or damaged is named in the error."""
        about = cls.read_about(folder)
        if about is None:
            raise BadInput(f"{folder}: no {cls.KIND} here ({cls.FILE} is missing)")
        digests = about.pop("sha256")
        values: dict[str, Any] = {"about": about}
        for name, file in cls._paths().items():
            path = Path(folder) / file
            if file not in digests:
                values[name] = None
                continue
            content = path.read_bytes() if path.is_file() else b""
            if sha256(content) != digests[file]:
                raise Damaged(f"{path}: missing or damaged; {cls.REMEDY}")
            read: Callable[..., Any] = read_table if path.suffix == ".parquet" else read_tensors
            values[name] = read(path, content=content)
        if lacking := cls._lacking(values):
            raise Damaged(f"{Path(folder) / cls.FILE}: not a {cls.KIND} of this version ({lacking}); {cls.REMEDY}")
        return cls(**values)

    @classmethod
    def _lacking(cls, values: Mapping[str, Any]) -> str:
        """What a loaded result lacks that every result of its kind has; nothing if it is complete."""
        for field, needed in cls.NEEDS.items():
            value = values[field]
            for key in needed:
                if field == "about" and not isinstance(value.get(key), needed[key]):
                    return f"{key} is missing or of another type"
                if field == "about" or (isinstance(value, pd.DataFrame) and value.empty):
                    continue  # an empty table has no types, and not always columns
                if value is None or key not in value:
                    return f"{field} has no {key}"
                if isinstance(value, pd.DataFrame) and key not in TEXTS and not is_numeric_dtype(value[key]):
                    return f"{key} in {field} does not hold numbers"
        return ""

    @classmethod
    def read_about(cls, folder: str | Path) -> dict[str, Any] | None:
        """The contents of `FILE`, digests included; None if there is no such file."""
        path = Path(folder) / cls.FILE
        try:
            about = parse_json(path.read_bytes())
            if about["sha256"][cls.FILE] == sha256(_canonical(about)) and about["sha256"].keys() <= {*cls.files()}:
                return about
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise Damaged(f"{path}: damaged or unreadable; {cls.REMEDY}")

    @classmethod
    def files(cls) -> tuple[str, ...]:
        """Every file of a saved result, relative to its folder, in the order in which they are written."""
        return (*cls._paths().values(), cls.FILE)

    @classmethod
    def _paths(cls) -> dict[str, str]:
        """The file of every field but `about`, relative to the folder."""
        at = f"{cls.SUBFOLDER}/" if cls.SUBFOLDER else ""
        return {
            field.name: f"{field.name}.safetensors" if "Tensor" in str(field.type) else f"{at}{field.name}.parquet"
            for field in fields(cls)  # pyright: ignore[reportArgumentType] - every subclass is a dataclass
            if field.name != "about"
        }


class Explorable(Result):
    """A result that Jupyter shows as an interactive page."""

    def _repr_html_(self) -> str:
        from .explorer.notebook import explorer_frame  # the only import of a higher layer

        return explorer_frame(self)  # pyright: ignore[reportArgumentType] - the page knows which results it shows


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table in a form that JSON can hold: missing and infinite values become None.

    >>> records(pd.DataFrame({"layer": [0, 1], "score": [0.5, math.nan]}))
    [{'layer': 0, 'score': 0.5}, {'layer': 1, 'score': None}]
    """
    finite = table.notna() & ~table.isin([math.inf, -math.inf])
    return table.astype(object).where(finite, None).to_dict("records")


def save_prefixed(result: Result, prefix: str | Path, first: bool = True) -> None:
    """Write each table to PREFIX-NAME.parquet; with `first`, the first one to PREFIX.parquet; None has no file.

    The first one is written last: what it lists is in all the others, even if writing is interrupted.
    """
    for name, path in reversed(_prefixed_paths(type(result), prefix, first).items()):
        if getattr(result, name) is not None:
            write_table(path, getattr(result, name))


def load_prefixed(kind: type[AnyResult], prefix: str | Path, first: bool = True) -> AnyResult:
    """Read a result whose tables were written by `save_prefixed`; its `about` is empty, optional tables may be missing.

    >>> load_prefixed(Sweep, "results/decoupling").members.query("task == 'index'")                # doctest: +SKIP
    """
    paths = _prefixed_paths(kind, prefix, first)
    optional = {field.name for field in fields(kind) if "None" in str(field.type)}  # pyright: ignore[reportArgumentType]
    missing = {name: path for name, path in paths.items() if not path.is_file()}
    if needed := [path for name, path in missing.items() if name not in optional]:
        raise BadInput(f"{prefix}: no {kind.KIND} here ({needed[0].name} is missing)")
    values: dict[str, Any] = {name: None if name in missing else read_table(path) for name, path in paths.items()}
    return kind(**values | {"about": {}})


def _prefixed_paths(kind: type[Result], prefix: str | Path, first: bool) -> dict[str, Path]:
    names = [
        field.name
        for field in fields(kind)  # pyright: ignore[reportArgumentType] - every subclass is a dataclass
        if field.name != "about"
    ]
    paths = {name: Path(f"{prefix}-{name}.parquet") for name in names}
    return paths | ({names[0]: Path(f"{prefix}.parquet")} if first else {})


def versions(*libraries: str) -> dict[str, str]:
    """The versions of wherewhat, torch, Python and these libraries."""
    found = {name: _version(name) for name in ("wherewhat", "torch", *libraries)}
    return found | {"python": platform.python_version()}


_version = cache(version)  # version() reads the package's metadata from disk at every call


def _canonical(about: Mapping[str, Any]) -> bytes:
    """Everything in `FILE` except the digests, as canonical JSON."""
    return json.dumps({name: value for name, value in about.items() if name != "sha256"}, sort_keys=True).encode()
