"""Series of checkpoints: of a training run, folders of Hugging Face models, or revisions in git or on the hub."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import constants, try_to_load_from_cache
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from ...errors import BadInput
from ...files import file_hash
from ...lab import Transformer, load_checkpoint
from ...lab.checkpoint import checkpoint_path, steps_of
from ...tracing import load, load_tokenizer
from ...tracing.fingerprint import weights_hash
from .revisions import Revision, find_revisions, folder_files, identity_of, step_of

Model = Transformer | PreTrainedModel
WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Checkpoint:
    """A model at a step. `identity` identifies its weights without loading them, `lent` loads it."""

    step: int
    name: str
    identity: str
    lent: Callable[[], AbstractContextManager[Model]]
    commit: str | None = None

    @contextmanager
    def opened(self) -> Iterator[tuple[Model, bytes]]:
        """The model and the hash of its weights."""
        with self.lent() as model:
            yield model, bytes.fromhex(weights_hash(model))


def series_of_run(folder: str | Path, every: int = 1) -> list[Checkpoint]:
    """The checkpoints of a training run.

    >>> series_of_run("runs/number")[-1].step                          # doctest: +SKIP
    6750
    """
    if not (steps := steps_of(folder)):
        raise BadInput(f"{folder}: no checkpoints here")
    return [
        Checkpoint(
            step, f"step {step}", file_hash(checkpoint_path(folder, step)), partial(lend, load_checkpoint, folder, step)
        )
        for step in steps[::every]
    ]  # fmt: skip


def series_of_models(names: Sequence[str], *, evict: str | None = None, **options: Any) -> list[Checkpoint]:
    """Hugging Face models in the order given: folders, .gguf files, or hub revisions as owner/name@revision.

    With `evict`, a name for this study, downloads are removed after measuring; `options` are those of `ww.load`.

    >>> series_of_models(["EleutherAI/pythia-70m@step1000", "EleutherAI/pythia-70m@step2000"])    # doctest: +SKIP
    """
    series = []
    for number, name in enumerate(names):
        source, revision = source_of(name)
        path, step = Path(source), step_of(name.rstrip("/"))
        lent = partial(lend, load, source, **options)
        if path.is_dir():
            identity = identity_of(folder_files(path))
        elif path.exists():
            identity = file_hash(path)
        else:
            identity, lent = name, partial(lend_from_hub, source, revision, evict, **options)
        series.append(Checkpoint(number if step is None else step, name, _with(identity, options), lent))
    return series


def series_of_revisions(model: str, pattern: str, *, evict: str | None = None, **options: Any) -> list[Checkpoint]:
    """Revisions by a shell pattern: of a folder of folders, a git repository, or a repository on the hub.

    >>> series = series_of_revisions("EleutherAI/pythia-70m", "step*000")                          # doctest: +SKIP
    >>> series[0].step, series[0].commit                                                           # doctest: +SKIP
    """

    def lent(found: Revision) -> Callable[[], AbstractContextManager[Model]]:
        if found.commit is None:
            return partial(lend, load, Path(model) / found.name, **options)
        if Path(model).is_dir():
            return partial(lend_from_git, Path(model), found.commit, **options)
        return partial(lend_from_hub, model, found.commit, evict, **options)

    return [
        Checkpoint(found.step, found.name, _with(found.identity, options), lent(found), found.commit)
        for found in find_revisions(model, pattern)
    ]


def tokenizer_of_revision(model: str, found: Checkpoint, trust_remote_code: bool = False) -> Any:
    """The tokenizer at a revision; one from the hub stays in the hub's cache."""
    path = Path(model)
    if found.commit is None:
        return load_tokenizer(path / found.name, trust_remote_code=trust_remote_code)
    if not path.is_dir():
        return load_tokenizer(model, revision=found.commit, trust_remote_code=trust_remote_code)
    with git_folder(path, found.commit, *(f":(exclude)*.{kind}" for kind in ("safetensors", "bin", "gguf"))) as folder:
        return load_tokenizer(folder, trust_remote_code=trust_remote_code)


def source_of(name: str) -> tuple[str, str | None]:
    """A folder or file unchanged; else a hub id, and the revision after @, if any."""
    if Path(name).exists():
        return name, None
    source, _, revision = name.partition("@")
    return source, revision or None


@contextmanager
def lend(make: Callable[..., Model], *what: Any, **options: Any) -> Iterator[Model]:
    yield make(*what, **options)


@contextmanager
def lend_from_git(repository: Path, commit: str, **options: Any) -> Iterator[PreTrainedModel]:
    with git_folder(repository, commit) as folder:
        yield load(folder, **options)


@contextmanager
def git_folder(repository: Path, commit: str, *paths: str) -> Iterator[Path]:
    """The files of a commit, or those at some paths, in a temporary folder."""
    with TemporaryDirectory(prefix="wherewhat-") as name:
        folder, words = Path(name), ["git", "-C", str(repository), "archive", commit, *paths]
        with (
            subprocess.Popen(words, stdout=subprocess.PIPE) as archive,
            tarfile.open(fileobj=archive.stdout, mode="r|") as files,
        ):
            files.extractall(folder, filter="data")
        if any(_is_pointer(file) for file in folder.iterdir() if file.is_file()):
            raise BadInput(f"{commit}: only Git LFS pointers, no weights; run git lfs fetch --all")
        yield folder


@contextmanager
def lend_from_hub(
    repository: str, revision: str | None, evict: str | None, **options: Any
) -> Iterator[PreTrainedModel]:
    """A revision on the hub. With `evict`, it is downloaded into a separate cache, which is removed afterwards, unless
    its weights already are in the hub's cache.

    This never removes a file that this study did not download, nor one that another process is about to use.
    """
    cached = (try_to_load_from_cache(repository, file, revision=revision) for file in WEIGHTS)
    if evict is None or any(isinstance(path, str) for path in cached):
        yield load(repository, revision=revision, **options)
        return
    own = hashlib.sha256(f"{evict} {repository} {revision}".encode()).hexdigest()[:20]
    cache = Path(constants.HF_HUB_CACHE).with_name("wherewhat") / own  # on the disk chosen for models
    try:
        yield load(repository, revision=revision, cache_dir=cache, **options)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(POINTER)) == POINTER


def _with(identity: str, options: dict[str, Any]) -> str:
    """Measurements also depend on the dtype."""
    return f"{identity} {options.get('dtype', 'float32')}"
