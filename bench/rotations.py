"""Planning rotations compared with plain forward passes over the same calibration document, measured alternately."""

from __future__ import annotations

from statistics import median
from time import process_time

import torch

import wherewhat as ww
from wherewhat.prompts.documents import packaged_documents
from wherewhat.studies.rotations.calibrate import EffectCell, cut, measure_document, tokens_of

from .overhead import SMOLLM2
from .prompts import WEIGHTS

CASES = (
    ("stories15M", WEIGHTS / "stories15M", 256),
    ("SmolLM2", SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", 256),
    ("SmolLM2", SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", 1024),
    ("SmolLM2", SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", 2048),
    ("SmolLM2", SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf", 4096),
)


@torch.no_grad()
def compare(repeats: int = 3) -> list[dict[str, float | str]]:
    """Medians of processor time, which other work on the machine disturbs less than time on the clock."""
    rows: list[dict[str, float | str]] = []
    for name, source, tokens in CASES:
        model, tokenizer = ww.load(source), ww.load_tokenizer(source)
        text = "\n\n".join(packaged_documents().values())
        (document,) = cut(tokenizer, tokens_of(tokenizer, text), tokens, 1)
        ids = torch.tensor([document])
        ww.capture(model, ids)  # runs the self-check, once per model
        plain, planned = [], []
        for _ in range(repeats):
            start = process_time()
            model(input_ids=ids, use_cache=False)
            plain.append(process_time() - start)
            start = process_time()
            measure_document(model, EffectCell("", "", document))
            planned.append(process_time() - start)
        ratio = median(planned) / median(plain)
        rows.append({"model": name, "tokens": tokens, "plain s": median(plain), "planning ratio": ratio})
    return rows
