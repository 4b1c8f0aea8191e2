"""The one thread that runs the model, its queue, and how work that nobody waits for any more is stopped."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

NEW_PROMPT = "measure"  # the lane whose jobs replace all others of their page


class Stopped(Exception):
    """The job was cancelled; the reason is for the reader."""


class TooSlow(Stopped):
    """The job was stopped because its time was over."""


class Busy(Exception):
    """The queue is full."""


@dataclass
class Job:
    """Work for the model. `check` raises Stopped as soon as nobody needs the result, or its time is over."""

    work: Callable[[Job], Any]
    page: str
    lane: str
    seconds: float
    future: Future[Any] = field(default_factory=Future)
    reason: str | None = None
    deadline: float | None = None

    def check(self) -> None:
        if self.reason is not None:
            raise Stopped(self.reason)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TooSlow(f"this took longer than {self.seconds:g} seconds; try a shorter prompt")

    def cancel(self, reason: str) -> None:
        self.reason = self.reason or reason


class Worker:
    """Runs one job at a time, in the order of their arrival.

    A newer job of the same page and lane replaces an older one; a new prompt replaces everything of its page.
    """

    def __init__(self, most: int = 32, seconds: float = 120.0) -> None:
        self.most, self.seconds = most, seconds
        self.jobs: list[Job] = []
        self.running: Job | None = None
        self.closed = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="wherewhat-model", daemon=True)
        self.thread.start()
        atexit.register(self.close)  # a thread that still runs the model would abort the interpreter

    def submit(self, work: Callable[[Job], Any], page: str, lane: str) -> Job:
        job = Job(work, page, lane, self.seconds)
        with self.changed:
            if self.closed:
                raise Busy("the server is stopping")
            for other in (*self.jobs, *filter(None, [self.running])):
                if other.page == page and lane in (NEW_PROMPT, other.lane):
                    other.cancel("replaced by a newer request of the same page")
            waiting = [other for other in self.jobs if other.reason is None]
            if len(waiting) >= self.most:
                raise Busy(f"{len(waiting)} requests are waiting for the model; try again in a moment")
            self.jobs.append(job)
            self.changed.notify()
        return job

    def check(self) -> None:
        """Called between the layers of the model: stops the running job if it was cancelled."""
        if self.running is not None and threading.current_thread() is self.thread:
            self.running.check()

    def close(self) -> None:
        """Cancel everything, and wait for the thread to end."""
        with self.changed:
            self.closed = True
            for job in (*self.jobs, *filter(None, [self.running])):
                job.cancel("the server is stopping")
            self.changed.notify()
        self.thread.join(timeout=10)
        atexit.unregister(self.close)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.running = None
                while not self.jobs and not self.closed:
                    self.changed.wait()
                if not self.jobs:
                    return
                job = self.running = self.jobs.pop(0)
            if not job.future.set_running_or_notify_cancel():
                continue
            job.deadline = time.monotonic() + job.seconds
            try:
                job.check()
                result = job.work(job)
                job.check()
                job.future.set_result(result)
            except BaseException as error:  # whatever happens in a request, the thread goes on
                job.future.set_exception(error)
            del job
