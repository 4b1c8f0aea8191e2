"""Loading a .gguf file the first time, when it is converted, and again: seconds and peak memory, one process each.

`python -m bench.loading FILE` prints seconds, peak megabytes beyond those before, megabytes of the weights, and a hash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import wherewhat as ww
from wherewhat.tracing.fingerprint import model_hash

from .memory import peak_megabytes
from .profiles import CASES

MODELS = {name: CASES[name][0] for name in ("SmolLM2", "Qwen2.5-Coder 0.5B")}


def measure(path: str) -> dict[str, float | str]:
    before, start, cpu = peak_megabytes(), perf_counter(), process_time()
    model = ww.load(path)
    ww.load_tokenizer(path)
    taken = {"s": perf_counter() - start, "cpu s": process_time() - cpu, "peak MB": peak_megabytes() - before}
    size = sum(value.numel() * value.element_size() for value in model.parameters()) / 2**20
    return taken | {"weights MB": size, "hash": model_hash(model)}


def compare() -> list[dict[str, float | str]]:
    """Every model that is here."""
    return [compare_model(name, path) for name, path in MODELS.items() if path.exists()]


def compare_model(name: str, path: Path) -> dict[str, float | str]:
    with TemporaryDirectory() as cache:
        words, environment = [sys.executable, "-m", "bench.loading", str(path)], os.environ | {"XDG_CACHE_HOME": cache}
        first, second = (
            json.loads(
                subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()[
                    -1
                ]
            )
            for _ in range(2)
        )
    assert first["hash"] == second["hash"]
    return {
        "model": name,
        "first s": first["s"],
        "second s": second["s"],
        "ratio": second["s"] / first["s"],
        "ratio of processor time": second["cpu s"] / first["cpu s"],
        "first, peak / float32 size": first["peak MB"] / first["weights MB"],
        "second, peak / float32 size": second["peak MB"] / second["weights MB"],
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
