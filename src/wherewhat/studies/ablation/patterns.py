"""Which key heads stream, and which keep full attention: scores of key heads, and patterns as DuoAttention and kvpress
read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import BadInput
from ...files import parse_json
from ...prompts import Prompt
from ...tracing import capture
from ..profile.attention import stacked_layers

PATTERN, CONFIG = "full_attention_heads.tsv", "config.json"
QUERIES = 64  # positions of a prompt at which attention is read


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


def read_pattern(folder: str | Path) -> tuple[np.ndarray, dict[str, Any]]:
    """The scores of all key heads (one row per layer) and the configuration in the folder of a pattern."""
    try:
        scores = np.loadtxt(Path(folder) / PATTERN, dtype=float, delimiter="\t", ndmin=2)
        config = parse_json((Path(folder) / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not np.isfinite(scores).all():
            raise ValueError
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder}: not a pattern, which holds {PATTERN} and {CONFIG}") from error
    return scores, config


def distant_mass(model: Any, texts: Int[Tensor, "B T"], sink: int, recent: int) -> Float[Tensor, "L H"]:
    """The mean attention of every head on tokens that a streaming head does not see."""
    tokens = texts.shape[1]
    first = sink + recent
    if tokens <= first + 1:
        raise BadInput(
            f"the text needs stretches of more than {first + 1} tokens, got {tokens}: give a larger --stretch"
        )
    step = -(-(tokens - first) // QUERIES)
    queries = list(range(first, tokens, step))
    return torch.stack([_distant(model, row[None], queries, sink, recent) for row in texts]).mean(0)


def _distant(model: Any, ids: Tensor, queries: list[int], sink: int, recent: int) -> Float[Tensor, "L H"]:
    def hidden(rows: Tensor, at: int) -> Tensor:
        return rows[..., sink : queries[at] - recent + 1].sum(-1)

    return _mean_over(model, ids, queries, hidden)


def echo_and_induction(model: Any, prompts: Sequence[Prompt]) -> Float[Tensor, "L H"]:
    """The mean attention of every head, on repeated random tokens, on the same token and on the token after it in the
    first copy: the two scores of RazorAttention (Tang et al., 2024, arXiv 2407.15891), added."""
    found = []
    for prompt in prompts:
        period, start = len(prompt.blocks), prompt.blocks[0][0]
        second = range(start + period, len(prompt.ids))
        queries = list(second[:: -(-len(second) // QUERIES)])

        def on_copy(rows: Tensor, at: int, queries: list[int] = queries, period: int = period) -> Tensor:
            before = queries[at] - period
            return rows[..., before : before + 2].sum(-1)

        found.append(_mean_over(model, torch.tensor([prompt.ids]), queries, on_copy))
    return torch.stack(found).mean(0)


def _mean_over(model: Any, ids: Tensor, queries: list[int], share: Any) -> Float[Tensor, "L H"]:
    """The mean over these queries of a share of the attention rows of every head."""
    trace = capture(model, ids, queries, level="prompt")

    def of_layer(number: int) -> Tensor:
        rows = trace.attention[number].attention(slice(None), queries)  # 1 H Q T
        return torch.stack([share(rows[:, :, at], at) for at in range(len(queries))]).mean(0)

    return stacked_layers(trace, of_layer)
