"""Figures 3A and 3B: which token's content reaches each position, layer by layer.

Every position is taken to copy the token that it attends to most, as in the paper's constructions. Followed down
through the layers, this names the token whose content each position holds; the residual stream, which keeps the
position's own content too, is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...lab import Transformer
from ...tasks import TASKS, Sequences

BATCH = 64  # sequences traced at a time


class Flow(NamedTuple):
    """`shares`: per layer and number of hops, how often the last position holds each token of its path (`place` 0:
    itself, 1: the first hop, ...; -1: a token that is not on it), and how often its layer attends to it.
    `example`: one sequence of most hops that is answered correctly, with the token each position attends to and
    holds."""

    shares: pd.DataFrame
    example: pd.DataFrame


def flow(model: Transformer, task: str, sequences: Sequences) -> Flow:
    """Follow the largest attention through all layers.

    >>> flow(ww.embedded("number"), "number", Number().sample(64)).shares           # doctest: +SKIP
    """
    parts = [follow(model, tokens) for tokens in sequences.tokens.split(BATCH)]
    looks, weights, origins, answers = (torch.cat(part) for part in zip(*parts, strict=True))
    rows = []
    for hops in sequences.hops.unique().tolist():
        those = sequences.hops == hops
        path = sequences.path[those]
        for layer in range(looks.shape[1]):
            held = share_of_places(origins[those, layer, -1], path, hops)
            attended = share_of_places(looks[those, layer, -1], path, hops)
            rows += [
                {"layer": layer, "hops": hops, "place": place, "holds": held[place], "attends": attended[place]}
                for place in held
            ]
    right = (answers == sequences.answers) & (sequences.hops == sequences.hops.max())
    one = int(right.float().argmax())
    words = [TASKS[task]().symbols[number] for number in sequences.tokens[one].tolist()]
    path = set(sequences.path[one].tolist())
    layer, position = np.indices(looks.shape[1:]).reshape(2, -1)
    example = pd.DataFrame({"layer": layer, "position": position})
    example["token"] = [words[at] for at in position]
    example["on_path"] = [at in path for at in position.tolist()]
    example["attends"], example["weight"] = looks[one].flatten().numpy(), weights[one].flatten().numpy()
    example["holds"] = origins[one].flatten().numpy()
    example["content"] = [words[at] for at in example["holds"]]
    return Flow(pd.DataFrame(rows), example)


def follow(
    model: Transformer, tokens: Int[Tensor, "B T"]
) -> tuple[Int[Tensor, "B L T"], Float[Tensor, "B L T"], Int[Tensor, "B L T"], Int[Tensor, " B"]]:
    """The most attended token of every position in every layer and its weight (mean over heads), the token whose
    content reaches it, and the answers."""
    trace = model.trace(tokens, range(tokens.shape[1]))
    future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    looks, weights, origins = [], [], []
    origin = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
    for layer in trace.attention:
        logits = layer.queries @ layer.keys.mT * layer.scaling
        weight, look = logits.masked_fill(future, -torch.inf).softmax(-1).mean(1).max(-1)
        origin = origin.gather(1, look)
        looks.append(look)
        weights.append(weight)
        origins.append(origin)
    assert trace.output is not None
    return torch.stack(looks, 1), torch.stack(weights, 1), torch.stack(origins, 1), trace.output.argmax(-1)


def share_of_places(found: Int[Tensor, " B"], path: Int[Tensor, "B P"], hops: int) -> dict[int, float]:
    """How often a position found is each token of the path, from 0, the query itself; -1: none of them.

    >>> share_of_places(torch.tensor([4, 2, 0, 1]), torch.tensor([[4, 2, -1]]).expand(4, -1), hops=1)
    {0: 0.25, 1: 0.25, -1: 0.5}
    """
    shares = {place: float((found == path[:, place]).float().mean()) for place in range(hops + 1)}
    return shares | {-1: round(1 - sum(shares.values()), 6)}
