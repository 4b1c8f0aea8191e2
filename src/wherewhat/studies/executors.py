"""Where cells are computed: here, one after another, in processes of this machine, or on a Ray cluster.

A study does not know. What computes a cell travels once to every worker, with the model that it holds; a result comes
back as the bytes of its file, which only the process that runs the study writes. A worker that dies is replaced, and
what it was at is done again; a cell that fails leaves its reason and stops no other.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import StringIO
from multiprocessing import get_context
from typing import Any, Protocol, runtime_checkable

from ..errors import BadInput, NotMeasurable

Compute = Callable[[Any], bytes]
ATTEMPTS = 3  # at a cell whose worker dies


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its file, or none and the reason; and what was printed meanwhile."""

    content: bytes | None
    reason: str = ""
    log: str = ""


@runtime_checkable
class Executor(Protocol):
    """Computes cells anywhere, `at_once` at a time, in any order: yields the number of each and what became of it."""

    @property
    def at_once(self) -> int: ...

    def run(self, compute: Compute, cells: Sequence[Any]) -> Iterator[tuple[int, Outcome]]: ...


@runtime_checkable
class Status(Protocol):
    """Told how many cells are done, at work, failed, and of how many; `name` says what cells are called."""

    def __call__(self, name: str, done: int, running: int, failed: int, total: int, /) -> None: ...


_executing: ContextVar[tuple[Executor | None, Status]] = ContextVar("executing", default=(None, lambda *state: None))


def current() -> tuple[Executor | None, Status]:
    return _executing.get()


@contextmanager
def executing(executor: Executor | None, status: Status = lambda *state: None) -> Iterator[None]:
    """Within this context all studies compute their cells through the executor.

    >>> with executing(Processes(4)):                                          # doctest: +SKIP
    ...     ww.profile(model, prompts, folder="profiles/model")
    """
    token = _executing.set((executor, status))
    try:
        yield
    finally:
        _executing.reset(token)


class Here:
    """A callable of this process alone, such as a progress bar: in a worker it does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *state: Any) -> None:
        self.call(*state)

    def __reduce__(self) -> tuple[type[Here], tuple[Callable[..., None]]]:
        return Here, (_nothing,)


def _nothing(*_: Any) -> None: ...


def attempt(compute: Compute, cell: Any) -> Outcome:
    """Compute a cell; whatever goes wrong is its outcome, and what it prints is its log."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        outcome = _outcome(compute, cell)
    return replace(outcome, log=said.getvalue() + outcome.log)


