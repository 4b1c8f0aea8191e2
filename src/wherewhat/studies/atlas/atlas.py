"""Many models, one data set: profile every model of a list, even if others fail."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.repocard import metadata_load
from torch import Tensor
from transformers import PreTrainedModel

from ...cells.cells import cell_hash, check_writable, kept, run_ahead, run_cells
from ...cells.executors import LocalOnly, executing
from ...core.kinds import HIGH, LOW
from ...errors import BadInput, CellsFailed, NotMeasurable
from ...files import write_atomically
from ...lab.gptj import to_gptj
from ...results import Progress, Say, ignore_progress, ignore_sentence
from ...tracing.declared import declared, rope_settings
from ...tracing.load import is_lab_model, load, load_tokenizer, locate, open_model
from ..profile.profile import profile
from ..profile.result import Profile
from .card import write_card
from .model_list import Entry, ModelCell, ModelList, place_of, read_list
from .result import Atlas
from .tables import atlas_tables

__all__ = ["Atlas", "atlas"]


def atlas(
    models: str | Path,
    folder: str | Path = "atlas",
    *,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Atlas:
    """Profiles of every model of a TOML list, collected into one data set in the folder.

    The folder holds the tables, a README.md (the data set's card for the hub) and, in profiles/, every model by itself.
    Existing results are reused. A model that fails does not stop the others and is listed in `failed`; if all fail,
    CellsFailed is raised.

    >>> ww.atlas("models.toml", "atlas").models                       # doctest: +SKIP
    """
    requested, folder = read_list(models), Path(folder)
    check_writable(folder)
    if (folder / "README.md").exists() and not any((folder / name).exists() for name in ("atlas.json", "cells")):
        raise BadInput(f"{folder}: holds a README.md that does not belong to an atlas; choose another folder")
    work = folder.absolute() / "unfinished"
    work.mkdir(parents=True, exist_ok=True)
    places = {entry.cell: work / entry.name for entry in requested.entries}
    done: list[str] = []
    show = LocalOnly(lambda cell, part: progress(places[cell].name, len(done) + part, len(places)))
    measured: dict[Entry, Profile] = {}
    failed: dict[str, str] = {}
    results = run_models(folder / "cells", list(places), partial(measure_model, requested.root, places, show))
    for entry, result in zip(requested.entries, results, strict=True):
        done.append(entry.name)
        progress(entry.name, len(done), len(places))
        if isinstance(result, str):
            failed[entry.name] = result.replace(f"{requested.root}/", "")
            say(f"{entry.name}: not measured")
        else:
            measured[entry] = replace(unpacked(result, folder / "profiles" / entry.name), tensors={})
            rmtree(work / entry.name, ignore_errors=True)
            say(f"{entry.name}: {len(measured[entry].heads)} heads")
    if not measured:
        raise CellsFailed("models", len(failed), failed)
    finished = Atlas(**atlas_tables(measured), about=described(requested, Path(models).name, failed))
    write_atomically(folder / "models.toml", requested.text)
    finished.save(folder)
    write_card(finished, folder)
    with suppress(OSError):  # a model that failed part-way keeps its finished prompts
        work.rmdir()
    return finished


def run_models(
    folder: Path, cells: Sequence[ModelCell], compute: Callable[[ModelCell], dict[str, Tensor]]
) -> Iterator[dict[str, Tensor] | str]:
    """The result of every cell in order, or the reason why it failed."""
    failed: dict[str, str] = {}
    try:
        run_ahead(folder, cells, compute, "models")
    except CellsFailed as error:
        failed = {
            cell: reason.removeprefix("BadInput: ").removeprefix("NotMeasurable: ")
            for cell, reason in error.failed.items()
        }
    try:
        for cell in cells:
            yield failed.get(cell_hash(cell)) or _outcome(folder, cell, compute)
    except KeyboardInterrupt:
        held = f"{kept(folder, cells)} of {len(cells)} models are kept in {folder.parent}"
        raise KeyboardInterrupt(f"{held}; rerun the command to resume") from None


def _outcome(
    folder: Path, cell: ModelCell, compute: Callable[[ModelCell], dict[str, Tensor]]
) -> dict[str, Tensor] | str:
    try:
        with executing(None):
            return next(run_cells(folder, [cell], compute))
    except (BadInput, NotMeasurable) as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def measure_model(
    root: Path, places: Mapping[ModelCell, Path], show: Callable[[ModelCell, float], None], cell: ModelCell
) -> dict[str, Tensor]:
    """The files of a model's profile, as bytes: the worker may not see the folder of the atlas."""
    gc.collect()  # free the memory of the previous model
    source = place_of(root, cell.model)
    options: dict[str, Any] = {"revision": cell.revision, "trust_remote_code": cell.trust_remote_code}
    measured: Any
    asked: dict[str, Any]
    if is_lab_model(cell.model):  # bundled: sequences of its own task
        measured, asked = cell.model, {"samples": cell.task.settings().get("samples")}
        stated = stated_of(to_gptj(open_model(cell.model).model), None, None)
    else:
        asked = cell.task.settings() | {"tokenizer": load_tokenizer(source, **options)}
        measured = load(source, dtype=cell.dtype, device=cell.device, device_map=cell.device_map, **options)
        stated = stated_of(measured, source, cell.revision)
    about = {"model": str(source), "revision": cell.revision, "atlas": stated}
    with at_hand(places[cell]) as folder:
        profile(
            measured, **asked, level=cell.level, swaps=cell.swaps, tau=cell.tau, seed=cell.seed, folder=folder,
            overwrite=True, about=about, progress=lambda _, done, total: show(cell, done / total),
        )  # fmt: skip
        files = {name: (folder / name).read_bytes() for name in Profile.files() if (folder / name).is_file()}
    return {name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in files.items()}


@contextmanager
def at_hand(place: Path) -> Iterator[Path]:
    """The folder itself, so that an interrupted profile resumes; on a machine that cannot see it, a temporary one."""
    if place.parent.is_dir():
        yield place
    else:
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Path(elsewhere)


def unpacked(files: Mapping[str, Tensor], folder: Path) -> Profile:
    """Write the files of a profile to the folder, and load it."""
    for name in filter(files.__contains__, Profile.files()):
        content = files[name].numpy().tobytes()
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            write_atomically(folder / name, content)
    return Profile.load(folder)


def stated_of(model: PreTrainedModel, source: str | Path | None, revision: str | None) -> dict[str, Any]:
    """What a model declares about itself: sizes, rotary base, licence; a bundled model has no source."""
    config = model.config.get_text_config(decoder=True)
    layers = range(getattr(config, "num_hidden_layers", 0))
    ropes = [rope for layer in layers if (rope := rope_settings(config, layer, {}))]
    bases = {float(rope["rope_theta"]) for rope in ropes}
    return {
        "commit": getattr(model.config, "_commit_hash", None),
        "head_size": declared(config, 0, 1).head_dim,
        "rope_base": bases.pop() if len(bases) == 1 else None,
        "parameters": model.num_parameters(),
        "licence": ("mit", "this package") if source is None else declared_licence(source, revision),
    }


def declared_licence(source: str | Path, revision: str | None = None) -> tuple[str, str] | None:
    """The licence that a model declares, and where: in its GGUF file, or in its card, beside it or on the hub."""
    place, options = locate(source, revision)
    if "gguf_file" in options:
        from gguf import GGUFReader

        stated = GGUFReader(Path(place) / options["gguf_file"]).fields.get("general.license")
        if stated is not None:
            return str(stated.contents()), "its GGUF file"
    try:
        card = (
            Path(place) / "README.md" if "revision" not in options else hf_hub_download(place, "README.md", **options)
        )
        stated = metadata_load(card) or {}
    except Exception:  # no card, no network or an unreadable card: nothing is declared
        return None
    licence = stated.get("license_name") if stated.get("license") == "other" else stated.get("license")
    return (str(licence), "its card") if licence else None


def described(requested: ModelList, name: str, failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "title": requested.title,
        "licence": requested.licence,
        "command": f"wherewhat atlas {name}",
        "thresholds": {"high": HIGH, "low": LOW},
        "failed": dict(failed),
    }
