"""Peak memory at 8,192 tokens, one process each: `python -m bench.memory plain|heads|frequencies` prints megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import wherewhat as ww

from .overhead import SMOLLM2
from .prompts import binding_prompts

TOKENS = 8192


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@torch.no_grad()
def measure(way: str) -> float:
    """The peak of the whole process during the pass; the peak of loading is reset before it."""
    model = ww.load(SMOLLM2 / "SmolLM2-135M-Instruct.Q4_1.gguf")
    ids, blocks = binding_prompts(SMOLLM2, " {name} really likes the color {color}.", TOKENS)
    if way != "plain":
        ww.capture(model, ids[:, :64])  # runs the self-check, once per model
    Path("/proc/self/clear_refs").write_text("5")
    if way == "plain":
        model(input_ids=ids, logits_to_keep=1)
    else:
        trace = ww.capture(model, ids)
        ww.score(trace, blocks)
        if way == "frequencies":
            ww.score_frequencies(trace, blocks)
    return peak_megabytes()


def compare(ways: tuple[str, ...] = ("plain", "heads", "frequencies")) -> dict[str, float]:
    """Peak megabytes of each way, and the ratios to the plain pass."""
    peaks = {}
    for way in ways:
        done = subprocess.run(
            [sys.executable, "-m", "bench.memory", way], capture_output=True, text=True, check=True
        ).stdout.split()
        peaks[way] = float(done[-1])
    return (
        {"tokens": TOKENS}
        | {f"{way} MB": peak for way, peak in peaks.items()}
        | {f"{way} ratio": peak / peaks["plain"] for way, peak in peaks.items() if way != "plain"}
    )


if __name__ == "__main__":
    print(measure(sys.argv[1]))
