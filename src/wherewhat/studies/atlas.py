"""Many models, one data set: every model of a list profiled, whatever becomes of the others."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pandas as pd
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.repocard import metadata_load
from torch import Tensor
from transformers import PreTrainedModel

from ..capture.check import stated_context
from ..capture.load import load, load_tokenizer, locate
from ..core.kinds import HIGH, LOW
from ..errors import BadInput, CellsFailed, NotMeasurable
from ..files import write_atomically, write_tables
from ..prompts.task import make_prompts
from .atlas_list import Entry, ModelCell, ModelList, place_of, read_list
from .atlas_tables import atlas_tables
from .cells import cell_hash, check_writable, kept, run_ahead, run_cells
from .executors import Here, executing
from .explorable import Explorable
from .profile import profile
from .profile_file import FILES, Profile
from .promise import promise, rope_settings

TABLES = ("models", "heads", "frequencies")


@dataclass(frozen=True)
class Atlas(Explorable):
    """A data set of many models: `models` has a row for each, `heads` and `frequencies` those of their profiles.

    >>> Atlas.load("atlas").heads.query("model == 'SmolLM2-135M' and kind == 'what'")          # doctest: +SKIP
    """

    models: pd.DataFrame
    heads: pd.DataFrame
    frequencies: pd.DataFrame
    about: dict[str, Any]

    @property
    def failed(self) -> dict[str, str]:
        """Why models of the list are not here, by their names."""
        return self.about["failed"]

    def save(self, folder: str | Path) -> None:
        """Three tables in data/, and atlas.json last: a folder with it is whole."""
        (Path(folder) / "atlas.json").unlink(missing_ok=True)
        write_tables(Path(folder) / "data", {name: getattr(self, name) for name in TABLES})
        write_atomically(Path(folder) / "atlas.json", json.dumps(self.about, indent=1) + "\n")

    @staticmethod
    def load(folder: str | Path) -> Atlas:
        """What `wherewhat atlas` saved."""
        try:
            about = json.loads((Path(folder) / "atlas.json").read_text(encoding="utf-8"))
            models, heads, frequencies = (pd.read_parquet(Path(folder) / "data" / f"{name}.parquet") for name in TABLES)
            return Atlas(models, heads, frequencies, about)
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder}: no atlas, or damaged; give the wherewhat atlas command again") from error


def atlas(
    models: str | Path,
    folder: str | Path,
    *,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Atlas:
    """Profile every model of a TOML list, and collect one data set in the folder.

    Profiles are in FOLDER/profiles. What was measured before is not measured again; a model that fails stops no other
    and is told in `failed`. If none can be measured there is nothing to collect, and CellsFailed is raised.

    >>> ww.atlas("models.toml", "atlas").models                       # doctest: +SKIP
    """
    asked, folder = read_list(models), Path(folder)
    check_writable(folder)
    if (folder / "README.md").exists() and not any((folder / name).exists() for name in ("atlas.json", "cells")):
        raise BadInput(f"{folder}: holds a README.md that is not an atlas's; choose another folder")
    work = folder.absolute() / "unfinished"
    work.mkdir(parents=True, exist_ok=True)
    places = {entry.cell: work / entry.name for entry in asked.entries}
    done: list[str] = []
    show = Here(lambda cell, part: progress(places[cell].name, len(done) + part, len(places)))
    measured: dict[Entry, Profile] = {}
    failed: dict[str, str] = {}
    results = run_models(folder / "cells", list(places), partial(measure_model, asked.root, places, show))
    for entry, result in zip(asked.entries, results, strict=True):
        done.append(entry.name)
        progress(entry.name, len(done), len(places))
        if isinstance(result, str):
            failed[entry.name] = result.replace(f"{asked.root}/", "")
            say(f"{entry.name}: not measured")
        else:
            measured[entry] = replace(unpacked(result, folder / "profiles" / entry.name), tensors={})
            rmtree(work / entry.name, ignore_errors=True)
            say(f"{entry.name}: {len(measured[entry].heads)} heads")
    if not measured:
        raise CellsFailed("models", len(failed), failed)
    made = Atlas(**atlas_tables(measured), about=described(asked, Path(models).name, failed))
    write_atomically(folder / "models.toml", asked.text)
    made.save(folder)
    with suppress(OSError):  # models that failed on the way leave what they have
        work.rmdir()
    return made


def run_models(
    folder: Path, cells: Sequence[ModelCell], compute: Callable[[ModelCell], dict[str, Tensor]]
) -> Iterator[dict[str, Tensor] | str]:
    """The result of every cell in order, or the reason why it has none."""
    failed: dict[str, str] = {}
    try:
        run_ahead(folder, cells, compute, "models")
    except CellsFailed as error:  # told as they are told here
        told = error.failed.items()
        failed = {cell: why.removeprefix("BadInput: ").removeprefix("NotMeasurable: ") for cell, why in told}
    try:
        for cell in cells:
            yield failed.get(cell_hash(cell)) or _outcome(folder, cell, compute)
    except KeyboardInterrupt:
        held = f"{kept(folder, cells)} of {len(cells)} models are kept in {folder.parent}"
        raise KeyboardInterrupt(f"{held}; the same command goes on") from None


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
    """The files of a model's profile, as bytes: whoever computes it may be far from the folder of the atlas."""
    gc.collect()  # the memory of the model before
    source = place_of(root, cell.model)
    options: dict[str, Any] = {"revision": cell.revision, "trust_remote_code": cell.trust_remote_code}
    tokenizer = load_tokenizer(source, **options)
    model = load(source, dtype=cell.dtype, device=cell.device, device_map=cell.device_map, **options)
    prompts, task = make_prompts(cell.task, tokenizer, stated_context(model) or 2048, cell.seed)
    about = {"model": str(source), "revision": cell.revision, "atlas": stated_of(model, source, cell.revision)}
    with at_hand(places[cell]) as folder:
        profile(
            model, prompts, level=cell.level, swaps=cell.swaps, tau=cell.tau, seed=cell.seed, folder=folder,
            overwrite=True, settings=task.settings(), about=about,
            progress=lambda _, done, total: show(cell, done / total),
        )  # fmt: skip
        files = {name: (folder / name).read_bytes() for name in FILES}
    return {name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in files.items()}


