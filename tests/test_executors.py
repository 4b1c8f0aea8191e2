"""Cells computed by any executor give the same files, whichever workers die or cells fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conftest import weights
from wherewhat.cells.cells import run_cells
from wherewhat.cells.executors import Executor, LocalOnly, SerialExecutor, attempt, executing
from wherewhat.cells.processes import ProcessExecutor, interrupts_deferred
from wherewhat.cli import app
from wherewhat.errors import BadInput, CellsFailed

KEPT = (".safetensors", ".parquet")


@dataclass(frozen=True)
class Square:
    number: int
    wait: float = 0.0


def squares(folder: Path, cells: list[Square], executor: Executor | None, statuses: list | None = None) -> list[int]:
    offset = torch.tensor(7)  # pickled together with the function

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

    with executing(executor, lambda *state: None if statuses is None else statuses.append(state)):
        results = list(run_cells(folder / "cells", cells, compute, "squares"))
    return [int(result["square"]) - 7 for result in results]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.slow
def test_processes_share_the_work_and_results_come_in_order(tmp_path: Path) -> None:
    statuses: list = []
    cells = [Square(number, wait=0.3) for number in range(12)]
    assert squares(tmp_path, cells, ProcessExecutor(2), statuses) == [number**2 for number in range(12)]
    assert (statuses[0], statuses[-1]) == (("squares", 0, 0, 0, 12), ("squares", 12, 0, 0, 12))
    assert [done for _, done, *_ in statuses] == sorted(done for _, done, *_ in statuses)
    assert {running for _, done, running, *_ in statuses if 0 < done < 11} == {2}
    from safetensors.torch import load_file

    pids = {int(load_file(path)["process"]) for path in (tmp_path / "cells").glob("*.safetensors")}
    assert len(pids) == 2
    assert os.getpid() not in pids
    logs = [json.loads(path.read_text()) for path in (tmp_path / "cells" / "logs").iterdir()]
    assert sorted(log["cell"]["number"] for log in logs) == list(range(12))
    assert squares(tmp_path, cells, None) == [number**2 for number in range(12)]  # read from files


@pytest.mark.slow
def test_failed_cells_do_not_stop_others_and_are_reported_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(
        CellsFailed, match="2 of 5 squares failed; the others are kept; rerun the command to retry only these"
    ) as raised:
        squares(tmp_path, [Square(number) for number in (1, -1, 2, -2, 3)], ProcessExecutor(2))
    assert sorted(raised.value.failed.values()) == ["ValueError: -1 is negative", "ValueError: -2 is negative"]
    assert len(list((tmp_path / "cells").glob("*.safetensors"))) == 3
    (log,) = [(tmp_path / "cells" / "logs" / f"{number}.json").read_text() for number in list(raised.value.failed)[:1]]
    assert "about to fail" in log
    assert "Traceback" in log


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    cells = [Square(number, wait=0.02) for number in (11, 12, 13, 14, 15, 16)]
    assert squares(tmp_path, cells, ProcessExecutor(2)) == [number.number**2 for number in cells]
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_a_process_that_has_nothing_to_do_takes_over_from_one_that_dies(tmp_path: Path) -> None:
    def compute(cell: Square) -> dict[str, torch.Tensor]:
        if cell.number == 13 and not (tmp_path / "died").exists():
            while not (tmp_path / "other").exists():  # the other process has computed the other cell
                time.sleep(0.01)
            time.sleep(1)
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "other").touch()
        return {"square": torch.tensor(cell.number**2)}

    with executing(ProcessExecutor(2), lambda *_: None):
        results = list(run_cells(tmp_path / "cells", [Square(13), Square(2)], compute, "squares"))
    assert [int(result["square"]) for result in results] == [169, 4]


@pytest.mark.slow
def test_a_cell_that_kills_every_process_fails_alone(tmp_path: Path) -> None:
    with pytest.raises(CellsFailed, match="1 of 4 squares failed") as raised:
        squares(tmp_path, [Square(666), Square(1, 1.0), Square(2, 1.0), Square(3)], ProcessExecutor(2))
    assert list(raised.value.failed.values()) == ["its process died 3 times"]
    assert len(list((tmp_path / "cells").glob("*.safetensors"))) == 3


HEAVY = """
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from wherewhat.cells.cells import run_cells
from wherewhat.cells.executors import executing
from wherewhat.cells.processes import ProcessExecutor, interrupts_deferred

