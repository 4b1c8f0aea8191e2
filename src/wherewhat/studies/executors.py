"""Where cells are computed: here, one after another, in processes of this machine, or on a Ray cluster (on_ray.py).

A study does not know. What computes a cell travels once to every worker, with the model that it holds; a result comes
back as the bytes of its file, which only the process that runs the study writes. A worker that dies is replaced, and
what it was at is done again; a cell that fails leaves its reason and stops no other.
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
AtWork = Callable[[int], None]  # told how many cells are being computed
ATTEMPTS = 3  # at a cell whose worker dies


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its file, or none and the reason; what was printed meanwhile, and where and how long."""

    content: bytes | None
    reason: str = ""
    log: str = ""
    where: str = ""
    seconds: float = 0.0


@runtime_checkable
class Executor(Protocol):
    """Computes cells anywhere, in any order: yields the number of each and what became of it. A cell is read from
    the sequence when its turn comes."""

    def run(
        self, compute: Compute, cells: Sequence[Any], at_work: AtWork
    ) -> Generator[tuple[int, Outcome], None, None]: ...

    def close(self) -> None: ...


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
        if executor is not None and executor is not current()[0]:
            executor.close()


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
    said, start = StringIO(), perf_counter()
    with redirect_stdout(said), redirect_stderr(said):
        outcome = _outcome(compute, cell)
    where = f"process {os.getpid()} of {socket.gethostname()}"
    return replace(outcome, log=said.getvalue() + outcome.log, where=where, seconds=perf_counter() - start)


def _outcome(compute: Compute, cell: Any) -> Outcome:
    try:
        return Outcome(compute(cell))
    except (BadInput, NotMeasurable) as error:
        return Outcome(None, str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return Outcome(None, reason, traceback.format_exc())


class InTurn:
    """Cells here, one after another, but one that fails stops no other."""

    def run(
        self, compute: Compute, cells: Sequence[Any], at_work: AtWork
    ) -> Generator[tuple[int, Outcome], None, None]:
        for number, cell in enumerate(cells):
            at_work(1)
            yield number, _outcome(compute, cell)

    def close(self) -> None: ...


# Processes of this machine

_compute: Compute | None = None  # of a worker, from its start on


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
    """A cell that cannot be read here fails by itself: a pool that reads one dies of it."""
    import cloudpickle

    assert _compute is not None
    return _compute(cloudpickle.loads(content))


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, which share its processors."""

    jobs: int

    @property
    def threads(self) -> int:
        """Of each process, so that together they have no more than there are processors."""
        return max(1, (os.cpu_count() or 1) // self.jobs)

    def close(self) -> None: ...

    def run(
        self, compute: Compute, cells: Sequence[Any], at_work: AtWork
    ) -> Generator[tuple[int, Outcome], None, None]:
        import cloudpickle

        content, waiting = cloudpickle.dumps(compute), deque(range(len(cells)))
        while waiting:
            suspects = yield from self._many(content, cells, waiting, at_work)
            yield from self._one_by_one(content, cells, deque(suspects), at_work)

    def _many(
        self, content: bytes, cells: Sequence[Any], waiting: deque[int], at_work: AtWork
    ) -> Generator[tuple[int, Outcome], None, list[int]]:
        """Until none is waiting, or a process dies: then those that may have killed it come back."""
        running: dict[Future[Outcome], int] = {}
        with self._pool(content, min(self.jobs, len(waiting))) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * self.jobs:  # one at work and one at hand for each
                        running[_submit(pool, cells[waiting[0]])] = waiting[0]
                        waiting.popleft()
                    at_work(min(self.jobs, len(running)))
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        outcome = future.result()
                        yield running.pop(future), outcome
            except BrokenProcessPool:
                pass
        return list(running.values())

    def _one_by_one(
        self, content: bytes, cells: Sequence[Any], suspects: deque[int], at_work: AtWork
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Each by itself, so that no other suffers from the one that kills processes."""
        died = 0
        while suspects:
            with self._pool(content, 1) as pool:
                try:
                    while suspects:
                        at_work(1)
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


def _submit(pool: ProcessPoolExecutor, cell: Any) -> Future[Outcome]:
    """Give work to a pool. The processes that it may start for it do not hear Control-C: that is for the one that runs
    the study."""
    import cloudpickle

    resource_tracker.ensure_running()  # or it starts in between, and lets signals in again
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_work, cloudpickle.dumps(cell))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


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
