"""P1, Theorem 7: the weight that the right key gets, by where it stands.

Too low a frequency makes a positional head lose the middle (a U), one not low enough a symbolic head the ends.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

# Weight by place of n keys, for an angle and an inverse temperature.
Curve = Callable[[int, float, float], Float[Tensor, " n"]]
STEP = 0.02  # of n * angle


def positional_weight(length: int, angle: float, beta: float) -> Float[Tensor, " n"]:
    """H_POS: e^beta / sum_j e^(beta cos((t - j) angle)) for every target t.

    From t to t + 1 (counted from 1) the sum grows by e^(beta cos(t angle)) - e^(beta cos((n - t) angle)), and the
    cosines differ by 2 sin(n angle / 2) sin((n - 2t) angle / 2): a U for every beta if and only if n * angle < 2 pi.

    >>> positional_weight(32, 0.1, 5.0)[[0, 16, 31]]
    tensor([0.1596, 0.0869, 0.1596], dtype=torch.float64)
    """
    places = torch.arange(length, dtype=torch.float64)
    logits = beta * torch.cos(angle * (places[:, None] - places))
    return logits.softmax(-1).diagonal()


def symbolic_weight(length: int, angle: float, beta: float) -> Float[Tensor, " n"]:
    """H_SYM forced to turn: the match gets beta cos(angle * steps from the middle), all others 0."""
    middle = torch.arange(length, dtype=torch.float64) - (length - 1) / 2
    match = (beta * torch.cos(angle * middle)).exp()
    return match / (match + length - 1)


def fall_to_the_middle(curve: Float[Tensor, " n"]) -> float:
    """The smallest step towards the middle, from both ends, in units of the largest weight: positive for a U.

    >>> fall_to_the_middle(torch.tensor([1.0, 0.5, 0.25, 0.5, 1.0]))
    0.25
    """
    half = (len(curve) - 1) // 2
    steps = curve[:-1] - curve[1:]
    return (torch.cat([steps[:half], -steps.flip(0)[:half]]).min() / curve.abs().max()).item()


def reach(curve: Curve, sign: int, length: int, beta: float) -> float:
    """The largest n * angle, up to a step, below which the curve is a U (sign 1) or an inverse U (-1) throughout."""
    turns = 0.0
    while fall_to_the_middle(sign * curve(length, (turns + STEP) / length, beta)) > 0:
        turns += STEP
    return turns