def _outcome(compute: Compute, cell: Any) -> Outcome:
    try:
        return Outcome(compute(cell))
    except (BadInput, NotMeasurable) as error:
        return Outcome(None, str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return Outcome(None, reason, traceback.format_exc())


@dataclass(frozen=True)
class InTurn:
    """Cells here, one after another, but one that fails stops no other."""

    at_once: int = 1

    def run(self, compute: Compute, cells: Sequence[Any]) -> Iterator[tuple[int, Outcome]]:
        for number, cell in enumerate(cells):
            yield number, _outcome(compute, cell)


# Processes of this machine

_compute: Compute | None = None  # of a worker, from its start on


def _start(content: bytes, threads: int) -> None:
    global _compute
    import cloudpickle
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Control-C is for the process that runs the study
    torch.set_num_threads(threads)
    _compute = cloudpickle.loads(content)


def _work(cell: Any) -> Outcome:
    assert _compute is not None
    return attempt(_compute, cell)


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, which share its processors."""

    jobs: int

    @property
    def at_once(self) -> int:
        return self.jobs

    @property
    def threads(self) -> int:
        """Of each process, so that together they have no more than there are processors."""
        return max(1, (os.cpu_count() or 1) // self.jobs)

    def run(self, compute: Compute, cells: Sequence[Any]) -> Iterator[tuple[int, Outcome]]:
        import cloudpickle

        content, waiting = cloudpickle.dumps(compute), deque(range(len(cells)))
        while waiting:
            for number in (yield from self._many(content, cells, waiting)):
                yield number, self._alone(content, cells[number])

    def _many(
        self, content: bytes, cells: Sequence[Any], waiting: deque[int]
    ) -> Generator[tuple[int, Outcome], None, list[int]]:
        """Until none is waiting, or a process dies: then those that may have killed it come back."""
        running: dict[Future[Outcome], int] = {}
        with self._pool(content, min(self.jobs, len(waiting))) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * self.jobs:  # one at work and one at hand for each
                        running[pool.submit(_work, cells[waiting[0]])] = waiting[0]
                        waiting.popleft()
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        outcome = future.result()
                        yield running.pop(future), outcome
            except BrokenProcessPool:
                pass
        return list(running.values())

    def _alone(self, content: bytes, cell: Any) -> Outcome:
        """A cell by itself, so that no other suffers if it is the one that kills processes."""
        for _ in range(ATTEMPTS):
            with self._pool(content, 1) as pool:
                try:
                    return pool.submit(_work, cell).result()
                except BrokenProcessPool:
                    pass
        return Outcome(None, f"its process died {ATTEMPTS} times")

    @contextmanager
    def _pool(self, content: bytes, jobs: int) -> Iterator[ProcessPoolExecutor]:
        """Processes that start when they are needed, and are gone at the end whatever they are at."""
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start, (content, self.threads))
        with _environment("OMP_NUM_THREADS", str(self.threads)):  # read by a worker when it loads its libraries
            try:
                yield pool
            finally:
                workers = list((pool._processes or {}).values())
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.terminate()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


# A Ray cluster


@dataclass(frozen=True)
class OnRay:
    """The workers of a Ray cluster: "local" starts one here, "auto" or host:port joins one that runs."""

    address: str = "local"
    gpus: float = 0.0
    memory: float = 0.0  # gigabytes a cell
    cpus: float = 1.0

    @property
    def at_once(self) -> int:
        """As many as the cluster, once joined, has room for."""
        ray = sys.modules.get("ray")
        there = ray.cluster_resources() if ray and ray.is_initialized() else {}
        rooms = [there.get("CPU", 1) / self.cpus, *([there.get("GPU", 0) / self.gpus] if self.gpus else [])]
        rooms += [there.get("memory", 0) / (self.memory * 2**30)] if self.memory else []
        return max(1, int(min(rooms)))

    def run(self, compute: Compute, cells: Sequence[Any]) -> Iterator[tuple[int, Outcome]]:
        host, _, port = self.address.rpartition(":")
        if port.isdecimal():  # asked first: Ray itself waits for minutes and then ends the process
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError as error:
                raise BadInput(f"no Ray cluster at {self.address} ({error.strerror or error})") from error
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise BadInput("Ray is not installed: pip install 'wherewhat[ray]'") from error
        started = not ray.is_initialized()
        if started:
            self._join(ray)
        there = ray.cluster_resources()
        if there.get("GPU", 0) < self.gpus or there.get("memory", 0) < self.memory * 2**30:
            raise BadInput(
                f"the cluster has {there.get('GPU', 0):g} GPUs and {there.get('memory', 0) / 2**30:.0f} GB of memory; "
                f"a cell asks for {self.gpus:g} and {self.memory:g}"
            )
        needs: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": ATTEMPTS - 1}
        needs |= {"memory": int(self.memory * 2**30)} if self.memory else {}
        remote = ray.remote(**needs)(attempt)
        shared = ray.put(compute)  # once: every worker reads the model from there
        running: dict[Any, int] = {}
        waiting = deque(range(len(cells)))
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self.at_once:  # one at work and one at hand for each
                    number = waiting.popleft()
                    running[remote.remote(shared, cells[number])] = number
                done, _ = ray.wait(list(running), num_returns=1)
                for reference in done:
                    number = running.pop(reference)
                    try:
                        yield number, ray.get(reference)
                    except RayError as error:
                        yield number, Outcome(None, str(error).strip().splitlines()[0], str(error))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()

    def _join(self, ray: Any) -> None:
        try:
            address = None if self.address == "local" else self.address
            ray.init(address=address, log_to_driver=False, configure_logging=False, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0]
            raise BadInput(f"no Ray cluster at {self.address} ({first})") from error
