"""At what length a head loses its token: predicted from short prompts alone, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..capture import capture
from ..core.stretch import stretch
from ..lab import Transformer
from ..tasks import Sequences
from ..tasks.hops import HopTask

AT_ONCE = 16  # prompts stretched together


def predict_attention(model: Transformer, task: HopTask, sequences: Sequences, longest: int) -> Float[Tensor, "L H X"]:
    """Mean attention of the last token on the next token of its path, at every length from the sequences' own on.

    Nothing is run at any longer length: the targets of the prompt that do not matter to it are placed farther away.

    >>> predict_attention(ww.embedded("number"), Number(), Number().sample(64), longest=1000)   # doctest: +SKIP
    """
    totals = []
    for first in range(0, len(sequences), AT_ONCE):
        part = sequences[first : first + AT_ONCE]
        trace, neutral = capture(model, part.tokens), neutral_targets(task, part)
        layers = [
            stretch(trace, layer, neutral, longest).attention(part.path[:, 1]) for layer in range(len(trace.layers))
        ]
        totals.append(torch.stack(layers).sum(1))
    return torch.stack(totals).sum(0) / len(sequences)


def neutral_targets(task: HopTask, sequences: Sequences) -> Bool[Tensor, "B T"]:
    """The targets that no path ends at."""
    neutral = (torch.arange(task.tokens) < task.targets).repeat(len(sequences), 1)
    return neutral.scatter(1, sequences.path.gather(1, sequences.hops[:, None]), False)


def loss_length(lengths: Int[Tensor, " X"], attention: Float[Tensor, " X"]) -> float:
    """The smallest length at which attention is below half of what it is at the first; between two lengths along the
    logarithm of length; infinite if it never is.

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
    """A row a head: its attention on the next token of the path at the length of training, and the loss lengths."""
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
