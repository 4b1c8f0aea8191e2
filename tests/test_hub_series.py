"""Revisions on a hub: huggingface_hub's own client against a server on loopback, and what is left on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

import revisions as made
from conftest import weights
from stand_in_hub import StandInHub, commit_of
from wherewhat.studies.dynamics.revisions import find_revisions

NAMES = [f"step{step}" for step in (0, 4, 8, 16)]
Refuse = Callable[..., None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.learn(tmp_path_factory.mktemp("revisions"), weights("stories260K"), (0, 4, 8, 16))


@pytest.fixture
def hub(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """Three branches and a tag, and a branch that was made by mistake: main is step16."""
    branches = {name: folders / name for name in NAMES[:-1]} | {"main": folders / "step16"}
    with StandInHub(branches, {"step16": folders / "step16"}) as server:
        server.replace_the_real_one(monkeypatch)
        yield server


def started(hub: StandInHub, home: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """The real command, for which the hub is the one on loopback."""
    words = ["dynamics", "owner/tiny", "--revisions", "step*", "-o", str(out), "--pairs", "8", "--prompts", "1", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "wherewhat", *words, "--json"],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def weight_files(folder: Path) -> list[Path]:
    """Files of the size of the weights, wherever they lie; those of tokenizers are smaller."""
    return [
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size > 1e5
    ]


@pytest.mark.slow
def test_a_series_that_was_killed_goes_on_and_leaves_no_weights(hub: StandInHub, folders: Path, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    mine = hf_hub_download(
        "owner/tiny", "model.safetensors", revision="step4", cache_dir=home / "hub", endpoint=hub.url
    )
    reached, killed = threading.Event(), threading.Event()
    on_disk: list[int] = []

    def hold(revision: str, file: str) -> None:
        if file != "model.safetensors":
            return
        on_disk.append(len(weight_files(home)))
        if revision == "step8" and not killed.is_set():
            reached.set()
            killed.wait(60)

    hub.hold = hold
    hub.downloads.clear()
    first = started(hub, home, out, "--evict")
    assert reached.wait(300), first.communicate()
    os.kill(first.pid, signal.SIGKILL)
    killed.set()
    first.communicate()
    assert len(list((out / "cells").glob("*.safetensors"))) == 2
    assert [revision for revision, file in hub.downloads if file == "model.safetensors"] == ["step0", "step8"]
    assert [path.resolve() for path in weight_files(home)] == [Path(mine).resolve()]

    second = started(hub, home, out, "--evict")
    said, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    about = json.loads(said)
    assert [(one["name"], one["commit"]) for one in about["series"]] == [(name, commit_of(name)) for name in NAMES]
    downloaded = [revision for revision, file in hub.downloads if file == "model.safetensors"]
    assert downloaded == ["step0", "step8", "step8", "step16"]  # step8 was held up when the first was killed
    assert [path.resolve() for path in weight_files(home)] == [Path(mine).resolve()]
    assert not list((home / "wherewhat").iterdir())
    assert set(on_disk) == {1}  # whenever a download began, none of those before was there


def test_revisions_are_commits_and_the_same_weights_are_seen_without_a_download(hub: StandInHub) -> None:
    found = find_revisions("owner/tiny", "step*")
    assert [(one.name, one.commit) for one in found] == [(name, commit_of(name)) for name in NAMES]
    (main,) = find_revisions("owner/tiny", "main")
    assert main.identity == found[-1].identity
    assert len({one.identity for one in found}) == 4
    assert not hub.downloads


def test_repeated_weights_are_refused_before_their_download(
    hub: StandInHub, folders: Path, tmp_path: Path, refuse: Refuse
) -> None:
    hub.branches |= {"step512": folders / "step8", "step1000": folders / "step8"}
    for name in ("step512", "step1000"):
        hub.folders[commit_of(name)], hub.names[commit_of(name)] = folders / "step8", name
    asked = ("dynamics", "owner/tiny", "--revisions", "step*", "-o", tmp_path / "out")
    refuse("step8, step512 and step1000 hold the same weights .--allow-repeated measures them", *asked)
    assert not [file for _, file in hub.downloads if file == "model.safetensors"]


def test_what_the_hub_does_not_have(hub: StandInHub, monkeypatch: pytest.MonkeyPatch, refuse: Refuse) -> None:
    asked = ("dynamics", "owner/tiny", "--revisions")
    refuse("no revision matches 'ckpt.'; found main, step0, step4, step8, step16$", *asked, "ckpt*")
    refuse("owner/none: no such folder, and no accessible model at http.*", "dynamics", "owner/none",
           "--revisions", "*")  # fmt: skip
    refuse("a/b/c: no such folder, and no accessible model", "dynamics", "a/b/c", "--revisions", "*")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    refuse("no connection to http://127.0.0.1:9", *asked, "step*")
