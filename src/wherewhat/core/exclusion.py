"""The exclusion principle: a head whose logits vary cannot be both positional and symbolic.

Averaged over all permutations of the keys, positional plus symbolic deviation is at least the variance of the head's
logits. The papers' sum over N! permutations reduces to two sums over the placement table:

    Var(diag M) <= ( sum_ab (M[a,b] - M[b,b])^2 + sum_ab (M[a,b] - M[a,a])^2 ) / N^2
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .placement import Placement

PIECE = 2**21  # elements of the largest intermediate tensor: 8 MB of float32


class Exclusion(NamedTuple):
    """variance <= positional_deviation + symbolic_deviation, always."""

    variance: Float[Tensor, "*lead"]
    positional_deviation: Float[Tensor, "*lead"]
    symbolic_deviation: Float[Tensor, "*lead"]

    @property
    def bound(self) -> Float[Tensor, "*lead"]:
        return self.positional_deviation + self.symbolic_deviation


def deviations(table: Float[Tensor, "*lead N N"]) -> tuple[Float[Tensor, "*lead N N"], Float[Tensor, "*lead N N"]]:
    """The difference of each entry from the real logit of its place, and from the real logit of its content.

    >>> by_place, by_content = deviations(torch.tensor([[1.0, 5.0], [1.0, 5.0]]))   # logits stay in place: positional
    >>> by_place.abs().sum().item(), by_content.abs().sum().item()
    (0.0, 8.0)
    """
    diagonal = table.diagonal(dim1=-2, dim2=-1)
    return table - diagonal.unsqueeze(-2), table - diagonal.unsqueeze(-1)


def exclusion(placement: Placement) -> Exclusion:
    """Both sides of the inequality for every head, over the keys before the query that it attends to."""
    flat, lead = placement.flat(), placement.lead
    step = max(1, PIECE // max(1, flat.keys * flat.content.shape[-1]))
    chosen = torch.arange(len(flat.content), device=flat.content.device)
    pieces = [_exclusion_piece(piece) for piece in map(flat.rows, chosen.split(step))]
    return Exclusion(*(torch.cat(parts).reshape(lead) for parts in zip(*pieces, strict=True)))


def _exclusion_piece(placement: Placement) -> Exclusion:
    """Computed from row sums, column sums and the sum of squares, which follow from the two halves of the table.

    In float64: the deviation of a pure head is a small difference of large sums.
    """
    keys = placement.keys
    bias = placement.content.new_zeros(1, keys) if placement.bias is None else placement.bias[:, :keys]
    seen = ~bias.isinf()  # one row for all heads, or one for each
    bias = bias.masked_fill(~seen, 0)
    count = seen.sum(-1).double()
    mask = seen.double()
    if placement.softcap is None:
        content, place = placement.content[:, :keys].double(), placement.place[:, :keys].double()
        if placement.bias is not None:  # one more coordinate: every content holds 1, place b holds bias[b]
            rows = max(len(place), len(bias))
            content = torch.cat([content, content.new_ones(len(content), keys, 1)], -1) * mask[..., None]
            place = torch.cat([half.expand(rows, -1, -1) for half in (place, bias[..., None])], -1) * mask[..., None]
        diagonal = (content * place).sum(-1)
        by_place = (place @ content.sum(-2)[..., None]).squeeze(-1)
        by_content = (content @ place.sum(-2)[..., None]).squeeze(-1)
        squares = ((content.mT @ content) * (place.mT @ place)).sum((-1, -2))
    else:
        diagonal = (placement.logits()[:, :keys].masked_fill(~seen, 0)).double()
        by_place, by_content, squares = _sums_of_table(placement, seen.expand(len(placement.content), -1))
    mean = diagonal.sum(-1) / count
    variance = ((diagonal - mean[:, None]) ** 2 * mask).sum(-1) / count
    own = count * (diagonal**2).sum(-1) + squares
    positional = (own - 2 * (diagonal * by_place).sum(-1)) / count**2
    symbolic = (own - 2 * (diagonal * by_content).sum(-1)) / count**2
    return Exclusion(*(part.clamp(min=0).float() for part in (variance, positional, symbolic)))


def _sums_of_table(placement: Placement, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Column sums, row sums and the sum of squares of a soft-capped table, one strip of contents at a time."""
    keys = torch.arange(placement.keys, device=seen.device)
    by_place, by_content, squares = (torch.zeros_like(seen, dtype=torch.float64) for _ in range(3))
    for contents in keys.split(max(1, PIECE // placement.keys)):
        strip = placement.between(contents, keys).masked_fill(~seen[:, None], 0).double()
        strip = strip * seen[:, contents, None]
        by_place += strip.sum(-2)
        by_content[:, contents] = strip.sum(-1)
        squares[:, contents] = strip.square().sum(-1)
    return by_place, by_content, squares.sum(-1)
