"""Profiles and series with random numbers in them, of any size, for pages that show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from wherewhat.core.kinds import kind
from wherewhat.studies.dynamics import Dynamics, purity_table
from wherewhat.studies.profile_file import Profile


def random_profile(layers: int, heads: int, frequencies: int, blocks: int = 64, prompts: int = 8) -> Profile:
    """All that a profile holds; only its shapes mean something."""
    draw = np.random.default_rng(0)
    layer, head = (part.flatten() for part in np.indices((layers, heads)))
    columns: dict[str, Any] = {"layer": layer, "head": head, "kv_head": head // 2}
    positional = draw.random(len(layer))
    for axis, values in (("positional", positional), ("symbolic", (1 - positional) * draw.random(len(layer)) ** 0.2)):
        columns |= {axis: values, f"{axis}_low": values - 0.01, f"{axis}_high": values + 0.01}
    for name in """entropy variance exclusion_bound positional_without_first symbolic_without_first mean_frequency
                   previous_token induction sink""".split():
        columns[name] = draw.random(len(layer))
    table = pd.DataFrame(columns)
    table.insert(3, "kind", [kind(*pair) for pair in zip(table["positional"], table["symbolic"], strict=True)])
    index = [part.flatten() for part in np.indices((layers, heads, frequencies))]
    turning = {"layer": index[0], "head": index[1], "frequency": index[2] + 1, "angle": 10000.0 ** (-index[2] / 32)}
    turning |= {name: draw.random(len(index[0])) for name in ("positional", "symbolic", "use_norm", "use_max")}
    torch.manual_seed(0)
    attention = torch.rand(prompts, layers, heads, blocks).mul(20).softmax(-1) / 4
    spans = [[4 * at + 4, 4 * at + 8] for at in range(blocks)]
    labels = [f"Person {at} likes red." for at in range(blocks)]
    said = ["Here", " is", " a", " list."] + [f" {word}" for label in labels for word in label.split()] + [" Who", "?"]
    prompt = {
        "ids": list(range(len(said))), "blocks": spans, "text": "".join(said), "answer": 1, "target": 1, "left_out": 0,
        "choices": 2, "labels": labels, "tokens": said, "says": "red",
    }  # fmt: skip
    middle = [{"median": 0.9, "low": 0.8, "high": 1.0}] * 2
    about = {
        "model": "models/random", "level": "keys", "tau": 1e-4,
        "settings": {"weights": "0", "prompts": "0", "level": "keys"},
        "thresholds": {"high": 0.8, "low": 0.2}, "correlation": {"r": -0.5, "r_low": -0.6, "r_high": -0.4, "p": 0.01},
        "medians": {"positional": middle, "symbolic": middle}, "accuracy": None, "answer_probability": None,
        "sinks": {"share": 0.1, "largest_in_a_block": 0.0}, "swaps": None, "sensitivity": [], "warnings": [],
        "left_out": {"statements": 0, "of_statements": 0, "swaps": 0, "of_swaps": 0},
        "self_check": {"attention": 1e-7}, "versions": {"wherewhat": "0"}, "architecture": "random",
        "table": [{"first": at, "last": at, "label": label} for at, label in enumerate(labels)],
        "prompts": [prompt] * prompts,
    }  # fmt: skip
    mass = torch.rand(layers, heads, blocks, blocks) / 4 / blocks
    tensors = {"block_attention": attention, "log_mass": mass.log().half()}
    tensors |= {axis: torch.rand(prompts, layers, heads) for axis in ("positional", "symbolic")}
    return Profile(table, pd.DataFrame(turning), about, tensors)


def random_series(steps: int = 20, layers: int = 4, heads: int = 2, hops: int = 3) -> Dynamics:
    """Heads that wander to corners of the plane."""
    draw = np.random.default_rng(0)
    time, layer, head = (part.flatten() for part in np.indices((steps, layers, heads)))
    way = (time / (steps - 1)) * (0.9 + 0.1 * draw.random(len(time)))
    early = layer < layers // 2
    table = pd.DataFrame(
        {"step": 50 * time, "query": 0, "layer": layer, "head": head}
        | {"positional": np.where(early, way, 1 - way), "symbolic": np.where(early, 1 - way, way)}
        | {"entropy": 1 - way, "mean_frequency": np.round(10 * way + 1)}
    )
    table["kind"] = [kind(*pair) for pair in zip(table["positional"], table["symbolic"], strict=True)]
    at, hop = (part.flatten() for part in np.indices((steps, hops)))
    accuracy = pd.DataFrame({"step": 50 * at, "hops": hop + 1, "accuracy": np.clip(at / steps * 2 - hop / 4, 0, 1)})
    about = {"task": "number", "seed": 0, "prompts": 10, "tau": 1e-4, "checkpoints": steps}
    return Dynamics(table, accuracy, purity_table(table), about)
