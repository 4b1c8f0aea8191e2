"""Discrepancy: by how much the largest logit beats its best rival, and how fast that must shrink with length.

Two mechanisms of one plane and one angle, seen from the last of n tokens. Index gives the token at distance r the logit
cos((r - s) angle), s the distance asked for. Retrieval gives it cos(d omega + r angle), d the number of letters between
the one it starts with and the one asked for, omega = 2 pi / letters.

The bounds hold for the worst input of each length, which is what limits a mechanism. Printed (Theorem 3.2) they claim
to hold for every input, and Retrieval's to begin one step further; both are false:

>>> best = discrepancy(torch.cos(0.8 * (torch.arange(9) - 4)))          # nine tokens, the middle one asked for
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
    """The largest logit minus the best competing one; infinite where nothing competes.

    A key competes if its label is not that of the winner: the letter it starts with, for Retrieval. Without labels
    every other position competes, as for Index.

    >>> discrepancy(torch.tensor([1.0, 5.0, 4.5]), labels=torch.tensor([0, 1, 1]))
    tensor(4.)
    """
    labels = torch.arange(logits.shape[-1], device=logits.device) if labels is None else labels
    labels = labels.expand(logits.shape)
    top, winner = logits.max(-1, keepdim=True)
    rivals = logits.masked_fill(labels == labels.gather(-1, winner), -torch.inf)
    return top.squeeze(-1) - rivals.amax(-1)


def temperature(gap: float, keys: int, weight: float = 0.75) -> float:
    """Lemma F.1: the inverse temperature at which a logit that beats all others by this gap draws this weight.

    Met exactly if all others are rivals of the same size.

    >>> logits = temperature(0.5, keys=4) * torch.tensor([1.0, 0.5, 0.5, 0.5])
    >>> logits.softmax(-1)[0]
    tensor(0.7500)
    """
    if gap <= 0:
        raise BadInput(f"no temperature makes a logit win that is not ahead (gap {gap:.3g})")
    return math.log((keys - 1) * weight / (1 - weight)) / gap


def index_worst(lengths: Int[Tensor, " n"], angle: float) -> Float[Tensor, " n"]:
    """The smallest discrepancy of Index among inputs of each length: an end is asked for, any other token competes."""
    steps = torch.arange(1, int(lengths.max()), dtype=torch.float64)
    return 1 - torch.cummax(torch.cos(angle * steps), 0).values[lengths - 2]


def index_bound(lengths: Int[Tensor, "*n"], angle: float) -> Float[Tensor, "*n"]:
    """What the worst input of each length cannot exceed: two of n turns of a circle lie within 2 pi / n (Theorem 3.2).

    >>> index_bound(torch.tensor([8, 9]), 0.8)
    tensor([0.3033, 0.2437], dtype=torch.float64)
    """
    return (2 * torch.pi**2 / lengths.double() ** 2).clamp(max=1 - math.cos(angle))


def retrieval_worst(lengths: Int[Tensor, "*n"], angle: float, letters: int) -> Float[Tensor, "*n"]:
    """The smallest discrepancy of Retrieval among inputs of each length, as long as 2 n angle < omega.

    The next letter stands farthest, where the turn favours it most, and what is asked for one step nearer.
    """
    far = lengths.double() - 1
    return torch.cos((far - 1) * angle) - torch.cos(2 * torch.pi / letters - far * angle)


def retrieval_bound(
    lengths: Int[Tensor, "*n"], angle: float, letters: int, printed: bool = False
) -> Float[Tensor, "*n"]:
    """What the worst input of each length cannot exceed: the next letter at the far end, n - 1 steps away.

    `printed` counts n steps (Theorem 3.2, figure 5A), one too many.

    >>> retrieval_bound(torch.tensor([1, 100]), 0.0027, letters=8)
    tensor([0.2929, 0.1312], dtype=torch.float64)
    """
    steps = lengths.double() - (0 if printed else 1)
    return 1 - torch.cos(2 * torch.pi / letters - steps * angle)
