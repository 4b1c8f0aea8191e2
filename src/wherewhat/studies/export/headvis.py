"""The folder of data that the frontend of HeadVis reads: `config.json`, `scatter_data.json` and one file per head.

The shapes are those that the repository anthropics/headvis states for its static data. Attention is sparse: flat
indices query * tokens + key with their values. A profile holds the eight strongest keys of every query of its first
prompt, and of the other prompts the row of the last query.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadInput
from ...files import write_atomically
from ..head_set import HeadSet
from ..profile.attention import SCALE
from ..profile.result import Profile

LEAST = 0.005  # attention below this is not stored
INTERVALS = 10  # of the largest attention of a sequence; 10 has the largest
TOP_TOKENS = 50
# The metrics: HeadVis' own names where a profile holds the same quantity, then the scores of this package.
METRICS = {
    "self_attention_score": ("current_token", "Attention on the token itself, on repeated random tokens"),
    "previous_token_score": ("previous_token", "Attention on the previous token, on repeated random tokens"),
    "induction_score": ("induction", "Attention on the token to copy, on repeated random tokens"),
    "pattern_entropy": (None, "Entropy of the attention of the last query, in nats, mean over prompts"),
    "qk_distance": (None, "Mean distance of the attended token from the last query, in tokens"),
    "qk_distance_variance": (None, "Variance of the distance of the attended token from the last query"),
    "positional_score": ("positional", "Positional score: attention stays in place when two blocks are swapped"),
    "symbolic_score": ("symbolic", "Symbolic score: attention follows the contents when two blocks are swapped"),
    "attention_on_blocks": ("on_blocks", "Attention of the last query on the blocks that are swapped"),
    "attention_on_answer": ("answer", "Attention of the last query on the block that holds the answer"),
}


def write_headvis(profile: Profile, folder: Path, chosen: HeadSet | None) -> None:
    """Write the data of all heads, or of the chosen ones."""
    heads: Any = profile.heads
    if heads.duplicated(["layer", "head"]).any():
        raise BadInput("HeadVis names a head by layer and number: a layer of this model runs several times")
    if "token_attention" not in profile.tensors:
        raise BadInput("the profile holds no attention: profile the model again, with --overwrite")
    row_of = {layer: at for at, layer in enumerate(dict.fromkeys(heads["layer"]))}
    wanted = None if chosen is None else set(chosen.heads)
    rows, places = [], []
    for head in heads.to_dict("records"):
        place = int(head["layer"]), int(head["head"])
        if wanted is not None and place not in wanted:
            continue
        complete = last_rows(profile, row_of[place[0]], place[1])
        sequences = sequences_of(profile, row_of[place[0]], place[1], complete)
        rows.append({"layer": place[0], "head": place[1]} | metrics_of(head, complete))
        places.append(list(place))
        _write(folder / "heads" / f"L{place[0]}H{place[1]}.json", head_data(head, sequences))
    every = list(METRICS)
    _write(folder / "scatter_data.json", rows)
    _write(folder / "config.json", {
        "model_name": profile.about["model"], "heads": places, "n_layers": int(heads["layer"].max()) + 1,
        "n_heads": int(heads["head"].max()) + 1, "n_intervals": INTERVALS, "metrics": every,
        "metric_descriptions": {name: METRICS[name][1] for name in every},
        "head_data_pattern": "L{layer}H{head}.json", "has_umap": False, "umap_heads": [],
        "custom_plots": [{"key": "qk_distance_histogram", "label": "Distance of query and key"}],
        "custom_tables": [
            {"key": "top_query_tokens", "label": "Top query tokens"},
            {"key": "top_key_tokens", "label": "Top key tokens"},
        ],
        "statistics_display": {
            name: {"label": name.replace("_", " ").capitalize(), "format": "default"} for name in statistics_of({}, [])
        },
    })  # fmt: skip
    # Without a server and without attributions: the frontend then reads files only.
    _write(folder / "server_config.json", {})
    _write(folder / "attributions" / "manifest.json", {})


def last_rows(profile: Profile, layer: int, head: int) -> list[np.ndarray]:
    """The attention of the last query on every token, for each stored prompt."""
    stored = profile.tensors["token_attention"][:, layer, head].numpy().astype(float) / SCALE
    lengths = [len(prompt["ids"]) for prompt in profile.about["prompts"]]
    return [row[:tokens] for row, tokens in zip(stored, lengths, strict=False)]


def sequences_of(profile: Profile, layer: int, head: int, complete: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """The stored prompts with their sparse attention, in intervals of their largest attention."""
    made = []
    for number, (prompt, row) in enumerate(zip(profile.about["prompts"], complete, strict=False)):
        tokens, query = len(prompt["ids"]), len(prompt["ids"]) - 1
        cells = {query * tokens + key: float(value) for key, value in enumerate(row)}
        if number == 0 and "strongest_keys" in profile.tensors:
            keys = profile.tensors["strongest_keys"][layer, head].numpy().astype(int)
            values = profile.tensors["strongest_attention"][layer, head].numpy().astype(float) / SCALE
            for at, (some, shares) in enumerate(zip(keys, values, strict=True), tokens - len(keys)):
                if at < query:
                    cells |= {at * tokens + key: share for key, share in zip(some, shares, strict=True) if key <= at}
        kept = {int(index): round(value, 4) for index, value in sorted(cells.items()) if value >= LEAST}
        # HeadVis leaves the first query and the first key out of every maximum.
        largest = max((value for index, value in kept.items() if index >= tokens and index % tokens), default=0.0)
        texts = list(prompt.get("tokens") or ()) or [str(one) for one in prompt["ids"]]
        made.append(
            {"sequence_id": number, "interval": 0, "tokens": texts, "attention_indices": list(kept)}
            | {"attention_values": list(kept.values()), "seq_len": tokens, "max_activation": largest}
        )
    order = sorted(range(len(made)), key=lambda at: made[at]["max_activation"])
    for rank, at in enumerate(order):
        made[at]["interval"] = INTERVALS - (len(made) - 1 - rank) * INTERVALS // len(made)
    return made


def metrics_of(head: dict[str, Any], complete: Sequence[np.ndarray]) -> dict[str, float | None]:
    """The coordinates of a head; None where a profile has no value."""
    found = {name: head.get(column) for name, (column, _) in METRICS.items() if column}
    moments, entropies = [], []
    for row in complete:
        share = row / row.sum()
        distance = len(row) - 1 - np.arange(len(row))
        moments.append((share @ distance, share @ distance**2))
        entropies.append(-float(share[share > 0] @ np.log(share[share > 0])))
    first, second = np.mean(moments, axis=0)
    found |= {"pattern_entropy": float(np.mean(entropies))}
    found |= {"qk_distance": first, "qk_distance_variance": second - first**2}
    return {name: _rounded(found[name]) for name in METRICS}


def head_data(head: dict[str, Any], sequences: list[dict[str, Any]]) -> dict[str, Any]:
    """The file of a head: its sequences, and what the panel of metrics shows."""
    edges = [0, *(2**at for at in range(max(one["seq_len"] for one in sequences).bit_length() + 1))]
    distances, weights = [], {"query": {}, "key": {}}
    for one in sequences:
        for index, value in zip(one["attention_indices"], one["attention_values"], strict=True):
            query, key = divmod(index, one["seq_len"])
            distances.append(query - key)
            for side, at in (("query", query), ("key", key)):
                text = one["tokens"][at]
                weights[side][text] = weights[side].get(text, 0.0) + value
    largest = [one["max_activation"] for one in sequences]
    bins = np.linspace(0, 1, 11)
    return {
        "sequences": sequences,
        "qk_distance_histogram": {"bin_edges": edges, "bin_values": np.histogram(distances, edges)[0].tolist()},
        "top_query_tokens": _top(weights["query"]),
        "top_key_tokens": _top(weights["key"]),
        "histogram": {
            "bin_edges": [round(float(one), 1) for one in bins],
            "bin_values": np.histogram(largest, bins)[0].tolist(),
        },
        "statistics": statistics_of(head, largest),
    }


def statistics_of(head: dict[str, Any], largest: Sequence[float]) -> dict[str, Any]:
    """What the panel of metrics lists for a head."""
    scores = {name: _rounded(head.get(name)) for name in ("positional", "symbolic", "mean_frequency")}
    mean = float(np.mean(largest)) if largest else None
    return {"n_samples": len(largest), "mean_max_activation": _rounded(mean), "kind": head.get("kind")} | scores


def _top(weights: dict[str, float]) -> list[dict[str, Any]]:
    total = sum(weights.values())
    order = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:TOP_TOKENS]
    return [{"token": token, "weight": round(weight / total, 4)} for token, weight in order]


def _rounded(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else round(float(value), 4)


def _write(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, allow_nan=False))
