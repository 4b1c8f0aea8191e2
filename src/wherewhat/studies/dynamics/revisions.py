"""Revisions of a model by pattern: folders in a folder, or branches and tags in git or on the hub.

A branch may move, so a revision is identified by its commit, and its contents by the hashes of files that git and the
hub store: this needs no download.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from ...errors import BadInput
from ...files import file_hash
from ...tracing.load import hub_answers

WEIGHTS = re.compile(r".+\.(safetensors|bin|gguf)")
REQUESTS = 8  # concurrent requests to the hub
Files = Callable[[str], dict[str, str]]  # the files of a revision, each with a hash of its contents


@dataclass(frozen=True)
class Revision:
    """A model at a step. `identity` is a hash of its configuration and weights, `commit` that in git or on the hub."""

    step: int
    name: str
    identity: str
    commit: str | None = None


def find_revisions(model: str, pattern: str) -> list[Revision]:
    """The revisions of a model whose names match a shell pattern, sorted by step.

    The model is a folder of folders, a git repository, or a repository on the hub. The step is the number after "step"
    in a name, else the number at its end; if no name has one, the position in the list.

    >>> [revision.name for revision in find_revisions("EleutherAI/pythia-70m", "step?")]        # doctest: +SKIP
    ['step0', 'step1', 'step2', 'step4', 'step8']
    """
    path = Path(model)
    if not path.is_dir():
        return _of_hub(model, pattern)
    folders = {folder.name: str(folder) for folder in path.iterdir() if (folder / "config.json").is_file()}
    if is_git(path) and not any(fnmatchcase(name, pattern) for name in folders):
        return _resolved(model, _git_refs(path), pattern, lambda commit: _git_files(path, commit))
    found = _resolved(model, folders, pattern, lambda folder: folder_files(Path(folder)))
    return [replace(one, commit=None) for one in found]


def is_git(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def run_git(repository: Path, *words: str) -> str:
    """The output of git; raises BadInput if git is missing or fails."""
    try:
        done = subprocess.run(["git", "-C", repository, *words], capture_output=True, check=True, text=True)
    except FileNotFoundError as error:
        raise BadInput(f"{repository}: a git repository, but git is not installed") from error
    except subprocess.CalledProcessError as error:
        raise BadInput(f"{repository}: {error.stderr.strip().splitlines()[0]}") from error
    return done.stdout


def folder_files(folder: Path) -> dict[str, str]:
    """The configuration and weight files in a folder, with their hashes."""
    return {file.name: file_hash(file) for file in folder.iterdir() if _is_part_of_model(file.name)}


def identity_of(files: Mapping[str, str]) -> str:
    """One hash of the configuration and weights."""
    parts = sorted((name, content) for name, content in files.items() if _is_part_of_model(name))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def step_of(name: str) -> int | None:
    """The step in a name.

    >>> step_of("stage1-step1000-tokens4B"), step_of("checkpoint-500"), step_of("main")
    (1000, 500, None)
    """
    found = re.search(r"step\D?(\d+)", name) or re.search(r"(\d+)$", name)
    return int(found[1]) if found else None


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers in names by value.

    >>> sorted(["v10", "v9", "main"], key=natural)
    ['main', 'v9', 'v10']
    """
    return [(int(number or 0), word) for word, number in re.findall(r"(\D*)(\d*)", name)]


def _of_hub(repository: str, pattern: str) -> list[Revision]:
    if not hub_answers():
        raise BadInput(f"{repository}: no such folder, and no connection to {HfApi().endpoint} to list its revisions")
    try:
        listed = HfApi().list_repo_refs(repository)
        refs = {ref.name: ref.target_commit for ref in (*listed.tags, *listed.branches)}
        return _resolved(repository, refs, pattern, lambda commit: _hub_files(repository, commit))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise BadInput(f"{repository}: no such folder, and no accessible model at {HfApi().endpoint}") from error
    except httpx2.HTTPError as error:
        raise BadInput(f"{repository}: its revisions cannot be listed ({str(error).splitlines()[0]})") from error


def _hub_files(repository: str, commit: str) -> dict[str, str]:
    files = (one for one in HfApi().list_repo_tree(repository, revision=commit) if isinstance(one, RepoFile))
    return {file.path: file.blob_id if file.lfs is None else file.lfs.sha256 for file in files}


def _git_refs(repository: Path) -> dict[str, str]:
    """The commits of tags and of local and remote branches; of equal names, local branches take precedence."""
    listed = run_git(repository, "for-each-ref", "--format=%(refname) %(objectname) %(*objectname)").splitlines()
    refs: dict[str, str] = {}
    for kind in ("refs/remotes/[^/]+/", "refs/tags/", "refs/heads/"):
        for ref, *commits in map(str.split, listed):
            if found := re.fullmatch(f"{kind}(.+)", ref):
                refs[found[1]] = commits[-1]  # an annotated tag lists its own hash first
    return refs


def _git_files(repository: Path, commit: str) -> dict[str, str]:
    rows = (row.split(maxsplit=3) for row in run_git(repository, "ls-tree", commit).splitlines())
    return {name: content for _, _, content, name in rows}


def _resolved(model: str, refs: Mapping[str, str], pattern: str, files: Files) -> list[Revision]:
    """The step, commit and identity of each matching ref."""
    series = _chosen(model, refs, pattern)
    with ThreadPoolExecutor(REQUESTS) as pool:
        contents = list(pool.map(files, [refs[name] for name in series.values()]))
    return [
        Revision(step, name, identity_of(held) if any(map(WEIGHTS.fullmatch, held)) else name, refs[name])
        for (step, name), held in zip(series.items(), contents, strict=True)
    ]


def _chosen(model: str, names: Iterable[str], pattern: str) -> dict[int, str]:
    """The matching names by step, sorted."""
    ordered = sorted(names, key=natural)
    if not (matching := [name for name in ordered if fnmatchcase(name, pattern)]):
        some = ", ".join(ordered[:5]) + f" and {len(ordered) - 5} more" * (len(ordered) > 5)
        raise BadInput(f"{model}: no revision matches {pattern!r}; found {some or 'none'}")
    steps = {name: step_of(name) for name in matching}
    if all(step is None for step in steps.values()):
        return dict(enumerate(matching))
    series: dict[int, str] = {}
    for name, step in steps.items():
        if step is None:
            raise BadInput(f"{model}: {name} has no step in its name; choose a pattern that excludes it")
        if step in series:
            raise BadInput(
                f"{model}: {series[step]} and {name} are both step {step}; choose a pattern that matches one of them"
            )
        series[step] = name
    return dict(sorted(series.items()))


def _is_part_of_model(file: str) -> bool:
    return file == "config.json" or WEIGHTS.fullmatch(file) is not None
