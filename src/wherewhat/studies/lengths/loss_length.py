"""The length at which a head loses its token: predicted from short prompts alone, and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.stretch import stretch_logits
from ...lab import Transformer
from ...tasks import Sequences
from ...tasks.hops import HopTask
from ...tracing import capture

AT_ONCE = 16  # prompts stretched together


def predict_attention(model: Transformer, task: HopTask, sequences: Sequences, longest: int) -> Float[Tensor, "L H X"]:
    """Mean attention of the last token on the next token of its path, at every length from that of the sequences on.

    The model is never run at a longer length: targets that no path ends at are placed farther away.

    >>> predict_attention(ww.embedded("number"), Number(), Number().sample(64), longest=1000)   # doctest: +SKIP
    """
    totals = []
    for first in range(0, len(sequences), AT_ONCE):
        part = sequences[first : first + AT_ONCE]
        trace, neutral = capture(model, part.tokens), neutral_targets(task, part)
        layers = [
            stretch_logits(trace, layer, neutral, longest).attention(part.path[:, 1])
            for layer in range(len(trace.layers))
        ]
        totals.append(torch.stack(layers).sum(1))
    return torch.stack(totals).sum(0) / len(sequences)


def neutral_targets(task: HopTask, sequences: Sequences) -> Bool[Tensor, "B T"]:
    """The targets that no path ends at."""
    neutral = (torch.arange(task.tokens) < task.targets).repeat(len(sequences), 1)
    return neutral.scatter(1, sequences.path.gather(1, sequences.hops[:, None]), False)


def loss_length(lengths: Int[Tensor, " X"], attention: Float[Tensor, " X"]) -> float:
    """The smallest length at which attention falls below half of its first value, interpolated between two lengths on a
    logarithmic scale; infinite if it never does.

    >>> loss_length(torch.tensor([10, 100, 1000]), torch.tensor([0.8, 0.6, 0.2]))
    316.22...
    """
    half = attention[0] / 2
    below = torch.nonzero(attention < half).flatten().tolist()
    if not below:
        return math.inf
    at = below[0]
    share = float((attention[at - 1] - half) / (attention[at - 1] - attention[at]))
    low, high = lengths[at - 1 : at + 1].double().log().tolist()
    return math.exp(low + share * (high - low))


def loss_table(measured: pd.DataFrame, predicted: Float[Tensor, "L H X"], grid: Sequence[int]) -> pd.DataFrame:
    """One row per head: its attention on the next token of the path at the length of training, and the loss lengths."""
    at, rows = torch.tensor(sorted(grid)), []
    every = torch.arange(int(at[0]), int(at[0]) + predicted.shape[-1])
    for layer, head in np.ndindex(*predicted.shape[:2]):
        seen = measured.query("layer == @layer and head == @head").sort_values("length")["next"]
        values = torch.tensor(seen.to_numpy())
        found, expected = loss_length(at, values), loss_length(every, predicted[layer, head])
        rows.append(
            {"layer": layer, "head": head, "attention": float(values[0]), "measured": found, "predicted": expected}
        )
    return pd.DataFrame(rows)