@dataclass(frozen=True)
class Number:
    number: int

model = torch.ones(8_000_000)  # more than a pipe holds
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background

if __name__ == "__main__":
    def compute(cell, model=model):
        return {"sum": model.sum() + cell.number}

    with executing(ProcessExecutor(2)):
        results = list(run_cells(Path(sys.argv[1]), [Number(n) for n in range(6)], compute))
    print([int(one["sum"]) - 8_000_000 for one in results])
"""


def workers_of(process: int) -> list[int]:
    """The worker processes of a process, also those that are just starting."""
    children = [number for file in Path(f"/proc/{process}/task").glob("*/children") for number in read(file).split()]
    return [int(number) for number in children if "spawn_main" in read(Path(f"/proc/{number}/cmdline"))]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


def heavy(folder: Path) -> subprocess.Popen[str]:
    (folder / "heavy.py").write_text(HEAVY)
    command = [sys.executable, folder / "heavy.py", folder / "cells"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def next_worker(process: subprocess.Popen[str], seen: set[int]) -> int:
    """A worker that was not there before, as early as possible."""
    while not (new := [pid for pid in workers_of(process.pid) if pid not in seen]):
        assert process.poll() is None, process.communicate()
    seen.add(new[0])
    return new[0]


@pytest.mark.slow
def test_workers_that_are_killed_while_they_start_are_replaced(tmp_path: Path) -> None:
    begun, seen = heavy(tmp_path), set[int]()
    for _ in range(2):
        os.kill(next_worker(begun, seen), signal.SIGKILL)
    out, err = begun.communicate(timeout=100)
    assert (out, begun.returncode) == ("[0, 1, 2, 3, 4, 5]\n", 0), err


@pytest.mark.slow
def test_if_no_worker_can_start_all_cells_fail_with_the_reason(tmp_path: Path) -> None:
    begun, seen = heavy(tmp_path), set[int]()
    while begun.poll() is None:
        for pid in set(workers_of(begun.pid)) - seen:
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
    _, err = begun.communicate(timeout=100)
    assert "6 of 6 parts failed" in err
    assert "no process could start (its process ended with exit code -9)" in err


@pytest.mark.slow
def test_control_c_works_while_a_worker_hangs_as_it_starts(tmp_path: Path) -> None:
    begun, seen = heavy(tmp_path), set[int]()
    for _ in range(2):
        os.kill(next_worker(begun, seen), signal.SIGSTOP)
    time.sleep(0.5)
    begun.send_signal(signal.SIGINT)
    _, err = begun.communicate(timeout=30)
    assert "KeyboardInterrupt: 0 of 6 parts are kept" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen)


def test_control_c_is_deferred_even_if_another_thread_receives_the_signal() -> None:
    reached: list[bool] = []

    def interrupted() -> None:
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            reached.append(True)

    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached


@pytest.mark.slow
def test_workers_of_a_killed_study_end_and_leave_no_files(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "heavy.py").write_text(HEAVY.replace("return {", "import time; time.sleep(60)\n        return {"))
    command = [sys.executable, tmp_path / "heavy.py", tmp_path / "cells"]
    begun = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path / "temporary")})
    while len(started := workers_of(begun.pid)) < 2:
        assert begun.poll() is None
    time.sleep(8)  # until they compute
    begun.kill()
    begun.wait()
    ends = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert not [path for path in (tmp_path / "temporary").rglob("*") if path.stat().st_size > 1e6]


def test_a_local_callable_does_nothing_in_a_worker() -> None:
    import cloudpickle

    reported: list[int] = []
    here = LocalOnly(reported.append)
    here(3)
    cloudpickle.loads(cloudpickle.dumps(here))(4)
    assert reported == [3]


STUDIES = """
import sys
from dataclasses import replace
from pathlib import Path

import cloudpickle
import torch

from wherewhat.cli import app
from wherewhat.files import write_tables
from wherewhat.studies.encodings.tables import gather
from wherewhat.studies.encodings.settings import SIZES, EncodingSetting
from wherewhat.cells.executors import attempt, executing

class Pickling:
    def run(self, compute, cells, report_running):
        there = cloudpickle.loads(cloudpickle.dumps(compute))
        for number in range(len(cells)):
            yield number, attempt(there, cloudpickle.loads(cloudpickle.dumps(cells[number])))

    def close(self): ...

