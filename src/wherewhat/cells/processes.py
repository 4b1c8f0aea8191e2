"""Cells computed in several processes of this machine.

Each process is given one cell at a time through a pipe of its own, so it is known at any moment which process died, and
which cell it was computing. Nothing large passes through a pipe before a process reads from it: the function that
computes, with its model, is a temporary file, which every process loads by itself.
"""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any

import cloudpickle

from ..errors import BadInput
from .executors import ATTEMPTS, Compute, Outcome, ReportRunning, attempt

READY = "ready"
PATIENCE = 5.0  # seconds until a process that does not end is killed


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
        waiting, deaths, failed_starts = deque(range(len(cells))), Counter[int](), list[str]()
        workers, finished = list[Worker](), list[tuple[int, Outcome]]()
        with _stored(compute) as path:
            try:
                while waiting or finished or any(worker.cell is not None for worker in workers):
                    busy = sum(worker.cell is not None for worker in workers)
                    while len(workers) < min(self.jobs, len(waiting) + busy) and len(failed_starts) < ATTEMPTS:
                        with interrupts_deferred():  # Control-C must not hit a process that is in no list yet
                            workers.append(Worker(path, self.threads))
                    if waiting and not workers:
                        reason = f"no process could start ({failed_starts[-1]})"
                        finished += [(number, Outcome(None, reason)) for number in waiting]
                        waiting.clear()
                    for worker in workers:
                        if waiting and worker.idle:
                            worker.give(waiting[0], cells[waiting[0]])
                            waiting.popleft()
                    if finished:  # after all have work again
                        yield from finished
                        finished.clear()
                        continue
                    report_running(sum(worker.cell is not None for worker in workers))
                    for worker in wait_for(workers):
                        number, message = worker.receive()
                        if message == READY:
                            failed_starts.clear()
                        elif number is not None and isinstance(message, Outcome):
                            finished.append((number, message))
                        else:  # the process died or cannot work
                            workers.remove(worker)
                            worker.end()
                            if number is None:
                                failed_starts.append(message)
                                continue
                            deaths[number] += 1
                            if deaths[number] < ATTEMPTS:
                                waiting.append(number)
                            else:
                                finished.append((number, Outcome(None, f"its process died {ATTEMPTS} times")))
            finally:
                for worker in workers:
                    worker.end()


class Worker:
    """A process, the end of its pipe here, and the number of the cell that it is computing; idle: it waits for one."""

    def __init__(self, compute: Path, threads: int) -> None:
        context = get_context("spawn")
        self.cell: int | None = None
        self.idle = False
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, str(compute), threads), daemon=True)
        with _environment("OMP_NUM_THREADS", str(threads)):  # inherited, as are blocked signals
            self.process.start()
        theirs.close()  # otherwise this pipe would stay open when the process dies

    def give(self, number: int, cell: Any) -> None:
        """Send a cell. If the process is dead, `receive` will say so."""
        self.cell, self.idle = number, False
        with suppress(OSError):
            self.pipe.send_bytes(cloudpickle.dumps(cell))

    def receive(self) -> tuple[int | None, Any]:
        """The cell that was being computed, if any, and its outcome, READY, or the reason why the process is of no use.

        To be called when `wait_for` lists this worker.
        """
        number, self.cell = self.cell, None
        try:
            if self.pipe.poll():
                message = self.pipe.recv()
                self.idle = True
                return number, message
        except (EOFError, OSError):
            pass
        self.process.join(PATIENCE)
        return number, f"its process ended with exit code {self.process.exitcode}"

    def end(self) -> None:
        """End the process, even if it is busy."""
        self.pipe.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def wait_for(workers: Sequence[Worker]) -> list[Worker]:
    """Wait until one of these sends something or ends; returns all that did."""
    ready = set(wait([which for worker in workers for which in (worker.pipe, worker.process.sentinel)]))
    return [worker for worker in workers if {worker.pipe, worker.process.sentinel} & ready]


@contextmanager
def _stored(compute: Compute) -> Iterator[Path]:
    """The function that computes in a temporary file, which only this user can read."""
    with TemporaryDirectory(prefix="wherewhat-") as folder:
        path = Path(folder) / "compute"
        try:
            with path.open("wb") as file:
                cloudpickle.dump(compute, file)
        except OSError as error:
            raise BadInput(f"{path}: the model cannot be stored for other processes ({error.strerror})") from error
        yield path


def _serve(pipe: Connection, compute: str, threads: int) -> None:
    """What a process does: load the function that computes, then compute one cell after another."""
    import torch

    Thread(target=_end_with_parent, args=(compute,), daemon=True).start()
    torch.set_num_threads(threads)
    try:
        with open(compute, "rb") as file:
            function = cloudpickle.load(file)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])
        return
    pipe.send(READY)
    with suppress(EOFError, OSError):  # the parent closed the pipe
        while True:
            content = pipe.recv_bytes()
            # A cell that cannot be unpickled fails alone.
            pipe.send(attempt(lambda content: function(cloudpickle.loads(content)), content))


def _end_with_parent(compute: str) -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    with suppress(OSError):  # a parent that was killed could not remove it
        os.unlink(compute)
        os.rmdir(os.path.dirname(compute))
    os._exit(1)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Control-C takes effect at the end of this context. Processes that start in it ignore Control-C altogether.

    Blocking the signal is not enough: another thread, such as one of a numerical library, would still receive it, and
    Python would raise KeyboardInterrupt in the main thread.
    """
    resource_tracker.ensure_running()  # otherwise it starts in between and unblocks the signal
    received: list[tuple[int, FrameType | None]] = []
    handler = None
    if current_thread() is main_thread():  # no other thread is interrupted
        handler = signal.signal(signal.SIGINT, lambda *signal_and_frame: received.append(signal_and_frame))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by processes
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    if received and callable(handler):
        handler(*received[0])


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