@contextmanager
def at_hand(place: Path) -> Iterator[Path]:
    """The place itself, where a profile that is interrupted goes on; on a machine that cannot see it, another."""
    if place.parent.is_dir():
        yield place
    else:
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Path(elsewhere)


def unpacked(files: Mapping[str, Tensor], folder: Path) -> Profile:
    """The profile of these files, in the folder."""
    for name in reversed(FILES):  # profile.json last
        content = files[name].numpy().tobytes()
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            write_atomically(folder / name, content)
    return Profile.load(folder)


def stated_of(model: PreTrainedModel, source: str | Path, revision: str | None) -> dict[str, Any]:
    """What a model says of itself: sizes, rotary base, licence."""
    config = model.config.get_text_config(decoder=True)
    layers = range(getattr(config, "num_hidden_layers", 0))
    ropes = [rope for layer in layers if (rope := rope_settings(config, layer, {}))]
    bases = {float(rope["rope_theta"]) for rope in ropes}
    return {
        "commit": getattr(model.config, "_commit_hash", None),
        "head_size": promise(config, 0, 1).head_dim,
        "rope_base": bases.pop() if len(bases) == 1 else None,
        "parameters": model.num_parameters(),
        "licence": declared_licence(source, revision),
    }


def declared_licence(source: str | Path, revision: str | None = None) -> tuple[str, str] | None:
    """The licence that a model declares, and where: in its GGUF file, or in the card beside it or on the hub."""
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
    except Exception:  # no card, no network, or a card that cannot be read: nothing is declared
        return None
    licence = stated.get("license_name") if stated.get("license") == "other" else stated.get("license")
    return (str(licence), "its card") if licence else None


def described(asked: ModelList, name: str, failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "title": asked.title,
        "licence": asked.licence,
        "command": f"wherewhat atlas {name}",
        "thresholds": {"high": HIGH, "low": LOW},
        "failed": dict(failed),
    }
