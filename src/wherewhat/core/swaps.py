"""How a head's attention responds when the contents of two blocks are swapped: positional or symbolic.

A pair of blocks receives attention v = (d_i, d_j) before the swap and v' = (d'_i, d'_j) after it. Attention that stays
in place is positional, cos(v', v) = 1; attention that follows the contents is symbolic, cos(v', (d_j, d_i)) = 1.

With the placement table summed over blocks, S[i, j] = contents of block i at the places of block j, a swap turns
(S[i, i], S[j, j]) into (S[j, i], S[i, j]) up to a common normaliser, which does not affect the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .harmonics import NODES, WEAK, has_harmonics, interpolated_mass
from .placement import Placement

# Elements of the largest intermediate tensor of one piece: 8 MB of float32.
PIECE = 2**21
# A head whose logits stay within this bound is scored without logarithms: no number leaves float32's range.
GENTLE = 12.0
# Exponents below this one contribute less than float32 resolves. Without it, products of tiny numbers become subnormal,
# which the processor handles a hundred times slower.
FLOOR = -30.0


class PairScores(NamedTuple):
    positional: Float[Tensor, "*lead"]
    symbolic: Float[Tensor, "*lead"]
    skipped: Int[Tensor, "*lead"]


def score_blocks(placement: Placement, blocks: Int[Tensor, "M W"], tau: float) -> PairScores:
    """Positional and symbolic score of every head over all swaps of two blocks, computed exactly.

    `blocks` holds the token indices of each block, which are consecutive. A swap has the weight
    softmax(|d_i - d_j| / tau); tau = inf is the plain mean. A pair without mass before or after its swap is skipped and
    counted.
    """
    flat = placement.flat()
    width = blocks.shape[1]
    tile = min(len(blocks), max(1, math.isqrt(PIECE // width)))
    sums = flat.content.new_zeros(4, len(flat.content), dtype=torch.float64)
    ceiling = placement.ceiling().expand(placement.lead).flatten()
    weak = (ceiling < WEAK) & has_harmonics(flat, width)
    gentle = (ceiling < GENTLE) & ~weak
    regimes = (
        (weak, partial(_sum_gentle_tile, interpolated_mass), False, max(tile * width * NODES, 4 * tile**2)),
        (gentle, partial(_sum_gentle_tile, Placement.block_mass), False, tile**2 * width),
        (~weak & ~gentle, _sum_steep_tile, True, tile**2 * width),
    )
    for heads, sum_tile, logarithmic, elements in regimes:
        step = max(1, PIECE // elements)
        workspace = flat.content.new_empty(min(step, len(flat.content)) * elements)
        for chosen in filter(len, heads.nonzero().flatten().split(step)):
            some = flat.rows(chosen)
            d = block_attention(some, blocks)
            own = block_log_attention(some, blocks) if logarithmic else _relative(some, blocks, d)
            sums[:, chosen] = _sum_pairs(some, blocks, tau, tile, d, own, partial(sum_tile, workspace))
    positional, symbolic, weight, skipped = sums.reshape(4, *placement.lead)
    positional, symbolic = (positional / weight).clamp(0, 1), (symbolic / weight).clamp(0, 1)
    return PairScores(positional.float(), symbolic.float(), skipped.long())


def block_attention(placement: Placement, blocks: Int[Tensor, "M W"]) -> Float[Tensor, "*lead M"]:
    """d: each block's mean attention."""
    return placement.attention().index_select(-1, blocks.flatten()).unflatten(-1, blocks.shape).mean(-1)


def block_log_attention(placement: Placement, blocks: Int[Tensor, "M W"]) -> Float[Tensor, "*lead M"]:
    """log d up to a constant, also where d itself is too small for a float32."""
    logits = placement.logits().index_select(-1, blocks.flatten()).unflatten(-1, blocks.shape)
    return logits.squeeze(-1) if blocks.shape[1] == 1 else logits.logsumexp(-1)


def _relative(
    placement: Placement, blocks: Int[Tensor, "M W"], d: Float[Tensor, "*lead M"]
) -> Float[Tensor, "*lead M"]:
    """d relative to the head's largest, so that squares stay in range even if a sink takes nearly all attention."""
    if placement.sink is not None:
        log_d = block_log_attention(placement, blocks)
        return (log_d - log_d.amax(-1, keepdim=True).clamp(min=torch.finfo(d.dtype).min)).exp()
    return d / d.amax(-1, keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)


def entropy(placement: Placement) -> Float[Tensor, "*lead"]:
    """Entropy of the attention on the keys before the query, divided by log N: 1 is uniform, 0 a single key."""
    log_attention = placement.logits()[..., :-1].log_softmax(-1)
    surprise = log_attention.exp() * log_attention.nan_to_num(neginf=0)
    return -surprise.sum(-1) / math.log(max(placement.keys, 2))


