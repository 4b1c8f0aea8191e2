"""A gated forward pass against a plain one over the same prompt, taken in turns."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch

import wherewhat as ww

from .overhead import SMOLLM2

TOKENS = 512
GATES: dict[str, dict[str, Any]] = {
    "drop a quarter of all heads' frequencies": {"drop": [(None, None, "slowest quarter")]},
    "ablate a head of each layer": {"ablate": [(layer, layer % 9) for layer in range(30)]},
    "freeze a quarter of all heads' frequencies": {"freeze": [(None, None, "slowest quarter")]},
    "freeze a quarter in one head of each group": {"freeze": [(None, head, "slowest quarter") for head in (0, 3, 6)]},
}


@torch.no_grad()
def compare(repeats: int = 5) -> list[dict[str, float | str]]:
    """The median ratio of turns, plain and gated, for several gates on SmolLM2."""
    model = ww.load(SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf")
    ids = torch.randint(10, 40_000, (1, TOKENS), generator=torch.Generator().manual_seed(0))

    def timed() -> float:
        start = perf_counter()
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
        return perf_counter() - start

    timed()
    rows = []
    for name, choices in GATES.items():
        plain, gated = [], []
        for _ in range(repeats):
            plain.append(timed())
            with ww.gate(model, **choices):
                gated.append(timed())
        ratios = [after / before for after, before in zip(gated, plain, strict=True)]
        rows.append({"gate": name, "tokens": TOKENS, "plain s": median(plain), "ratio": median(ratios)})
    return rows
