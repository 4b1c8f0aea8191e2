"""A whole profile compared with plain forward passes over the same prompts, in turns, by clock and by processor time.

The model is loaded, checked and warm; a profile includes the hash of the weights and everything that it stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch

import wherewhat as ww

from .overhead import SMOLLM2
from .prompts import WEIGHTS

LARGER = Path(os.environ.get("WHEREWHAT_LARGER", WEIGHTS.parents[1] / "larger-models"))
CASES = {
    "SmolLM2": (SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", 64, 8, 2.0),
    "stories15M": (WEIGHTS / "stories15M", 40, 8, 2.5),
    "Qwen2.5-Coder 0.5B": (LARGER / "qwen2.5-coder-0.5b.gguf", 64, 8, 1.6),
}


def compare(case: str, turns: int = 5) -> dict[str, float | str | int]:
    """Medians of turns; the limit is the ratio that a profile should not exceed."""
    source, pairs, samples, limit = CASES[case]
    model, tokenizer = ww.load(source), ww.load_tokenizer(source)
    prompts = ww.binding(tokenizer, pairs=pairs, samples=samples)
    ids = [torch.tensor([prompt.ids]) for prompt in prompts]

    @torch.no_grad()
    def plain() -> None:
        for one in ids:
            model(input_ids=one, use_cache=False, logits_to_keep=1)

    def profiled() -> None:
        ww.profile(model, prompts)

    plain(), profiled()
    rounds = [(*timed(plain), *timed(profiled)) for _ in range(turns)]
    wall, cpu, profile_wall, profile_cpu = zip(*rounds, strict=True)
    return {
        "model": case,
        "pairs": pairs,
        "prompts": samples,
        "plain s": median(wall),
        "profile s": median(profile_wall),
        "ratio": median(profile_wall) / median(wall),
        "ratio of processor time": median(profile_cpu) / median(cpu),
        "limit": limit,
    }


def timed(work: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = perf_counter(), process_time()
    work()
    return perf_counter() - wall, process_time() - cpu
