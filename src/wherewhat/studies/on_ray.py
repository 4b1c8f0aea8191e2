"""Cells on a Ray cluster: one that runs already, on as many machines as it has, or one that is started here.

What computes is put into the cluster once; each worker reads it from there. Nodes may come and go: what a dead one was
at is done again elsewhere, and so is what it had done if nobody had fetched it yet.
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
from .executors import ATTEMPTS, AtWork, Compute, Outcome, attempt

LOOK = 1.0  # seconds between looks at what the cluster has


@dataclass
class OnRay:
    """The workers of a Ray cluster: "local" starts one here, "auto" or host:port joins one that runs."""

    address: str = "local"
    gpus: float = 0.0
    memory: float = 0.0  # gigabytes a cell
    cpus: float = 1.0
    _joined: bool = field(default=False, init=False)

    def run(
        self, compute: Compute, cells: Sequence[Any], at_work: AtWork
    ) -> Generator[tuple[int, Outcome], None, None]:
        ray = self._join()
        self._check(ray.cluster_resources())
        needs: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": ATTEMPTS - 1}
        needs |= {"memory": int(self.memory * 2**30)} if self.memory else {}
        remote = ray.remote(**needs)(compute_cell)
        shared = ray.put(compute)  # its first copy is at the node that this process is at: it dies with it, not before
        running: dict[Any, int] = {}
        waiting, looked, room, taken = deque(range(len(cells))), -LOOK, 1, 0
        try:
            while waiting or running:
                if monotonic() - looked > LOOK:  # nodes come and go
                    there, free = ray.cluster_resources(), ray.available_resources()
                    room, looked = self._room(there), monotonic()
                    taken = room - self._room(free)
                at_work(min(taken, len(running)))
                while waiting and len(running) < 2 * max(1, room):  # one at work and one at hand for each
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
        if port.isdecimal():  # asked first: Ray itself waits for minutes and then ends the process
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError as error:
                raise BadInput(f"no Ray cluster at {self.address} ({error.strerror or error})") from error
        token = "RAY_AUTH_TOKEN" in os.environ or Path("~/.ray/auth_token").expanduser().exists()
        if token:  # `ray start --head` asks for it by default; a cluster that does not ignores it
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            import ray
        except ImportError as error:
            raise BadInput("Ray is not installed: pip install 'wherewhat[ray]'") from error
        if not ray.is_initialized():
            logging.getLogger("ray").setLevel(logging.ERROR)  # it advises on how it was started
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # and a cluster that is started here tells nobody
            try:
                ray.init(self.address, log_to_driver=False, configure_logging=False, include_dashboard=False)
            except Exception as error:  # Ray has many, some of no class of their own
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BadInput(f"no Ray cluster at {self.address} ({first})") from error
            self._joined = True
        return ray

    def _check(self, there: dict[str, float]) -> None:
        """Refuse cells for which no cluster of this kind has room, instead of waiting for it."""
        if there.get("GPU", 0) < self.gpus or there.get("memory", 0) < self.memory * 2**30:
            raise BadInput(
                f"the cluster has {there.get('GPU', 0):g} GPUs and {there.get('memory', 0) / 2**30:.0f} GB of memory; "
                f"a cell asks for {self.gpus:g} and {self.memory:g}"
            )

    def _room(self, there: dict[str, float]) -> int:
        """For how many cells that is enough."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * 2**30}
        return int(min(there.get(name, 0) / need for name, need in needs.items() if need))


_known: dict[Any, Compute] = {}  # of a worker: what it computes, read once


def compute_cell(shared: list[Any], cell: Any) -> Outcome:
    """Compute a cell in a worker. In a list, a reference comes as itself, not as what it refers to."""
    import ray

    if shared[0] not in _known:
        _known.clear()
        _known[shared[0]] = ray.get(shared[0])
    return attempt(_known[shared[0]], cell)


def _fetch(ray: Any, reference: Any) -> Outcome:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:  # its workers died too often, or cannot compute anything of ours
        told = str(getattr(error, "cause", None) or error).strip()
        return Outcome(None, told.splitlines()[0], str(error))