torch.set_num_threads(1)
model, folder, small = sys.argv[1], Path(sys.argv[2]), "--pairs 3 --samples 2"
app(f"train letter -o {folder}/run --steps 4 --every 2 --warmup 1 --batch 4".split(), standalone_mode=False)
for name, executor in (("here", None), ("there", Pickling())):
    out = folder / name
    with executing(executor):
        for command in (
            f"profile {model} {small} -o {out}/profile",
            f"ablate {model} --profile {out}/profile {small} --draws 2 --fraction 0.2 -o {out}/ablation",
            f"spectrum number --samples 2 -o {out}/spectrum",
            f"deposit {model} {small} -o {out}/deposit",
            f"stretch {model} {small} --longest 120 --measure 100 -o {out}/stretch",
            f"dynamics {folder}/run --prompts 4 -o {out}/dynamics",
        ):
            app(command.split(), standalone_mode=False)
        size = replace(SIZES["small"], layers=2, heads=2, width=16, hidden=16, tested=64,
                       recipe=replace(SIZES["small"].recipe, steps=4, batch=16, warmup=2))
        wanted = [EncodingSetting("rope", "distance"), EncodingSetting("nope", "count")]
        tables = gather(out / "encodings", wanted, print, sizes={"small": size})
        write_tables(out, {f"encodings-{number}": table for number, table in enumerate(tables)})
"""


@pytest.mark.slow
@pytest.mark.weights
def test_every_study_can_be_sent_to_another_machine(tmp_path: Path) -> None:
    """The functions that compute, and every cell, are pickled and unpickled as for a remote worker."""
    command = [sys.executable, "-c", STUDIES, weights("stories260K"), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    here, there = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*") if path.suffix in KEPT}
        for folder in (tmp_path / "here", tmp_path / "there")
    )
    studies = {"profile", "ablation", "spectrum", "deposit", "stretch", "dynamics", "encodings"}
    assert {path.parts[0] for path in here if path.suffix == ".safetensors"} == studies
    assert here == there
    logged = {log.stem for log in (tmp_path / "there").rglob("logs/*.json")}
    assert logged == {path.stem for path in there if path.suffix == ".safetensors"} - {"tensors"}


@pytest.mark.slow
@pytest.mark.weights
def test_commands_give_the_same_files_in_processes(tmp_path: Path) -> None:
    """Profiles, sweeps and lengths, run as a user runs them."""
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


def test_contradictory_options_are_refused() -> None:
    for command, reason in (
        ("sweep index --jobs 2 --ray local", "give only one of them"),
        ("sweep index --gpus-per-cell 1", "need --ray"),
        ("sweep index --ray localhost:1", "no Ray cluster at localhost:1"),
        ("lengths one --endpoint http://localhost:1/v1 --jobs 2", "takes --concurrency"),
    ):
        result = CliRunner().invoke(app, command.split())
        assert isinstance(result.exception, BadInput)
        assert reason in str(result.exception)


def test_processes_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert [ProcessExecutor(jobs).threads for jobs in (1, 2, 3, 16)] == [8, 4, 2, 1]


def test_the_outcome_of_a_cell_says_what_happened() -> None:
    def compute(number: int) -> bytes:
        print("computing")
        time.sleep(0.05)
        if number < 0:
            raise BadInput("negative")
        return bytes([1 // number])

    start = time.perf_counter()
    good, refused, failed = (attempt(compute, number) for number in (1, -1, 0))
    assert 0.15 <= good.seconds + refused.seconds + failed.seconds <= time.perf_counter() - start
    assert (good.content, good.reason, good.log) == (b"\x01", "", "computing\n")
    assert (refused.content, refused.reason, refused.log) == (None, "negative", "computing\n")
    assert (failed.content, failed.reason[:17]) == (None, "ZeroDivisionError")
    assert "Traceback" in failed.log
    assert good.where.startswith(f"process {os.getpid()} of ")


def test_an_executor_is_closed_when_the_outermost_context_ends() -> None:
    class Counted(SerialExecutor):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    outer, inner = Counted(), Counted()
    with executing(outer):
        with executing(outer):
            pass
        assert outer.closed == 0
        with executing(inner):
            pass
        assert (outer.closed, inner.closed) == (0, 1)
    assert (outer.closed, inner.closed) == (1, 1)
