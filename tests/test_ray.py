"""A real Ray cluster of two nodes on this machine gives the same tables as no cluster, even when a node dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from conftest import missing, weights

QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # loopback only, no usage statistics
ENVIRONMENT = os.environ | QUIET | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
CELLS = 24


@dataclass
class Node:
    """The processes of one node, in a session of their own, like a separate machine."""

    process: subprocess.Popen[bytes]

    def processes(self) -> dict[int, str]:
        """The names of its processes: Ray names a worker after its current task."""
        listed = subprocess.run(["ps", "-eo", "sid=,pid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(maxsplit=2) for line in listed.splitlines()]
        return {int(number): name for session, number, name in rows if int(session) == self.process.pid}

    def computes(self) -> bool:
        """Whether one of them is computing a cell."""
        return any(name.startswith("ray::compute_cell") for name in self.processes().values())

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)


def start_node(folder: Path, *options: str) -> Node:
    log = folder / f"{len(list(folder.iterdir()))}.log"
    command = "start --block --num-cpus=1 --object-store-memory=80000000 --include-log-monitor=false".split()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *command, *options],
            env=ENVIRONMENT, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    wait_for(lambda: b"Ray runtime started" in log.read_bytes(), process, log.read_text)
    return Node(process)


def wait_for(
    condition: Callable[[], object], process: subprocess.Popen, explain: Callable[[], str], limit: float = 300
) -> None:
    """Wait until the condition holds, while the process is alive."""
    start = time.monotonic()
    while not condition():
        assert process.poll() is None, explain()
        assert time.monotonic() - start < limit, explain()
        time.sleep(0.02)


@dataclass
class Cluster:
    address: str
    head: Node
    second: Node


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if find_spec("ray") is None:
        missing("no Ray: pip install 'wherewhat[ray]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    nodes: list[Node] = []
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # short: it holds sockets
        logs = Path(folder) / "logs"
        logs.mkdir()
        try:
            port = address.rpartition(":")[2]
            nodes.append(
                start_node(logs, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
            )
            nodes.append(start_node(logs, f"--address={address}", "--node-ip-address=127.0.0.2"))
            yield Cluster(address, *nodes)
        finally:
            for node in nodes:
                if node.process.poll() is None:
                    node.signal(signal.SIGKILL)
                node.process.wait()


def profile(folder: Path) -> list[str]:
    """A study of 24 prompts, each of which reruns the model for every swap."""
    options = f"--samples {CELLS} --pairs 8 --level prompt --swaps 28 -o {folder}"
    return ["profile", str(weights("stories260K")), *options.split()]


def start(arguments: list[str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "wherewhat", *arguments, *more],
        env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(study: subprocess.Popen[str]) -> None:
    _, said = study.communicate(timeout=300)
    assert study.returncode == 0, said
    lines = [line.split()[0] for line in said.splitlines()]
    assert [word for word in lines if word != "prompts:"] == [
        "Prompts:",
        "Saved",
    ]  # progress, but no output of Ray itself


def tables(folder: Path) -> dict[str, bytes]:
    names = ("heads.parquet", "frequencies.parquet", "tensors.safetensors", "profile.json")
    return {name: (folder / name).read_bytes() for name in names}


def cells(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cells").glob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.weights
def test_a_cluster_gives_the_same_tables_even_when_a_node_dies(
    cluster: Cluster, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    assert run(*profile(tmp_path / "here"))[0] == 0
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    finish(start(profile(whole), "--ray", cluster.address))
    assert len(cells(whole)) > CELLS
    assert cells(whole) == cells(tmp_path / "here")
    assert tables(whole) == tables(tmp_path / "here")

    study = start(profile(hurt), "--ray", cluster.address)
    wait_for(lambda: len(cells(hurt)) >= 2, study, lambda: "the study ended too soon")

    def at_work() -> bool:
        """Whether the second node is computing a cell, and still is after it was paused."""
        if not cluster.second.computes():
            return False
        cluster.second.signal(signal.SIGSTOP)
        if not (caught := cluster.second.computes()):
            cluster.second.signal(signal.SIGCONT)
        return caught

    wait_for(at_work, study, lambda: "the second node was never at work")
    cluster.second.signal(signal.SIGKILL)
    assert len(cells(hurt)) < CELLS
    finish(study)
    assert cells(hurt) == cells(whole)
    assert tables(hurt) == tables(whole)
