"""A pattern of full-attention heads, in the files that DuoAttention and kvpress read.

`full_attention_heads.tsv` has one line per layer and one number from 0 to 1 per key head; the heads with the smallest
numbers attend to the first `sink_size` and the last `recent_size` tokens only, as `config.json` states.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from ...files import write_atomically
from ..ablation.patterns import CONFIG, PATTERN, need, pattern, streaming
from ..head_set import HeadSet
from ..profile.result import Profile

STREAMING = "streaming_heads.json"


def write_pattern(profile: Profile, folder: Path, kept: HeadSet | None, share: float, sink: int, recent: int) -> None:
    """Write the pattern, its configuration, and the heads that stream at this share as a set of heads.

    With `kept`, exactly these heads have full attention, and the heads that share their keys.
    """
    heads = profile.heads
    score = need(heads)
    if kept is not None:
        places = set(kept.heads)
        score = pd.Series([float(one in places) for one in zip(heads["layer"], heads["head"], strict=True)])
        share = float((pattern(heads, score) == 0).to_numpy().mean())
    lines = ["\t".join(f"{value:.6f}" for value in row) for row in pattern(heads, score).to_numpy()]
    weights = profile.about["settings"]["weights"]
    how = "heads outside a given set" if kept else "smallest of max(symbolic x on_blocks, induction) by key head"
    stated = {"sink_size": sink, "recent_size": recent, "model_name": profile.about["model"], "weights": weights}
    write_atomically(folder / PATTERN, "\n".join(lines) + "\n")
    write_atomically(folder / CONFIG, json.dumps(stated, indent=1) + "\n")
    if stream := streaming(heads, score, share):
        HeadSet(f"{share:.0%} streaming", stream, profile.about["model"], weights, how).save(folder / STREAMING)
