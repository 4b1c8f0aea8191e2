"""How unevenly a loss of performance is spread over the heads of a model: the single-head deposit."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class DepositShape(NamedTuple):
    """How the drops D that follow the ablation of single heads are spread over these heads.

    `largest` is the largest drop, `share` its share of the sum of all drops, `gap` the difference from the second
    largest, and `effective` the effective number of heads, (sum D)^2 / sum D^2. A head whose ablation helps counts as
    0. Without any drop, `share` and `effective` are NaN.
    """

    largest: Float[Tensor, "*lead"]
    share: Float[Tensor, "*lead"]
    gap: Float[Tensor, "*lead"]
    effective: Float[Tensor, "*lead"]


def deposit_of(drops: Float[Tensor, "*lead L H"]) -> DepositShape:
    """How the drops of all heads of a model are spread over them.

    >>> deposit_of(torch.tensor([[0.6, 0.0], [0.2, 0.0]]))
    DepositShape(largest=tensor(0.6000), share=tensor(0.7500), gap=tensor(0.4000), effective=tensor(1.6000))
    """
    drops = drops.flatten(-2).clamp(min=0)
    first, second = drops.topk(2).values.unbind(-1)
    total = drops.sum(-1)
    return DepositShape(first, first / total, first - second, total.square() / drops.square().sum(-1))
