"""Cells computed elsewhere: the same files, whatever dies or fails on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conftest import weights
from wherewhat.cli import app
from wherewhat.errors import BadInput, CellsFailed
from wherewhat.studies.cells import run_cells
from wherewhat.studies.executors import Executor, Here, Processes, executing


@dataclass(frozen=True)
class Square:
    number: int
    wait: float = 0.0


def squares(folder: Path, cells: list[Square], executor: Executor | None, told: list | None = None) -> list[int]:
    offset = torch.tensor(7)  # travels with what computes

    def compute(cell: Square) -> dict[str, torch.Tensor]:
        if cell.number < 0:
            print("about to fail")
            raise ValueError(f"{cell.number} is negative\nand more")
        if cell.number == 13 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.number == 666:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(cell.wait)
        return {"square": cell.number**2 + offset, "process": torch.tensor(0 if executor is None else os.getpid())}

    with executing(executor, lambda *state: None if told is None else told.append(state)):
        results = list(run_cells(folder / "cells", cells, compute, "squares"))
    return [int(result["square"]) - 7 for result in results]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


def test_processes_share_the_work_and_results_come_in_order(tmp_path: Path) -> None:
    told: list = []
    cells = [Square(number, wait=0.3) for number in range(12)]
    assert squares(tmp_path, cells, Processes(2), told) == [number**2 for number in range(12)]
    assert told[-1] == ("squares", 12, 0, 0, 12)
    assert [state[1] for state in told] == list(range(1, 13))
    from safetensors.torch import load_file

    pids = {int(load_file(path)["process"]) for path in (tmp_path / "cells").glob("*.safetensors")}
    assert len(pids) == 2
    assert os.getpid() not in pids
    logs = [json.loads(path.read_text()) for path in (tmp_path / "cells" / "logs").iterdir()]
    assert sorted(log["cell"]["number"] for log in logs) == list(range(12))
    assert squares(tmp_path, cells, None) == [number**2 for number in range(12)]  # all there: nothing to compute


def test_what_fails_stops_nothing_else_and_is_told_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(CellsFailed, match="2 of 5 squares failed; the others are kept") as raised:
        squares(tmp_path, [Square(number) for number in (1, -1, 2, -2, 3)], Processes(2))
    assert sorted(raised.value.failed.values()) == ["ValueError: -1 is negative", "ValueError: -2 is negative"]
    assert len(list((tmp_path / "cells").glob("*.safetensors"))) == 3
    (log,) = [(tmp_path / "cells" / "logs" / f"{number}.json").read_text() for number in list(raised.value.failed)[:1]]
    assert "about to fail" in log
    assert "Traceback" in log


def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    cells = [Square(number, wait=0.02) for number in (11, 12, 13, 14, 15, 16)]
    assert squares(tmp_path, cells, Processes(2)) == [number.number**2 for number in cells]
    assert (tmp_path / "died").exists()


def test_a_cell_that_kills_every_process_fails_alone(tmp_path: Path) -> None:
    with pytest.raises(CellsFailed, match="1 of 4 squares failed") as raised:
        squares(tmp_path, [Square(666), Square(1, 1.0), Square(2, 1.0), Square(3)], Processes(2))
    assert list(raised.value.failed.values()) == ["its process died 3 times"]
    assert len(list((tmp_path / "cells").glob("*.safetensors"))) == 3


def test_progress_stays_at_home() -> None:
    import cloudpickle

    told: list[int] = []
    here = Here(told.append)
    here(3)
    cloudpickle.loads(cloudpickle.dumps(here))(4)
    assert told == [3]


def test_commands_give_the_same_files_in_processes(tmp_path: Path) -> None:
    """Profiles, sweeps and lengths know nothing of it; run as a user does."""
    script = """
import sys
from wherewhat.cli import app
for line in sys.argv[1].split(";"):
    app(line.split(), standalone_mode=False)
"""
    model = weights("stories260K")
    for name, jobs in (("here", ""), ("there", "--jobs 2")):
        commands = (
            f"profile {model} --pairs 4 --samples 3 -o {tmp_path}/{name}/profile {jobs}",
            f"lengths number --longest 30 --prompts 8 -o {tmp_path}/{name}/lengths {jobs}",
            f"sweep index --frequency 3 --seeds 1 --steps 20 -o {tmp_path}/{name}/sweep {jobs}",
        )
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script, ";".join(commands)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert len(here) >= 3 + 3 + 1
    assert here == there
    assert len(list((tmp_path / "there").rglob("logs/*.json"))) >= 3 + 3 + 1


def test_what_does_not_go_together_is_refused() -> None:
    for options, reason in (
        (["--jobs", "2", "--ray", "local"], "give one of them"),
        (["--gpus-per-cell", "1"], "are for --ray"),
        (["--ray", "localhost:1"], "no Ray cluster at localhost:1"),
    ):
        result = CliRunner().invoke(app, ["sweep", "index", *options])
        assert isinstance(result.exception, BadInput)
        assert reason in str(result.exception)
