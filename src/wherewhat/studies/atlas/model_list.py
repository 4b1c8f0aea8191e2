"""The list of models of an atlas: a TOML file with defaults at the top and one [[models]] entry per model."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.scores import check_tau
from ...errors import BadInput
from ...files import file_hash
from ...prompts.request import PromptRequest
from ...results import check_seed
from ...tracing.load import check_dtype
from ...words import model_name
from ..profile.cell import VERSION
from ..profile.profile import check_level

TASK = {"task": str, "kind": str, "template": str, "pairs": int, "group": int, "samples": int, "chat": bool}
TASK |= {"width": int, "stretch": int}
MEASURE = {"level": str, "swaps": int, "tau": float, "seed": int, "dtype": str}
LOADING = {"device": str, "device_map": str, "trust_remote_code": bool}
DEFAULTS: dict[str, type] = {"family": str, "licence": str, **LOADING, **TASK, **MEASURE}
OF_A_MODEL: dict[str, type] = {"model": str, "name": str, "revision": str, **DEFAULTS}
CARD: dict[str, type] = {"title": str, "licence": str}
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class ModelCell:
    """A model, as named in the list, and how it is measured: everything that its profile depends on."""

    model: str
    task: PromptRequest
    revision: str | None = None
    device: str = "cpu"
    device_map: str | None = None
    trust_remote_code: bool = False
    level: str = "keys"
    swaps: int | None = None
    tau: float = 1e-4
    seed: int = 0
    dtype: str = "float32"
    files: tuple[tuple[str, str], ...] = ()  # of a model on disk: name and hash of the contents
    version: int = VERSION


@dataclass(frozen=True)
class Entry:
    """A model of the list: what is measured, and how it is described."""

    name: str
    cell: ModelCell
    family: str | None = None
    licence: str | None = None


@dataclass(frozen=True)
class ModelList:
    """The contents of a list; its paths are relative to `root`."""

    root: Path
    text: str
    entries: tuple[Entry, ...]
    title: str = "An atlas of attention heads"
    licence: str = "cc-by-4.0"


def read_list(path: str | Path) -> ModelList:
    """Read a list and check all of it before any work is done.

    >>> read_list("models.toml").entries[0].name                      # doctest: +SKIP
    'SmolLM2-135M'
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8, or nested too deeply
        raise BadInput(f"{path}: is not valid TOML ({error})") from error
    models, card = given.pop("models", []), given.pop("card", {})
    if not isinstance(models, list) or not models or not all(isinstance(one, dict) for one in models):
        raise BadInput(f"{path}: lists no models; each entry starts with [[models]] and has a line model = ...")
    if not isinstance(card, dict):
        raise BadInput(f"{path}: card must be a table, [card], got {card!r}")
    _check(given, DEFAULTS, f"{path}: at the top")
    _check(card, CARD, f"{path}: [card]")
    root = path.resolve().parent
    entries = []
    for number, one in enumerate(models, 1):
        where = f"{path}: model {number}"
        _check(one, OF_A_MODEL, where)
        if not one.get("model"):
            raise BadInput(f"{where}: has no line model = ..., a hub id, a folder or a .gguf file")
        try:
            entries.append(_entry(root, given | one))
        except BadInput as error:
            raise BadInput(f"{where} ({one['model']}): {error}") from error
    _check_different(entries, path)
    return ModelList(root, text, tuple(entries), **card)


def place_of(root: Path, model: str) -> str | Path:
    """The location of a model: a path relative to the folder of the list, or else a hub id."""
    local = root / model
    if local.exists() or model.endswith(".gguf"):
        return local
    named_folder = (
        local.parent != root and local.parent.is_dir()
    )  # models/x beside the list is a folder that is missing
    if named_folder or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", model):
        raise BadInput("no such folder or file, and not a hub id of the form owner/name")
    return model


def _entry(root: Path, given: Mapping[str, Any]) -> Entry:
    place = place_of(root, given["model"])
    options = {name: given[name] for name in TASK if name in given}
    task = PromptRequest(_task_name(root, options.pop("task", "binding")), **options)
    measured: dict[str, Any] = {name: given[name] for name in ("revision", *LOADING, *MEASURE) if name in given}
    cell = ModelCell(given["model"], task, **measured)
    check_level(cell.level, cell.swaps)
    check_tau(cell.tau)
    check_dtype(cell.dtype)
    check_seed(cell.seed)
    if isinstance(place, Path):
        if place.is_dir() and not (place / "config.json").is_file():
            raise BadInput("the folder holds no config.json")
        if not place.exists():
            raise BadInput("no such file")
        if cell.revision:
            raise BadInput("revision applies only to models from the hub")
    name = given.get("name") or model_name(given["model"])
    if not re.fullmatch(r"[^\s./\\,][^/\\,]{0,99}", name) or not name.isprintable():
        raise BadInput(
            f"name {name!r} cannot be used for a folder: no / \\ or comma, no leading dot, at most 100 characters"
        )
    return Entry(name, replace(cell, files=_files(place, task)), given.get("family"), given.get("licence"))


def _task_name(root: Path, name: str) -> str:
    return str(root / name) if (root / name).is_file() else name


def _files(place: str | Path, task: PromptRequest) -> tuple[tuple[str, str], ...]:
    """What identifies a model on disk, or a file of prompts, as the one that was measured."""
    files = [Path(task.name)] if task.form.startswith(".") else []
    if isinstance(place, Path):
        files += sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    return tuple((file.name, file_hash(file)) for file in files)


def _check(given: dict[str, Any], known: Mapping[str, type], where: str) -> None:
    for name, value in given.items():
        if name not in known:
            raise BadInput(f"{where}: unknown key {name!r}; known keys are {', '.join(known)}")
        kind = known[name]
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise BadInput(f"{where}: {name} must be {WORDS[kind]}, got {value!r}")
        given[name] = kind(value)  # a float may be written as an integer


def _check_different(entries: list[Entry], path: Path) -> None:
    for name, number in Counter(entry.name.casefold() for entry in entries).items():
        if number > 1:
            raise BadInput(f"{path}: {number} models are called {name}; give each its own name = ...")
    seen: dict[ModelCell, str] = {}
    for entry in entries:
        if entry.cell in seen:
            raise BadInput(f"{path}: {seen[entry.cell]} and {entry.name} are the same model measured in the same way")
        seen[entry.cell] = entry.name
