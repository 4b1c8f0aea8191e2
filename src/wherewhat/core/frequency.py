"""How much a head uses each of its frequencies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .placement import Placement


class FrequencyUse(NamedTuple):
    """Over the keys before the query: the 2-norm of a frequency's logits and their maximum."""

    norm: Float[Tensor, "*lead F"]
    maximum: Float[Tensor, "*lead F"]


def frequency_logits(placement: Placement) -> Float[Tensor, "*lead F keys"]:
    """Each frequency's contribution to the head's logits; before soft-capping and bias they sum to the logits."""
    alone = placement.by_frequency()
    return (alone.content * alone.place).sum(-1)


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
