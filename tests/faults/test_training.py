"""Training that cannot succeed ends with one line; damaged checkpoints leave no numbers; leftovers are removed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname

import pytest
import torch
from safetensors.torch import load_file

import wherewhat as ww
from wherewhat.cells.cells import run_cells
from wherewhat.errors import BadInput
from wherewhat.files import sealed_tensors
from wherewhat.lab import Recipe, Shape, train_model
from wherewhat.lab.checkpoint import checkpoint_path, read_run, weights_about
from wherewhat.lab.train import Progress, ignore_progress
from wherewhat.tasks import TASKS

TASK = TASKS["letter"]()
RECIPE = Recipe(steps=4, batch=8, warmup=1)


def train(folder: Path, recipe: Recipe = RECIPE, progress: Progress = ignore_progress) -> None:
    shape, about = Shape(TASK.vocabulary, layers=1, width=8, hidden=8), {"task": "letter"}
    train_model(
        shape, TASK.sample(64, 0), TASK.sample(200, 1), recipe, folder, save_at=(0, 2), about=about, progress=progress
    )


def test_training_that_diverges_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"training diverged, the loss of step \d+ is (nan|inf); try a lower rate"):
        train(tmp_path, replace(RECIPE, rate=1e30))


@pytest.mark.slow
def test_the_command_ends_with_one_line_if_training_diverges(refuse, tmp_path: Path) -> None:
    words = "letter --rate 1e30 --steps 4 --warmup 1 --batch 4 -o".split()
    refuse("training diverged", "train", *words, tmp_path)


def test_a_run_whose_folder_is_removed_is_an_error(tmp_path: Path) -> None:
    def remove(what: str, done: float, total: int) -> None:
        if done == 3:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(BadInput, match=r"run: was removed during training"):
        train(tmp_path / "run", progress=remove)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_weights_that_are_not_numbers_leaves_no_rows(tmp_path: Path) -> None:
    train(tmp_path)
    path = checkpoint_path(tmp_path, 2)
    weights = load_file(path)
    next(iter(weights.values())).view(-1)[0] = torch.nan
    path.write_bytes(sealed_tensors(weights, weights_about(read_run(tmp_path), 2)))
    with pytest.raises(BadInput, match=rf"{path.name}: holds weights that are not finite"):
        ww.dynamics(tmp_path, prompts=12)


@dataclass(frozen=True)
class One:
    number: int


@pytest.mark.parametrize("where", ["run", "cells", "result"])
def test_files_that_a_killed_process_left_unfinished_are_removed(where: str, tmp_path: Path) -> None:
    ended = 2**22 + 1  # above every process id
    left = tmp_path / f".x.safetensors.{gethostname()}.{ended}.{'a' * 12}.partial"
    running = tmp_path / f".y.safetensors.another-host.{ended}.{'b' * 12}.partial"
    left.write_bytes(b"half")
    running.write_bytes(b"half")
    if where == "run":
        train(tmp_path)
    elif where == "cells":
        list(run_cells(tmp_path, [One(1)], lambda cell: {"x": torch.zeros(1)}))
    else:
        ww.Sweep.load(_sweep(tmp_path))
    assert not left.exists()
    assert running.exists()  # of another machine, which may still be writing


def _sweep(folder: Path) -> Path:
    ww.sweep("index", frequency=[3], seeds=1, steps=1, batch=8, folder=folder)
    assert json.loads((folder / "sweep.json").read_text())
    return folder
