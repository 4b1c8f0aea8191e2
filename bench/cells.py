"""The overhead per cell of each executor: a thousand cells that compute nothing, each with its file and log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor

from wherewhat.cells.cells import run_cells
from wherewhat.cells.executors import Executor, executing
from wherewhat.cells.processes import ProcessExecutor
from wherewhat.cells.ray import RayExecutor


@dataclass(frozen=True)
class Trivial:
    number: int


def compute(cell: Trivial) -> dict[str, Tensor]:
    return {"number": torch.tensor(cell.number)}


def compare(cells: int = 1000) -> list[dict[str, float | int | str]]:
    places: dict[str, Executor | None] = {
        "one process": None,
        "--jobs 2": ProcessExecutor(2),
        "--ray local": RayExecutor("local"),
    }
    return [{"where": name, "cells": cells} | timed(executor, cells) for name, executor in places.items()]


def timed(executor: Executor | None, cells: int) -> dict[str, float]:
    """The time until the first cell is done, which includes starting workers, and the time per cell from then on."""
    times: list[float] = []

    def status(name: str, done: int, running: int, failed: int, total: int) -> None:
        if done:
            times.append(perf_counter())

    with TemporaryDirectory() as folder, executing(executor, status):
        start = perf_counter()
        results = run_cells(Path(folder), [Trivial(number) for number in range(cells)], compute)
        ends = [perf_counter() for _ in results]
    first, last = (times or ends)[0] - start, ends[-1] - start
    return {"first after s": first, "ms per cell": 1000 * (last - first) / (cells - 1), "s in all": last}
