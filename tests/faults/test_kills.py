"""Processes killed at random moments, in every command that runs cells: it resumes and ends with equal files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_training import train

from conftest import ENVIRONMENT, share, weights

RUN = "train letter --steps 3 --every 1 --warmup 1 --batch 4"
COMMANDS = {
    "profile": "profile number --samples 6",
    "profile, level prompt": "profile letter --samples 3 --level prompt --swaps 6",
    "lengths": "lengths number --longest 40 --prompts 200",
    "sweep": "sweep index --frequency 3 --seeds 1 --steps 60 --batch 32",
    "spectrum": "spectrum letter --samples 6",
    "ablate": "ablate number --samples 20 --draws 2 --drop *.*.1 --drop *.*.9",
    "demo": "demo --prompts 3",
    "dynamics": "dynamics RUN --prompts 12",
    "rotations": "rotations MODEL --length 32 --keep 2",
    "stretch": "stretch MODEL --pairs 4 --samples 3 --measure 128",
    "atlas": "atlas LIST",
}
KEPT = (".safetensors", ".parquet")


class Zygote:
    """Starts commands in forks; see zygote.py."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("zygote.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True,
        )  # fmt: skip

    def start(self, *words: str) -> int:
        """The process id of a command."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(self.log), *words]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self) -> int:
        """The exit code of the command."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def run(self, *words: str) -> None:
        self.start(*words)
        assert self.wait() == 0, self.log.read_text()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.process.kill()
    made.process.wait()


def words_of(name: str, folder: Path) -> list[str]:
    """The words of a command, with what it needs in the folder."""
    command = COMMANDS[name]
    if "RUN" in command:
        train(folder / "run")
    if "LIST" in command:
        (folder / "models.toml").write_text(
            "pairs = 4\nsamples = 3\n[card]\ntitle = 'x'\nlicence = 'mit'\n"
            + "".join(
                f"[[models]]\nmodel = '{weights('stories260K')}'\nname = 'seed {seed}'\nseed = {seed}\n"
                for seed in (0, 1)
            )
        )
    places = {"RUN": folder / "run", "LIST": folder / "models.toml"}
    places |= {"MODEL": weights("stories260K")} if "MODEL" in command else {}
    return [str(places.get(word, word)) for word in command.split()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.suffix in KEPT}


def end_group(process: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def workers_of(process: int) -> list[int]:
    from test_executors import workers_of as listed

    return listed(process)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.weights if {"MODEL", "LIST"} & {*words.split()} else ())
     for name, words in COMMANDS.items()],
)  # fmt: skip
def test_a_command_that_is_killed_again_and_again_ends_with_the_same_files(
    name: str, zygote: Zygote, tmp_path: Path, tried: Any
) -> None:
    words, draw, kills = words_of(name, tmp_path), random.Random(name), 0
    started = time.monotonic()
    zygote.run(*words, "-o", str(tmp_path / "whole"))
    seconds, whole = time.monotonic() - started, contents(tmp_path / "whole")
    assert whole
    for number in range(share(10, 1)):
        folder = tmp_path / str(number)
        for _ in range(share(4, 2)):
            process = zygote.start(*words, "-o", str(folder))
            time.sleep(draw.random() * seconds)
            end_group(process)
            kills += zygote.wait() == -signal.SIGKILL
        zygote.run(*words, "-o", str(folder))
        assert contents(folder) == whole
        assert not list(folder.rglob("*.partial"))
        shutil.rmtree(folder)
    tried("kills", kills)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["profile", "lengths"])
def test_killed_workers_and_parents_with_jobs(name: str, zygote: Zygote, tmp_path: Path, tried: Any) -> None:
    words, draw, kills = COMMANDS[name].split(), random.Random(name), 0
    zygote.run(*words, "-o", str(tmp_path / "whole"))
    whole = contents(tmp_path / "whole")
    for number in range(share(12, 1)):
        folder = tmp_path / str(number)
        process = zygote.start(*words, "--jobs", "2", "-o", str(folder))
        for _ in range(draw.randrange(1, 4)):  # of workers, also while they start
            time.sleep(draw.random() * 4)
            if workers := workers_of(process):
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(workers), signal.SIGKILL)
                    kills += 1
        if draw.random() < 0.5:
            time.sleep(draw.random() * 3)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            kills += zygote.wait() == -signal.SIGKILL
        else:
            assert zygote.wait() in (0, 1), zygote.log.read_text()  # 1: every start was killed
        zygote.run(*words, "--jobs", "2", "-o", str(folder))
        assert contents(folder) == whole
        shutil.rmtree(folder)
    tried("kills", kills)


@pytest.mark.slow
def test_a_training_run_that_is_killed_again_and_again(zygote: Zygote, tmp_path: Path, tried: Any) -> None:
    words, draw, kills = RUN.split(), random.Random(0), 0
    zygote.run(*words, "-o", str(tmp_path / "whole"))
    whole = contents(tmp_path / "whole")
    for number in range(share(6, 1)):
        folder = tmp_path / str(number)
        for _ in range(3):
            process = zygote.start(*words, "-o", str(folder))
            deadline = time.monotonic() + 60
            while not (folder / "run.json").exists() and time.monotonic() < deadline:  # data are made first
                time.sleep(0.01)
            time.sleep(draw.random() * 0.4)
            end_group(process)
            kills += zygote.wait() == -signal.SIGKILL
        zygote.run(*words, "-o", str(folder))
        assert contents(folder) == whole
    tried("kills", kills)


@pytest.mark.slow
def test_killed_ray_workers(tmp_path: Path, tried: Any) -> None:
    """A cluster on this machine, listening on loopback only, whose workers are killed."""
    if share(1, 0) == 0:
        pytest.skip("part of make faults only; tests/test_ray.py kills nodes")
    words = [sys.executable, "-m", "wherewhat", *COMMANDS["profile"].split()]
    subprocess.run([*words, "-o", tmp_path / "whole"], env=ENVIRONMENT, check=True, capture_output=True)
    whole, draw, kills = contents(tmp_path / "whole"), random.Random(0), 0
    for number in range(4):
        begun = subprocess.Popen(
            [*words, "--ray", "local", "-o", tmp_path / str(number)], env=ENVIRONMENT, start_new_session=True,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        while begun.poll() is None and kills < 5 * (number + 1):
            time.sleep(draw.random() * 3)
            listed = subprocess.run(["ps", "ww", "-eo", "sid=,pid=,args="], capture_output=True, text=True).stdout
            rows = [line.split(maxsplit=2) for line in listed.splitlines()]
            computing = [int(row[1]) for row in rows if row[2].startswith("ray::compute_cell")]
            if computing:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(computing), signal.SIGKILL)
                    kills += 1
        _, err = begun.communicate(timeout=300)
        if begun.returncode:
            assert b"Traceback" not in err
            subprocess.run([*words, "-o", tmp_path / str(number)], env=ENVIRONMENT, check=True, capture_output=True)
        assert contents(tmp_path / str(number)) == whole
    tried("kills", kills)
