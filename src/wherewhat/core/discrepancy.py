"""Discrepancy: the largest logit minus its best competitor, and how fast it must shrink with length.

Two mechanisms with one plane and one angle, for the query of the last of n tokens. Index gives the token at distance r
the logit cos((r - s) angle), where s is the requested distance. Retrieval gives it cos(d omega + r angle), where d is
the number of letters between its first letter and the requested one, and omega = 2 pi / letters.

The bounds hold for the worst input of each length, which is what limits a mechanism. As printed (Theorem 3.2) they are
claimed for every input, and that of Retrieval counts one step more; both are false:

>>> best = discrepancy(torch.cos(0.8 * (torch.arange(9) - 4)))          # nine tokens, the middle one is requested
>>> best.item(), index_bound(torch.tensor(9), 0.8).item()
(0.30329..., 0.24369...)
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import BadInput


def discrepancy(
    logits: Float[Tensor, "*lead N"], labels: Shaped[Tensor, "*#lead N"] | None = None
) -> Float[Tensor, "*lead"]:
    """The largest logit minus the best competing one; infinite if none competes.

    A key competes if its label differs from that of the winner; for Retrieval, the label is the first letter. Without
    labels every other position competes, as for Index.

    >>> discrepancy(torch.tensor([1.0, 5.0, 4.5]), labels=torch.tensor([0, 1, 1]))
    tensor(4.)
    """
    labels = torch.arange(logits.shape[-1], device=logits.device) if labels is None else labels
    labels = labels.expand(logits.shape)
    top, winner = logits.max(-1, keepdim=True)
    competing = logits.masked_fill(labels == labels.gather(-1, winner), -torch.inf)
    return top.squeeze(-1) - competing.amax(-1)


def temperature(gap: float, keys: int, weight: float = 0.75) -> float:
    """Lemma F.1: the inverse temperature at which a logit that exceeds all others by this gap gets this weight.

    Exact if all other logits are equal.

    >>> logits = temperature(0.5, keys=4) * torch.tensor([1.0, 0.5, 0.5, 0.5])
    >>> logits.softmax(-1)[0]
    tensor(0.7500)
    """
    if gap <= 0:
        raise BadInput(f"no temperature makes a logit win that is not the largest (gap {gap:.3g})")
    return math.log((keys - 1) * weight / (1 - weight)) / gap


def index_worst(lengths: Int[Tensor, " n"], angle: float) -> Float[Tensor, " n"]:
    """The smallest discrepancy of Index over inputs of each length: one end is requested, all other tokens compete."""
    steps = torch.arange(1, int(lengths.max()), dtype=torch.float64, device=lengths.device)
    return 1 - torch.cummax(torch.cos(angle * steps), 0).values[lengths - 2]


def index_bound(lengths: Int[Tensor, "*n"], angle: float) -> Float[Tensor, "*n"]:
    """Upper bound for the worst input of each length: of n points on a circle, two lie within 2 pi / n (Theorem 3.2).

    >>> index_bound(torch.tensor([8, 9]), 0.8)
    tensor([0.3033, 0.2437], dtype=torch.float64)
    """
    return (2 * torch.pi**2 / lengths.double() ** 2).clamp(max=1 - math.cos(angle))


def retrieval_worst(lengths: Int[Tensor, "*n"], angle: float, letters: int) -> Float[Tensor, "*n"]:
    """The smallest discrepancy of Retrieval over inputs of each length, while 2 n angle < omega.

    The neighbouring letter stands farthest, where rotation favours it most, and the requested letter one step nearer.
    """
    far = lengths.double() - 1
    return torch.cos((far - 1) * angle) - torch.cos(2 * torch.pi / letters - far * angle)


def retrieval_bound(
    lengths: Int[Tensor, "*n"], angle: float, letters: int, printed: bool = False
) -> Float[Tensor, "*n"]:
    """Upper bound for the worst input of each length: the neighbouring letter at the far end, n - 1 steps away.

    `printed` counts n steps (Theorem 3.2, figure 5A), one too many.

    >>> retrieval_bound(torch.tensor([1, 100]), 0.0027, letters=8)
    tensor([0.2929, 0.1312], dtype=torch.float64)
    """
    steps = lengths.double() - (0 if printed else 1)
    return 1 - torch.cos(2 * torch.pi / letters - steps * angle)