class Tile(NamedTuple):
    """Pairs of blocks: token indices of both, attention on both or its logarithm, and the weight of each pair."""

    rows: Int[Tensor, "I W"]
    columns: Int[Tensor, "J W"]  # the same object as `rows` on the diagonal
    mine: Float[Tensor, "X I"]
    theirs: Float[Tensor, "X J"]
    weight: Float[Tensor, "X I J"]


def _sum_pairs(
    placement: Placement,
    blocks: Int[Tensor, "M W"],
    tau: float,
    tile: int,
    d: Float[Tensor, "X M"],
    own: Float[Tensor, "X M"],
    sum_tile: Callable[..., None],
) -> Float[Tensor, "4 X"]:
    """Sums over all unordered pairs: weighted positional and symbolic cosines, weights, and skipped pairs.

    `d` is each block's mean attention, `own` the same in the form that `sum_tile` reads.
    """
    tau = max(tau, torch.finfo(torch.float32).tiny)
    # The widest gap is between the largest and the smallest block, and e^(|s_i - s_j| - widest) is the larger of two
    # products of a factor of i and a factor of j: the softmax over pairs needs no exponential per pair.
    rise = ((d - d.amax(-1, keepdim=True)) / tau).clamp_(min=FLOOR).exp_()
    fall = ((d.amin(-1, keepdim=True) - d) / tau).clamp_(min=FLOOR).exp_()
    sums = d.new_zeros(4, len(d), dtype=torch.float64)
    tiles = [slice(at, at + tile) for at in range(0, len(blocks), tile)]
    for number, rows in enumerate(tiles):
        for columns in tiles[number:]:
            weight = rise[:, rows, None] * fall[:, None, columns]
            weight = torch.maximum(weight, fall[:, rows, None] * rise[:, None, columns])
            if rows == columns:  # each pair twice, and no block with itself
                weight.mul_(0.5).diagonal(dim1=-2, dim2=-1).zero_()
            mine = blocks[rows]
            theirs = mine if rows == columns else blocks[columns]
            sum_tile(sums, placement, Tile(mine, theirs, own[:, rows], own[:, columns], weight))
    return sums


def _sum_gentle_tile(
    mass: Callable[..., Tensor],
    workspace: Tensor,
    sums: Tensor,
    placement: Placement,
    tile: Tile,
) -> None:
    """Both cosines share the factor weight / (|v| |v'|), so one table of that factor times S gives all sums."""
    rows, columns, mine, theirs, weight = tile
    same = rows is columns
    here = mass(placement, rows, columns, workspace)
    there = here if same else mass(placement, columns, rows, workspace)
    norm = here.square()
    norm = norm + (norm if same else there.square()).mT
    norm.mul_(mine.square()[:, :, None] + theirs.square()[:, None, :]).rsqrt_()
    if placement.windowed:
        dead = norm.isinf()
        _skip(sums, dead, weight, same)
        norm = norm.masked_fill_(dead, 0)
    sums[2] += weight.sum((-1, -2))
    factor = norm.mul_(weight)
    stay = factor * here
    sums[0] += (stay.sum(-2) * theirs).sum(-1) * (2 if same else 1)
    sums[1] += (stay.sum(-1) * mine).sum(-1) * (2 if same else 1)
    if not same:
        come = factor * there.mT
        sums[0] += (come.sum(-1) * mine).sum(-1)
        sums[1] += (come.sum(-2) * theirs).sum(-1)


def _sum_steep_tile(
    workspace: Tensor,
    sums: Tensor,
    placement: Placement,
    tile: Tile,
) -> None:
    """For logits of any size: only log-ratios y within a pair, as unit vectors along (1, e^y)."""
    rows, columns, log_mine, log_theirs, weight = tile
    same = rows is columns
    here = placement.block_log_mass(rows, columns, workspace)
    there = here if same else placement.block_log_mass(columns, rows, workspace)
    before = log_theirs[:, None, :] - log_mine[:, :, None]
    after = here - there.mT
    if placement.windowed:
        dead = before.isnan() | after.isnan()
        _skip(sums, dead, weight, same)
        before, after = before.nan_to_num_(), after.nan_to_num_()
    sums[2] += weight.sum((-1, -2))
    mine, theirs, stay, come = _unit(before), _unit(-before), _unit(after), _unit(-after)
    sums[0] += ((stay * mine + come * theirs) * weight).sum((-1, -2))
    sums[1] += ((stay * theirs + come * mine) * weight).sum((-1, -2))


def _unit(log_ratio: Tensor) -> Tensor:
    """The first component of the unit vector along (1, e^y), in range whatever y is."""
    return (-2 * log_ratio).clamp_(min=FLOOR).sigmoid_().sqrt_()


def _skip(sums: Tensor, dead: Tensor, weight: Tensor, same: bool) -> None:
    """Set the weight of pairs without mass before or after their swap to zero, and count them."""
    weight.masked_fill_(dead, 0)
    if same:  # no block is paired with itself, and each pair occurs twice
        dead = dead & ~torch.eye(dead.shape[-1], dtype=torch.bool, device=dead.device)
    sums[3] += dead.sum((-1, -2)) / (2 if same else 1)
