"""The sum over pairs of blocks, strip by strip: compiled by numba where it is installed, otherwise in plain torch.

Both ways give the same numbers to float32 precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .compiled import compiled, run_in_threads

# Exponents below this one contribute less than float32 resolves. Without it, products of tiny numbers become subnormal,
# which the processor handles a hundred times slower.
FLOOR = -30.0


class Strip(NamedTuple):
    """The blocks i from `row` on, each paired with the blocks j from `column` on; pairs with j > i count.

    `own` is the attention on each block, `rise` and `fall` are the factors of the weights. `sums` collects weighted
    positional cosines, weighted symbolic cosines, weights, and skipped pairs, for every weighting and head.
    """

    own: Float[Tensor, "X M"]
    rise: Float[Tensor, "V X M"]
    fall: Float[Tensor, "V X M"]
    row: int
    column: int
    sums: Float[Tensor, "4 V X"]


def sum_pairs(here: Float[Tensor, "X I J"], there: Float[Tensor, "X I J"], strip: Strip) -> None:
    """Add a strip of pairs, from S[i, j] and S[j, i]."""
    own, _, _, row, column, _ = strip
    mine, theirs = own[:, row : row + here.shape[1], None], own[:, None, column:]
    norm = (here.square() + there.square()).mul_(mine.square() + theirs.square())
    scale = norm.rsqrt()
    alive = scale.isfinite()
    scale.masked_fill_(~alive, 0)
    stay = (here * theirs).addcmul_(there, mine).mul_(scale)
    move = (here * mine).addcmul_(there, theirs).mul_(scale)
    _add(stay, move, alive, strip)


def sum_mass_pairs(here: Float[Tensor, "W X I J"], there: Float[Tensor, "W X I J"], strip: Strip) -> None:
    """The same from the logits whose exponentials add up to S; these must be in the range of float32."""
    if (kernels := compiled(here)) is not None:
        return run_in_threads(kernels.sum_mass_pairs, here.numel(), here, there, *strip)
    return sum_pairs(here.exp().sum(0), there.exp().sum(0), strip)


def sum_log_pairs(here: Float[Tensor, "W X I J"], there: Float[Tensor, "W X I J"], strip: Strip) -> None:
    """The same for logits of any size; `own` of the strip is the log attention.

    Only ratios within a pair enter, as unit vectors along (1, e^y).
    """
    if (kernels := compiled(here)) is not None:
        return run_in_threads(kernels.sum_log_pairs, here.numel(), here, there, *strip)
    own, _, _, row, column, _ = strip
    before = own[:, None, column:] - own[:, row : row + here.shape[2], None]
    after = here.logsumexp(0) - there.logsumexp(0)
    alive = ~(before.isnan() | after.isnan())
    before, after = before.nan_to_num_(), after.nan_to_num_()
    mine, theirs, here_unit, there_unit = _unit(before), _unit(-before), _unit(-after), _unit(after)
    stay = (here_unit * theirs).addcmul_(there_unit, mine)
    move = (here_unit * mine).addcmul_(there_unit, theirs)
    return _add(stay, move, alive, strip)


def _unit(log_ratio: Tensor) -> Tensor:
    """The first component of the unit vector along (1, e^y), in range whatever y is."""
    return (-2 * log_ratio).clamp_(min=FLOOR).sigmoid_().sqrt_()


def _add(
    stay: Float[Tensor, "X I J"], move: Float[Tensor, "X I J"], alive: Bool[Tensor, "X I J"], strip: Strip
) -> None:
    _, rise, fall, row, column, sums = strip
    rows, columns = stay.shape[1:]
    number = torch.arange(column + columns, device=stay.device)
    later = number[column:] > number[row : row + rows, None]
    counted = alive & later
    skipped = (later & ~alive).sum((-1, -2))
    for view in range(len(rise)):
        weight = rise[view, :, row : row + rows, None] * fall[view, :, None, column:]
        weight = torch.maximum(weight, fall[view, :, row : row + rows, None] * rise[view, :, None, column:])
        weight.mul_(counted)
        for at, term in enumerate((weight * stay, weight * move, weight)):
            sums[at, view] += term.sum((-1, -2))
        sums[3, view] += skipped
