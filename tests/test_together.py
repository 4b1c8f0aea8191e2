"""The same study started twice at the same time, by mistake or on two machines with a shared folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from wherewhat.files import read_tensors, write_atomically

STUDY = """
import sys, time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from wherewhat.files import write_table
from wherewhat.cells.cells import run_cells
from wherewhat.cells.executors import executing
from wherewhat.cells.processes import ProcessExecutor

@dataclass(frozen=True)
class Cell:
    seed: int

def compute(cell):
    return {"random": torch.randn(100_000, generator=torch.Generator().manual_seed(cell.seed))}

folder, jobs = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with executing(ProcessExecutor(jobs) if jobs > 1 else None):
    results = run_cells(folder / "cells", [Cell(seed) for seed in range(40)], compute)
    write_table(folder / "means.parquet", pd.DataFrame({"mean": [float(one["random"].mean()) for one in results]}))
"""


def start(folder: Path, jobs: int) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", STUDY, folder, str(jobs)], env=environment, text=True, **pipes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "logs"}


def go(studies: list[subprocess.Popen[str]]) -> None:
    """Let all of them start at the same moment."""
    for study in studies:
        assert study.stdout
        assert study.stdout.readline() == "ready\n", study.communicate()
    for study in studies:
        assert study.stdin
        study.stdin.write("go\n")
        study.stdin.flush()


def end(studies: list[subprocess.Popen[str]]) -> None:
    for study in studies:
        said = study.communicate()[1]
        assert (study.returncode, said) == (0, "")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("alone")
    study = [start(folder, 1)]
    go(study)
    end(study)
    return contents(folder)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_two_concurrent_studies_end_with_the_files_of_one(tmp_path: Path, jobs: int, alone: dict[str, bytes]) -> None:
    both = [start(tmp_path, jobs) for _ in range(2)]
    go(both)
    while any(study.poll() is None for study in both):  # every file that exists is complete
        for path in (tmp_path / "cells").glob("*.safetensors"):
            assert read_tensors(path)["random"].shape == (100_000,)
        time.sleep(0.05)
    end(both)
    assert len(contents(tmp_path)) == 41
    assert contents(tmp_path) == alone


def test_processes_with_equal_ids_on_two_machines_do_not_interfere(tmp_path: Path) -> None:
    """One writes a file while the other is still writing it."""
    path, replace = tmp_path / "file", Path.replace

    def meanwhile(partial: Path, target: Path) -> Path:
        with patch.object(Path, "replace", replace):
            write_atomically(path, "of the other")
        assert path.read_text() == "of the other"
        return replace(partial, target)

    with patch.object(Path, "replace", meanwhile):
        write_atomically(path, "of one")
    assert path.read_text() == "of one"
    assert list(tmp_path.iterdir()) == [path]
