"""Executors compute the cells of a study: in this process, in several processes, or on a Ray cluster (ray.py).

Studies do not depend on the executor. The function that computes a cell is sent once to every worker, together with the
model that it refers to. A result comes back as the bytes of its file, and only the process that runs the study writes
files. A worker that dies is replaced and its cell computed again; a cell that fails does not stop the others.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import StringIO
from multiprocessing import get_context, parent_process, resource_tracker
from threading import Thread
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from ..errors import BadInput, NotMeasurable

Compute = Callable[[Any], bytes]
ReportRunning = Callable[[int], None]  # receives the number of cells that are being computed
ATTEMPTS = 3  # per cell whose worker dies


@dataclass(frozen=True)
class Outcome:
    """The content of a cell's file, or None and the reason; what the cell printed, where it ran and for how long."""

    content: bytes | None
    reason: str = ""
    log: str = ""
    where: str = ""
    seconds: float = 0.0


@runtime_checkable
class Executor(Protocol):
    """Computes cells anywhere and in any order; yields the index and the outcome of each.

    A cell is read from the sequence only when it is submitted.
    """

    def run(
        self, compute: Compute, cells: Sequence[Any], report_running: ReportRunning
    ) -> Generator[tuple[int, Outcome], None, None]: ...

    def close(self) -> None: ...


@runtime_checkable
class Status(Protocol):
    """Receives how many cells, called `name`, are done, running and failed, and their total."""

    def __call__(self, name: str, done: int, running: int, failed: int, total: int, /) -> None: ...


_executing: ContextVar[tuple[Executor | None, Status]] = ContextVar("executing", default=(None, lambda *state: None))


def current() -> tuple[Executor | None, Status]:
    return _executing.get()


@contextmanager
def executing(executor: Executor | None, status: Status = lambda *state: None) -> Iterator[None]:
    """Within this context all studies compute their cells with this executor.

    >>> with executing(ProcessExecutor(4)):                                          # doctest: +SKIP
    ...     ww.profile(model, prompts, folder="profiles/model")
    """
    token = _executing.set((executor, status))
    try:
        yield
    finally:
        _executing.reset(token)
        if executor is not None and executor is not current()[0]:
            executor.close()


class LocalOnly:
    """A callable for this process only, such as a progress bar; in a worker it does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *state: Any) -> None:
        self.call(*state)

    def __reduce__(self) -> tuple[type[LocalOnly], tuple[Callable[..., None]]]:
        return LocalOnly, (_nothing,)


def _nothing(*_: Any) -> None: ...


def attempt(compute: Compute, cell: Any) -> Outcome:
    """Compute a cell; an error becomes part of the outcome, and printed output becomes its log."""
    printed, start = StringIO(), perf_counter()
    with redirect_stdout(printed), redirect_stderr(printed):
        outcome = _outcome(compute, cell)
    where = f"process {os.getpid()} of {socket.gethostname()}"
    return replace(outcome, log=printed.getvalue() + outcome.log, where=where, seconds=perf_counter() - start)


def _outcome(compute: Compute, cell: Any) -> Outcome:
    try:
        return Outcome(compute(cell))
    except (BadInput, NotMeasurable) as error:
        return Outcome(None, str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return Outcome(None, reason, traceback.format_exc())


class SerialExecutor:
    """Computes cells one after another in this process; a cell that fails does not stop the others."""

    def run(
        self, compute: Compute, cells: Sequence[Any], report_running: ReportRunning
    ) -> Generator[tuple[int, Outcome], None, None]:
        for number, cell in enumerate(cells):
            report_running(1)
            yield number, _outcome(compute, cell)

    def close(self) -> None: ...


# Processes of this machine

_compute: Compute | None = None  # in a worker: set when it starts


def _start(content: bytes, threads: int) -> None:
    global _compute
    import cloudpickle
    import torch

    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _compute = cloudpickle.loads(content)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(content: bytes) -> Outcome:
    return attempt(_unpacked, content)


def _unpacked(content: bytes) -> bytes:
    """A cell that cannot be unpickled fails alone; unpickled by the pool, it would break the pool."""
    import cloudpickle

    assert _compute is not None
    return _compute(cloudpickle.loads(content))


@dataclass(frozen=True)
class ProcessExecutor:
    """Computes cells in `jobs` processes of this machine, which share its processors."""

    jobs: int

    @property
    def threads(self) -> int:
        """Threads per process, such that all processes together use no more than the available processors."""
        return max(1, (os.cpu_count() or 1) // self.jobs)

    def close(self) -> None: ...

    def run(
        self, compute: Compute, cells: Sequence[Any], report_running: ReportRunning
    ) -> Generator[tuple[int, Outcome], None, None]:
        import cloudpickle

        content, waiting = cloudpickle.dumps(compute), deque(range(len(cells)))
        while waiting:
            suspects = yield from self._many(content, cells, waiting, report_running)
            yield from self._one_by_one(content, cells, deque(suspects), report_running)

    def _many(
        self, content: bytes, cells: Sequence[Any], waiting: deque[int], report_running: ReportRunning
    ) -> Generator[tuple[int, Outcome], None, list[int]]:
        """Compute until no cell is left or a process dies; returns the cells that may have killed it."""
        running: dict[Future[Outcome], int] = {}
        with self._pool(content, min(self.jobs, len(waiting))) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * self.jobs:  # one running and one queued per process
                        running[_submit(pool, cells[waiting[0]])] = waiting[0]
                        waiting.popleft()
                    report_running(min(self.jobs, len(running)))
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        outcome = future.result()
                        yield running.pop(future), outcome
            except BrokenProcessPool:
                pass
        return list(running.values())

    def _one_by_one(
        self, content: bytes, cells: Sequence[Any], suspects: deque[int], report_running: ReportRunning
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Compute each cell alone, so that one that kills its process does not affect others."""
        died = 0
        while suspects:
            with self._pool(content, 1) as pool:
                try:
                    while suspects:
                        report_running(1)
                        outcome = _submit(pool, cells[suspects[0]]).result()
                        died = 0
                        yield suspects.popleft(), outcome
                except BrokenProcessPool:
                    died += 1
            if died == ATTEMPTS:
                died = 0
                yield suspects.popleft(), Outcome(None, f"its process died {ATTEMPTS} times")

    @contextmanager
    def _pool(self, content: bytes, jobs: int) -> Iterator[ProcessPoolExecutor]:
        """A pool whose processes start when needed and are terminated at the end, even if they are busy."""
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start, (content, self.threads))
        with _environment("OMP_NUM_THREADS", str(self.threads)):  # read by a worker when it loads its libraries
            try:
                yield pool
            finally:
                workers = list((pool._processes or {}).values())
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.terminate()


def _submit(pool: ProcessPoolExecutor, cell: Any) -> Future[Outcome]:
    """Submit a cell to a pool. The processes that it starts ignore Control-C, which the main process handles."""
    import cloudpickle

    resource_tracker.ensure_running()  # otherwise it starts in between and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_work, cloudpickle.dumps(cell))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
