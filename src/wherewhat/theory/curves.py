"""P1, Theorem 7: the attention to the right key, by its position.

If the frequency is too low, a positional head loses the middle (a U); if it is not low enough, a symbolic head loses
the ends (an inverse U).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

# Attention by position of n keys, for an angle and an inverse temperature.
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
    """H_SYM with forced rotation: the match gets the logit beta cos(angle * steps from the middle), all others 0."""
    middle = torch.arange(length, dtype=torch.float64) - (length - 1) / 2
    match = (beta * torch.cos(angle * middle)).exp()
    return match / (match + length - 1)


def fall_to_the_middle(curve: Float[Tensor, " n"]) -> float:
    """The smallest decrease of one step towards the middle, from both ends, relative to the maximum: positive for a U.

    >>> fall_to_the_middle(torch.tensor([1.0, 0.5, 0.25, 0.5, 1.0]))
    0.25
    """
    half = (len(curve) - 1) // 2
    steps = curve[:-1] - curve[1:]
    return (torch.cat([steps[:half], -steps.flip(0)[:half]]).min() / curve.abs().max()).item()


def reach(curve: Curve, sign: int, length: int, beta: float) -> float:
    """The largest n * angle, to within a step, up to which the curve is always a U (sign 1) or an inverse U (-1)."""
    turns = 0.0
    while fall_to_the_middle(sign * curve(length, (turns + STEP) / length, beta)) > 0:
        turns += STEP
    return turns
