"""How the cost of scoring grows, on random layers without a forward pass: processor time of one thread, peak memory.

For each size that grows: the seconds and megabytes at its ends, and exponents fitted to the larger half of the values.
"""

from __future__ import annotations

import math
from pathlib import Path
from time import process_time

import torch

import wherewhat as ww
from wherewhat.core.rotation import Rotation
from wherewhat.core.trace import AttentionLayer, Trace

from .ablation import one_thread
from .memory import peak_megabytes

BASE = {"tokens": 1024, "blocks": 128, "heads": 16, "frequencies": 32, "prompts": 1}
AXES = {
    "tokens": (256, 512, 1024, 2048, 4096, 8192),
    "blocks": (32, 64, 128, 256, 512),
    "heads": (4, 8, 16, 32, 64),
    "frequencies": (8, 16, 32, 64),
    "prompts": (1, 2, 4, 8),
}


def random_trace(tokens: int, heads: int, frequencies: int, prompts: int) -> Trace:
    """One layer whose logits have the standard deviation 1.5, about that of SmolLM2."""
    draw = torch.Generator().manual_seed(0)
    width = 2 * frequencies
    rotation = Rotation.half_split(10_000.0 ** -(torch.arange(frequencies) / frequencies), width)
    queries = torch.randn(prompts, heads, 1, width, generator=draw)
    keys = torch.randn(prompts, heads, tokens + 1, width, generator=draw)
    layer = AttentionLayer(0, queries, keys, rotation, scaling=1.5 / math.sqrt(width))
    return Trace((layer,), (tokens,), tokens)


def measure(tokens: int, blocks: int, heads: int, frequencies: int, prompts: int) -> dict[str, float]:
    trace, width = random_trace(tokens, heads, frequencies, prompts), tokens // blocks
    spans = [(at, at + width) for at in range(0, blocks * width, width)]
    row: dict[str, float] = {}
    for name, score in (("heads", ww.score), ("frequencies", ww.score_frequencies)):
        score(trace, spans)
        before = resident_megabytes()
        Path("/proc/self/clear_refs").write_text("5")
        taken = []
        for _ in range(3):
            start = process_time()
            score(trace, spans)
            taken.append(process_time() - start)
        row |= {f"{name} s": min(taken), f"{name} MB": max(1.0, peak_megabytes() - before)}
    return row


def resident_megabytes() -> float:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def exponent(sizes: tuple[int, ...], values: list[float]) -> float:
    """The slope of log value over log size, in the larger half of the sizes."""
    half = len(sizes) // 2
    x, y = torch.tensor(sizes[half:]).double().log(), torch.tensor(values[half:]).double().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def compare() -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []
    with one_thread():
        for axis, sizes in AXES.items():
            found = [measure(**BASE | {axis: size}) for size in sizes]
            for what in found[0]:
                values = [one[what] for one in found]
                row: dict[str, float | str] = {"grows": axis, "of": what, "from": sizes[0], "to": sizes[-1]}
                rows.append(row | {"first": values[0], "last": values[-1], "exponent": exponent(sizes, values)})
    return rows
