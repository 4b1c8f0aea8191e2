"""How much a head uses each of its frequencies, and the mean frequency ID, in two definitions.

`frequency_use` looks from one query, as everything else here does, and `mean_frequency` weights IDs by it, linearly.
The published table of mean frequency IDs (multi-hop paper, table 1 and figure 8) is another quantity: `pair_use`, not
scaled by 1/sqrt(d), over all pairs of a query and an earlier key; its softmax gives the weights of
`softmax_mean_frequency`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .placement import Placement
from .trace import Trace


class FrequencyUse(NamedTuple):
    """Over the keys before the query: the 2-norm of a frequency's logits and their maximum."""

    norm: Float[Tensor, "*lead F"]
    maximum: Float[Tensor, "*lead F"]


def frequency_logits(placement: Placement) -> Float[Tensor, "*lead F keys"]:
    """Each frequency's contribution to the head's logits; before soft-capping and bias they sum to the logits."""
    alone = placement.by_frequency()
    return alone.logits() if alone.bias is None else (alone.content * alone.place).sum(-1)


def frequency_use(placement: Placement) -> FrequencyUse:
    logits = frequency_logits(placement)[..., :-1]
    if placement.bias is None:
        return FrequencyUse(logits.norm(dim=-1), logits.amax(-1))
    unseen = placement.bias[..., None, :-1].isinf()
    return FrequencyUse(logits.masked_fill(unseen, 0).norm(dim=-1), logits.masked_fill(unseen, -torch.inf).amax(-1))


def mean_frequency(maximum: Float[Tensor, "*lead P"]) -> Float[Tensor, "*lead"]:
    """The mean frequency ID of P rotating planes, ID 1 first, weighted by the positive part of the maximum.

    >>> mean_frequency(torch.tensor([0.0, 1.0, 1.0, -3.0]))
    tensor(2.)
    """
    weight = maximum.clamp(min=0)
    ids = torch.arange(1, maximum.shape[-1] + 1, device=maximum.device, dtype=maximum.dtype)
    return ((weight * ids).sum(-1) / weight.sum(-1)).round()


def pair_use(trace: Trace) -> Float[Tensor, "B L H F"]:
    """The largest query-key product of every frequency over all captured queries and the keys up to each of them.

    Products are those of the rotated vectors, without the scale of the softmax; a token is also paired with itself.

    >>> pair_use(model.trace(tokens, range(tokens.shape[1]))).mean(0)               # doctest: +SKIP
    """
    used = []
    for layer in trace.attention:
        rotation, group = layer.rotation, layer.queries.shape[1] // layer.keys.shape[1]
        queries, keys = layer.queries.float(), layer.keys.float().repeat_interleave(group, 1)
        planes = [(part[..., rotation.first], part[..., rotation.second]) for part in (queries, keys)]
        (qx, qy), (kx, ky) = (tuple(axis[..., rotation.rotating] for axis in plane) for plane in planes)
        largest = torch.stack([
            (qx[:, :, row, None] * kx[:, :, : at + 1] + qy[:, :, row, None] * ky[:, :, : at + 1]).amax(2)
            for row, at in enumerate(trace.positions)
        ])  # fmt: skip
        rest = largest.new_full((*largest.shape[1:-1], 1), torch.nan)  # non-rotary dimensions are left out
        used.append(trace.spread(torch.cat([largest.amax(0), rest], -1), layer))
    return torch.stack(used, 1)


def softmax_mean_frequency(use: Float[Tensor, "*lead P"]) -> Float[Tensor, "*lead"]:
    """The mean frequency ID of P rotating planes, ID 1 first, weighted by the softmax of their use: table 1.

    >>> softmax_mean_frequency(torch.tensor([0.0, 9.0, 9.0, -3.0]))
    tensor(2.4999)
    """
    ids = torch.arange(1, use.shape[-1] + 1, device=use.device, dtype=torch.float64)
    return (use.double().softmax(-1) * ids).sum(-1).to(use.dtype)
