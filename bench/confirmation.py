"""What it costs to confirm the self-check's certificate at every capture, measured alternately with captures without.

In CPU time on one thread, so that other processes do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from statistics import median
from time import process_time
from unittest.mock import patch

import torch

import wherewhat as ww
from wherewhat.tracing import self_check
from wherewhat.tracing.confirm import Probe

from .overhead import SMOLLM2

captures = import_module("wherewhat.tracing.capture")  # the module: the package exports the function


@contextmanager
def unprobed(*_: object) -> Iterator[Probe]:
    yield Probe([], 0)


@torch.no_grad()
def compare(tokens: int = 256, repeats: int = 21) -> dict[str, float | str]:
    """Medians over repeated captures, with the confirmation and without, in random order within each pair."""
    model = ww.load(SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf")
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(100, 40_000, (1, tokens), generator=draw)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    ww.capture(model, ids)
    known = self_check.structure(model)

    def timed(confirmed: bool) -> float:
        with (
            patch.object(captures, "probing", captures.probing if confirmed else unprobed),
            patch.object(self_check, "structure", self_check.structure if confirmed else lambda _: known),
        ):
            start = process_time()
            ww.capture(model, ids)
            return process_time() - start

    pairs = []
    for _ in range(repeats):
        first = bool(torch.randint(2, (), generator=draw))
        one, other = timed(first), timed(not first)
        pairs.append((one, other) if first else (other, one))
    torch.set_num_threads(threads)
    with_it, without = (median(some) for some in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    return {
        "model": "SmolLM2",
        "tokens": tokens,
        "pairs": repeats,
        "unconfirmed, CPU s": without,
        "confirmed, CPU s": with_it,
        "cost": f"{ratio - 1:.2%}",
    }
