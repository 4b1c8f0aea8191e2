"""Executors compute the cells of a study: in this process, in several processes (processes.py),
or on a Ray cluster (ray.py).

Studies do not depend on the executor. The function that computes a cell is given to every worker once, together with
the model that it refers to. A result comes back as the bytes of its file, and only the process that runs the study
writes files. A worker that dies is replaced and its cell computed again; a cell that fails does not stop the others.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import StringIO
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
