"""Series of checkpoints: of a run of the lab, folders of Hugging Face models, or revisions on the hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ..capture import load
from ..errors import BadInput
from ..lab import Transformer, load_checkpoint
from ..lab.checkpoint import checkpoint_path, steps_of
from .profile import weights_hash

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class Checkpoint:
    """A model at a step. `identity` tells its weights apart from others without loading them."""

    step: int
    name: str
    identity: str
    make: Callable[[], Transformer | PreTrainedModel]
    done: Callable[[], None] | None = None

    @contextmanager
    def opened(self) -> Iterator[tuple[Transformer | PreTrainedModel, bytes]]:
        """The model and the hash of its weights; `done` is called when they were used."""
        model = self.make()
        yield model, bytes.fromhex(weights_hash(model))
        del model
        if self.done is not None:
            self.done()


def series_of_run(folder: str | Path, every: int = 1) -> list[Checkpoint]:
    """The checkpoints of a training run.

    >>> series_of_run("runs/number")[-1].step                          # doctest: +SKIP
    6750
    """
    if not (steps := steps_of(folder)):
        raise BadInput(f"{folder}: holds no checkpoints")
    return [
        Checkpoint(
            step,
            f"step {step}",
            _file_hash([checkpoint_path(folder, step)]),
            partial(load_checkpoint, folder, step),
        )
        for step in steps[::every]
    ]


def series_of_models(
    names: Sequence[str], *, evict: bool = False, trust_remote_code: bool = False, dtype: str = "float32"
) -> list[Checkpoint]:
    """Hugging Face models in the order given: folders, .gguf files, or hub revisions as owner/name@revision.

    `evict` removes a revision from the local cache of the hub when it was measured.

    >>> series_of_models(["EleutherAI/pythia-70m@step1000", "EleutherAI/pythia-70m@step2000"])    # doctest: +SKIP
    """
    series = []
    for number, name in enumerate(names):
        source, _, revision = name.partition("@")
        local = Path(name).exists()
        files = _weight_files(Path(name)) if local else []
        series.append(
            Checkpoint(
                step=_step(name, number),
                name=name,
                identity=f"{_file_hash(files) if local else name} {dtype}",
                make=partial(
                    load, name if local else source, revision=None if local else revision or None,
                    dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code,
                ),
                done=partial(evict_revision, source, revision) if evict and not local else None,
            )
        )  # fmt: skip
    return series


def evict_revision(repository: str, revision: str) -> None:
    """Remove one revision of a model from the local cache of the hub, with the files that no other one uses."""
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir()
    commits = [
        found.commit_hash
        for repo in cache.repos
        if repo.repo_id == repository
        for found in repo.revisions
        if revision in (*found.refs, found.commit_hash)
    ]
    cache.delete_revisions(*commits).execute()


def _weight_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for pattern in WEIGHT_FILES for file in path.glob(pattern))


def _file_hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _step(name: str, number: int) -> int:
    """The number that ends the name, as in step1000; else its place in the series."""
    found = re.search(r"(\d+)/?$", name)
    return int(found[1]) if found else number
