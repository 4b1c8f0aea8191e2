"""The basic function of each head: where it attends along the hops, and the accuracy lost when it is ablated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...lab import Transformer
from ...lab.train import accuracy_by_hops
from ...tasks import Sequences
from ...tasks.hops import PLACES, along_path
from ...tracing import capture
from ...tracing.gate import gate

ENOUGH = 0.5  # a head attends to a place if at least this share of its attention is there


def roles(model: Transformer, sequences: Sequences, scores: Float[Tensor, "L H 2"]) -> pd.DataFrame:
    """The role of every head, its attention along the path, and the accuracy lost when it is ablated.

    One row per head: its attention on the query itself, on the next token of the path and on those after it, with the
    last token as the query (`last_*`) and with the tokens hopped to (`hop_*`); and the accuracy lost, by hops, when its
    output is replaced by zero or by its mean. A head that attends to the next token of the path is Index if it is
    positional and Retrieval if it is symbolic, by its two `scores`; one that attends to the query itself is Reflexive;
    one that attends further along the path is a Jump.

    >>> roles(ww.embedded("number"), validation, scores)               # doctest: +SKIP
    """
    return role_table(measure_roles(model, sequences), scores)


def measure_roles(model: Transformer, sequences: Sequences) -> dict[str, Tensor]:
    """Attention along the path from the last token and from those hopped to (L, H, 3), accuracy lost (L, H, hops)."""
    whole, heads = torch.tensor(accuracy_by_hops(model, sequences)), range(model.shape.heads)
    without = {
        f"lost_{kind}": [
            [accuracy_without(model, sequences, layer, head, kind) for head in heads]
            for layer in range(model.shape.layers)
        ]
        for kind in ("zero", "mean")
    }
    seen = {name: attention_on_path(model, sequences, first) for first, name in enumerate(("last", "hop"))}
    return seen | {name: whole - torch.tensor(left) for name, left in without.items()}


def role_table(measured: dict[str, Tensor], scores: Float[Tensor, "L H 2"]) -> pd.DataFrame:
    """One row per head."""
    rows = []
    for layer, head in np.ndindex(*scores.shape[:2]):
        row = {"layer": layer, "head": head, "role": role(measured["last"][layer, head], *scores[layer, head].tolist())}
        for name in ("last", "hop"):
            row |= {f"{name}_{place}": float(measured[name][layer, head, at]) for at, place in enumerate(PLACES)}
        for name in ("lost_zero", "lost_mean"):
            row |= {f"{name}_{hops}": lost for hops, lost in enumerate(measured[name][layer, head].tolist(), 1)}
        rows.append(row)
    return pd.DataFrame(rows)


def role(seen: Float[Tensor, " 3"], positional: float, symbolic: float) -> str:
    """The role of a head with this attention on the query itself, the next token and later tokens of the path.

    >>> role(torch.tensor([0.0, 0.9, 0.0]), positional=0.99, symbolic=0.02)
    'Index'
    """
    if seen.max() < ENOUGH:
        return "-"
    return ("Reflexive", "Index" if positional >= symbolic else "Retrieval", "Jump")[int(seen.argmax())]


def attention_on_path(model: Transformer, sequences: Sequences, first: int) -> Float[Tensor, "L H 3"]:
    """Mean attention on the query itself, on the next token of its path and on all later ones.

    With `first` 0 the query is the last token, with 1 every token hopped to on the way.
    """
    total, count = torch.zeros(model.shape.layers, model.shape.heads, 3), 0
    for tokens, path in queries_on_path(sequences, first):
        trace = capture(model, tokens)
        rows = torch.stack([trace.attention_rows(layer) for layer in range(model.shape.layers)], 1)  # B L H T
        total += along_path(rows, path).sum(0)
        count += len(tokens)
    return total / max(count, 1)


def queries_on_path(sequences: Sequences, first: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequences cut at a token of their path, with the rest of the path; -1 beyond its end."""
    for number in [0] if first == 0 else range(1, sequences.path.shape[1] - 1):
        for position in sequences.path[:, number].unique().tolist():
            rows = (sequences.path[:, number] == position) & (sequences.hops > number)
            if rows.any():
                yield sequences.tokens[rows, : position + 1], sequences.path[rows, number:]


def accuracy_without(model: Transformer, sequences: Sequences, layer: int, head: int, kind: str) -> list[float]:
    """Accuracy by hops with the output of a head replaced by zero, or by its mean over these sequences."""
    with gate(model, ablate=[(layer, head)], mean_of=sequences.tokens if kind == "mean" else None):
        return accuracy_by_hops(model, sequences)
