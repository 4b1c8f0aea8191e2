"""Cells on a Ray cluster: an existing one with any number of machines, or one started on this machine.

The function that computes a cell is put into the cluster's object store once; each worker reads it from there. Nodes
may join and leave: cells that a lost node was computing, or whose results had not been fetched, are computed again.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from ..errors import BadInput
from .executors import ATTEMPTS, Compute, Outcome, ReportRunning, attempt

LOOK = 1.0  # seconds between two queries of the cluster's resources


@dataclass
class RayExecutor:
    """Computes cells on a Ray cluster: "local" starts one here, "auto" or host:port joins an existing one."""

    address: str = "local"
    gpus: float = 0.0
    memory: float = 0.0  # gigabytes per cell
    cpus: float = 1.0
    _joined: bool = field(default=False, init=False)

    def run(
        self, compute: Compute, cells: Sequence[Any], report_running: ReportRunning
    ) -> Generator[tuple[int, Outcome], None, None]:
        ray = self._join()
        self._check(ray.cluster_resources())
        needs: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": ATTEMPTS - 1}
        needs |= {"memory": int(self.memory * 2**30)} if self.memory else {}
        remote = ray.remote(**needs)(compute_cell)
        shared = ray.put(compute)  # its primary copy is on the node of this process, and is lost only with it
        running: dict[Any, int] = {}
        waiting, looked, room, taken = deque(range(len(cells))), -LOOK, 1, 0
        try:
            while waiting or running:
                if monotonic() - looked > LOOK:  # nodes join and leave
                    total, free = ray.cluster_resources(), ray.available_resources()
                    room, looked = self._room(total), monotonic()
                    taken = room - self._room(free)
                report_running(min(taken, len(running)))
                while waiting and len(running) < 2 * max(1, room):  # one running and one queued per slot
                    number = waiting.popleft()
                    running[remote.remote([shared], cells[number])] = number
                done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK)
                for reference in done:
                    yield running.pop(reference), _fetch(ray, reference)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        if self._joined:
            import ray

            ray.shutdown()
            self._joined = False

    def _join(self) -> Any:
        host, _, port = self.address.rpartition(":")
        if port.isdecimal():  # tested first: Ray itself waits for minutes and then ends the process
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError as error:
                raise BadInput(f"no Ray cluster at {self.address} ({error.strerror or error})") from error
        token = "RAY_AUTH_TOKEN" in os.environ or Path("~/.ray/auth_token").expanduser().exists()
        if token:  # `ray start --head` requires it by default; other clusters ignore it
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        if self.address == "local":
            # Read when Ray is imported: it then listens on the loopback interface only, as on other systems than Linux.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
        except ImportError as error:
            raise BadInput("Ray is not installed: pip install 'wherewhat[ray]'") from error
        if not ray.is_initialized():
            logging.getLogger("ray").setLevel(logging.ERROR)  # it prints advice about how it was started
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports no usage statistics
            try:
                ray.init(self.address, log_to_driver=False, configure_logging=False, include_dashboard=False)
            except Exception as error:  # Ray raises many types, some without a common base class
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BadInput(f"no Ray cluster at {self.address} ({first})") from error
            self._joined = True
        return ray

    def _check(self, total: dict[str, float]) -> None:
        """Refuse cells that need more than the whole cluster has, instead of waiting forever."""
        if total.get("GPU", 0) < self.gpus or total.get("memory", 0) < self.memory * 2**30:
            raise BadInput(
                f"the cluster has {total.get('GPU', 0):g} GPUs and {total.get('memory', 0) / 2**30:.0f} GB of memory; "
                f"a cell needs {self.gpus:g} and {self.memory:g}"
            )

    def _room(self, resources: dict[str, float]) -> int:
        """The number of cells that fit into these resources."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * 2**30}
        return int(min(resources.get(name, 0) / need for name, need in needs.items() if need))


_known: dict[Any, Compute] = {}  # in a worker: the function that computes, read once


def compute_cell(shared: list[Any], cell: Any) -> Outcome:
    """Compute a cell in a worker. Ray does not resolve a reference inside a list, so it arrives as a reference."""
    import ray

    if shared[0] not in _known:
        _known.clear()
        _known[shared[0]] = ray.get(shared[0])
    return attempt(_known[shared[0]], cell)


def _fetch(ray: Any, reference: Any) -> Outcome:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:  # its workers died too often, or cannot run our code
        reason = str(getattr(error, "cause", None) or error).strip()
        return Outcome(None, reason.splitlines()[0], str(error))
