"""A pattern of full-attention heads, in the files that DuoAttention and kvpress read.

`full_attention_heads.tsv` has one line per layer and one number from 0 to 1 per key head; the heads with the smallest
numbers attend to the first `sink_size` and the last `recent_size` tokens only, as `config.json` states.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from ...errors import BadInput
from ...files import write_atomically
from ..head_set import HeadSet
from ..profile.result import Profile

PATTERN, CONFIG, STREAMING = "full_attention_heads.tsv", "config.json", "streaming_heads.json"


def need(heads: pd.DataFrame) -> pd.Series:
    """How much a head needs distant tokens, from 0 to 1: its symbolic score times its attention on the blocks, or its
    attention on the token to copy on repeated random tokens, whichever is larger."""
    symbolic = (heads["symbolic"] * heads["on_blocks"]).fillna(0)
    return pd.concat([symbolic, heads["induction"].fillna(0)], axis=1).max(axis=1).clip(0, 1)


def pattern(heads: pd.DataFrame, score: pd.Series) -> pd.DataFrame:
    """One row per layer, one column per key head: the largest score of the query heads that share it."""
    table = heads.assign(score=score).pivot_table(index="layer", columns="kv_head", values="score", aggfunc="max")
    if table.isna().any(axis=None) or list(table.index) != list(range(len(table))):
        raise BadInput("a pattern needs attention with equally many key heads in every layer: this model has not")
    return table


def streaming(heads: pd.DataFrame, score: pd.Series, share: float) -> tuple[tuple[int, int], ...]:
    """The query heads of this share of key heads, those with the smallest scores; ties go to the first."""
    table = pattern(heads, score).to_numpy()
    order = table.argsort(axis=None, kind="stable")[: round(share * table.size)]
    some = {divmod(int(at), table.shape[1]) for at in order}
    return tuple(
        (int(layer), int(head))
        for layer, head, key in zip(heads["layer"], heads["head"], heads["kv_head"], strict=True)
        if (layer, key) in some
    )


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
