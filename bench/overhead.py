"""A captured and scored forward pass compared with a plain sdpa forward pass, measured alternately."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

import wherewhat as ww

from .prompts import WEIGHTS, binding_prompts

SMOLLM2 = WEIGHTS / "SmolLM2-135M-Instruct-GGUF"
CASES = {
    "stories15M": (WEIGHTS / "stories15M", " {name} likes {color}.", 256, 4),
    "SmolLM2": (SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", " {name} really likes the color {color}.", 1001, 1),
    "SmolLM2, short statements": (SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", " {name} likes {color}.", 1001, 1),
}


@torch.no_grad()
def compare(case: str, repeats: int = 7) -> dict[str, float | str]:
    """Medians over repeated passes: plain, captured, scored by head too, scored by head and frequency too."""
    source, template, tokens, batch = CASES[case]
    model = ww.load(source)
    ids, blocks = binding_prompts(source if source.is_dir() else source.parent, template, tokens, batch)
    start = perf_counter()
    trace = ww.capture(model, ids)
    first = perf_counter() - start
    ww.score(trace, blocks), ww.score_frequencies(trace, blocks)
    plain, captured, heads, everything = [], [], [], []
    for _ in range(repeats):
        start = perf_counter()
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
        plain.append(perf_counter() - start)
        start = perf_counter()
        trace = ww.capture(model, ids)
        captured.append(perf_counter() - start)
        ww.score(trace, blocks)
        heads.append(perf_counter() - start)
        ww.score_frequencies(trace, blocks)
        everything.append(perf_counter() - start)
    return {
        "model": case,
        "prompts": batch,
        "tokens": ids.shape[1],
        "blocks": f"{len(blocks)} x {blocks[0][1] - blocks[0][0]}",
        "plain s": median(plain),
        "captured ratio": median(captured) / median(plain),
        "heads ratio": median(heads) / median(plain),
        "with frequencies ratio": median(everything) / median(plain),
        "first capture, with self-check, s": first,
    }
