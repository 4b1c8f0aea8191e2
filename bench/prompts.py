"""Prompts for benchmarks: statements of equal length in tokens after a preamble, one block per statement."""

from __future__ import annotations

import os
import random
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer

WEIGHTS = Path(os.environ.get("WHEREWHAT_WEIGHTS", Path(__file__).resolve().parents[2] / "shared" / "weights"))
NAMES = (
    "Alice Bob Carol David Emma Frank Grace Henry Ivy Jack Kate Leo Mary Nick Olivia Paul Quinn Rose Sam Tom".split()
)
COLORS = "red blue green black white brown pink gray orange purple yellow silver".split()
PREAMBLE = "Here is a list of what people like."
QUESTION = " What does Alice like? Alice likes"


def binding_prompts(folder: Path, template: str, tokens: int, batch: int = 1) -> tuple[Tensor, list[tuple[int, int]]]:
    """About this many token ids (batch, T), and one block per statement; all statements have the same length."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    draw = random.Random(0)

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    pairs = [(name, color) for name in NAMES for color in COLORS]
    draw.shuffle(pairs)
    statements = [encode(template.format(name=name, color=color)) for name, color in pairs]
    lengths = [len(statement) for statement in statements]
    width = max(set(lengths), key=lengths.count)
    statements = [statement for statement in statements if len(statement) == width]
    bos = tokenizer.bos_token_id
    ids = ([] if bos is None else [bos]) + encode(PREAMBLE)
    question = encode(QUESTION)
    count = (tokens - len(ids) - len(question)) // width
    blocks = [(len(ids) + width * at, len(ids) + width * (at + 1)) for at in range(count)]
    lists = (
        [one for at in range(count) for one in statements[(at + count * row) % len(statements)]] for row in range(batch)
    )
    return torch.tensor([ids + one + question for one in lists]), blocks
