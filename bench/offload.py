"""Peak memory of a model of 0.4 GB with its weights in memory and on disk, one process each.

`python -m bench.offload FOLDER WAY DTYPE` prints megabytes: of the process before the model is loaded, and the peaks of
loading it, hashing its weights, the self-check, a forward pass and a capture.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import wherewhat as ww
from wherewhat.tracing.fingerprint import weights_hash

from .memory import peak_megabytes

TOKENS = 512
CONFIG: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 2048,
}
WAYS = {"in memory": None, "on disk": "auto:cpu=60MB"}


def save(folder: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**CONFIG, initializer_range=0.05)).save_pretrained(folder, max_shard_size="200MB")


@torch.no_grad()
def measure(folder: str, way: str, dtype: str) -> dict[str, float | str]:
    peaks: dict[str, float | str] = {"before": from_here()}
    model = ww.load(folder, dtype=dtype, device_map=WAYS[way])
    peaks["load"] = from_here()
    peaks["hash"] = weights_hash(model)
    ids = torch.randint(10, 2000, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    peaks["hashing"] = from_here()
    ww.capture(model, ids[:, :64])
    peaks["self-check"] = from_here()
    model(input_ids=ids, logits_to_keep=1)
    peaks["forward"] = from_here()
    trace = ww.capture(model, ids)
    peaks["capture"] = peak_megabytes()
    peaks["scores"] = float(ww.score(trace, [(at, at + 8) for at in range(1, 257, 8)]).positional.double().sum())
    return peaks


def from_here() -> float:
    """The peak so far; resets it, so that the next call returns the peak since this one."""
    peak = peak_megabytes()
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def compare() -> list[dict[str, Any]]:
    rows = []
    with TemporaryDirectory() as folder:
        save(Path(folder))
        for dtype in ("float32", "bfloat16"):
            for way in WAYS:
                words = [sys.executable, "-m", "bench.offload", folder, way, dtype]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                rows.append({"dtype": dtype, "weights": way} | json.loads(done.stdout.splitlines()[-1]))
    return rows


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:4])))
