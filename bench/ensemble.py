"""A sweep trained at once against one model after another: same recipe, same code, alternating in one process.

Some members are trained alone, and their time is extrapolated to all members; both include drawing the prompts.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import torch

from wherewhat.lab.ensemble import CHUNK, RECIPE, Ensemble, train_ensemble
from wherewhat.studies.sweep.sweep import FREQUENCIES, angle_of
from wherewhat.tasks import CANONICAL

SEEDS, ALONE, ROUNDS = 5, 4, 5
STEPS = CHUNK  # prompts are drawn for this many steps at a time


def seconds_per_step(task: str, angles: torch.Tensor, seeds: range) -> float:
    ensemble = Ensemble(CANONICAL[task](), angles, seeds)
    start = time.perf_counter()
    train_ensemble(ensemble, replace(RECIPE, steps=STEPS))
    return (time.perf_counter() - start) / STEPS


def compare(task: str, still: bool = False) -> dict[str, float | str | int]:
    """Milliseconds for one step of all members, both ways."""
    angles = torch.tensor([[0.0, angle_of(number)][not still :] for number in range(1, FREQUENCIES + 1)])
    members = SEEDS * len(angles)
    together, alone = [], []
    for turn in range(ROUNDS):
        together.append(seconds_per_step(task, angles, range(SEEDS)))
        rows = [(7 * turn + 8 * number) % len(angles) for number in range(ALONE)]
        alone += [seconds_per_step(task, angles[row : row + 1], range(turn, turn + 1)) for row in rows]
    one_by_one = members * median(alone)
    return {
        "task": task,
        "angles per model": angles.shape[1],
        "models": members,
        "together ms per step": 1e3 * median(together),
        "one by one ms per step": 1e3 * one_by_one,
        "ratio": one_by_one / median(together),
    }
