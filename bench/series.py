"""Time to score a series of checkpoints: forward pass, scores, entropy and use of frequencies."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter

import torch

import wherewhat as ww
from wherewhat.studies.dynamics.measure import measure_checkpoint, views_of_sequences
from wherewhat.tasks import Number

# Prompts times checkpoints of the whole published study, and its cost: 13.5 hours, with 2 TB of stored attention.
PUBLISHED_PROMPTS, PUBLISHED_HOURS = 1_200_000, 13.5


def compare(prompts: int = 4800, processes: int = 2) -> dict[str, float | int]:
    """Checkpoints are independent: one process per core with one thread each, like two runs of `wherewhat dynamics`."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(_score, [64] * processes))  # imports and warms up
        start = perf_counter()
        list(pool.map(_score, [prompts // processes] * processes))
        rate = prompts / (perf_counter() - start)
    hours = PUBLISHED_PROMPTS / rate / 3600
    return {
        "processes": processes,
        "prompts a second": rate,
        "hours for the published job": hours,
        "published hours": PUBLISHED_HOURS,
        "ratio": PUBLISHED_HOURS / hours,
        "bytes of attention stored": 0,
    }


def _score(prompts: int) -> None:
    torch.set_num_threads(1)
    measure_checkpoint(ww.embedded("number"), views_of_sequences(Number().sample(prompts)), 1e-4)
