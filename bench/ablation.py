"""Forward passes within a gate against plain ones over the same prompt, interleaved: processor time of one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from time import process_time
from typing import Any

import torch

import wherewhat as ww

from .overhead import SMOLLM2

TOKENS = 512
GATES: dict[str, dict[str, Any]] = {
    "drop a quarter of all heads' frequencies": {"drop": [(None, None, "slowest quarter")]},
    "ablate one head of each layer": {"ablate": [(layer, layer % 9) for layer in range(30)]},
    "freeze a quarter of all heads' frequencies": {"freeze": [(None, None, "slowest quarter")]},
    "freeze a quarter in one head of each group": {"freeze": [(None, head, "slowest quarter") for head in (0, 3, 6)]},
}


@torch.no_grad()
def compare(repeats: int = 3) -> list[dict[str, float | str]]:
    """The median ratio of several gates to no gate on SmolLM2, over rounds in which each runs once."""
    model = ww.load(SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf")
    ids = torch.randint(10, 40_000, (1, TOKENS), generator=torch.Generator().manual_seed(0))

    def timed(choices: dict[str, Any] | None) -> float:
        with nullcontext() if choices is None else ww.gate(model, **choices):
            start = process_time()
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
            return process_time() - start

    with one_thread():
        timed(None)
        rounds = [(timed(None), *map(timed, GATES.values())) for _ in range(repeats)]
    plain, *gated = zip(*rounds, strict=True)
    return [
        {"gate": name, "tokens": TOKENS, "plain s": median(plain), "gated s": median(taken)}
        | {"ratio": median(after / before for after, before in zip(taken, plain, strict=True))}
        for name, taken in zip(GATES, gated, strict=True)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: the time that threads spend waiting for each other would count as processor time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
