"""Where or what: how a head's attention answers when the contents of two blocks change places.

A pair of blocks holds attention (d_i, d_j) before the swap and (d'_i, d'_j) after it. Attention that stays put is
positional, cos(v', v) = 1; attention that follows the contents is symbolic, cos(v', (d_j, d_i)) = 1.

Only the ratio within a pair matters for a cosine, so each pair is kept as one log-ratio y = log d'_i - log d'_j:
the unit vector along v' is (sqrt(sigmoid(2y)), sqrt(sigmoid(-2y))), in range whatever the logits are. y is
antisymmetric in (i, j), so one pass over ordered pairs needs the first component alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .placement import Placement

# Elements of the largest intermediate of one piece of work: 8 MB of float32.
PIECE = 2**21
# Exponents below this one add less than float32 can hold. Without it, products of tiny numbers fall among the
# subnormal ones, which the processor handles a hundred times slower.
FLOOR = -40.0


class PairScores(NamedTuple):
    positional: Float[Tensor, "*lead"]
    symbolic: Float[Tensor, "*lead"]
    left_out: Int[Tensor, "*lead"]


def score_blocks(placement: Placement, blocks: Int[Tensor, "M W"], tau: float) -> PairScores:
    """The positional and the symbolic score of every head, over all swaps of two blocks, exactly.

    `blocks` holds the token indices of each block. A swap weighs softmax(|d_i - d_j| / tau); tau = inf is the plain
    mean. A pair with no mass before or after its swap is left out and counted.
    """
    lead, flat = placement.lead, placement.flat()
    tile = min(len(blocks), max(1, math.isqrt(PIECE // blocks.shape[1])))
    step = max(1, PIECE // (tile**2 * blocks.shape[1]))
    workspace = placement.content.new_empty(min(step, lead.numel()) * tile**2 * blocks.shape[1])
    pieces = [_score_piece(piece, blocks, tau, tile, workspace) for piece in flat.pieces(step)]
    return PairScores(*(torch.cat(parts).reshape(lead) for parts in zip(*pieces, strict=True)))


def block_log_attention(placement: Placement, blocks: Int[Tensor, "M W"]) -> Float[Tensor, "*lead M"]:
    """log d: the logarithm of each block's mean attention."""
    return placement.log_attention()[..., blocks].logsumexp(-1) - math.log(blocks.shape[1])


def entropy(placement: Placement) -> Float[Tensor, "*lead"]:
    """Entropy of the attention on the keys before the query, as a share of log N: 1 is uniform, 0 one key."""
    log_attention = placement.logits()[..., :-1].log_softmax(-1)
    surprise = log_attention.exp() * log_attention.nan_to_num(neginf=0)
    return -surprise.sum(-1) / math.log(placement.keys)


def _score_piece(
    placement: Placement, blocks: Int[Tensor, "M W"], tau: float, tile: int, workspace: Tensor
) -> PairScores:
    log_d = block_log_attention(placement, blocks)
    d = log_d.exp()
    # The widest gap is between the largest and the smallest block: the softmax needs no pass to find its maximum.
    widest = (d.amax(-1) - d.amin(-1))[:, None, None]
    ceiling, windowed = placement.ceiling(), placement.windowed
    sums = d.new_zeros(3, len(d), dtype=torch.float64)  # positional, symbolic, weight; each pair is met twice
    left_out = d.new_zeros(len(d), dtype=torch.int64)
    tiles = [slice(at, at + tile) for at in range(0, len(blocks), tile)]
    for number, rows in enumerate(tiles):
        for columns in tiles[number:]:
            same = rows == columns
            here = placement.block_log_mass(blocks[rows], blocks[columns], ceiling, workspace)
            there = here if same else placement.block_log_mass(blocks[columns], blocks[rows], ceiling, workspace)
            before = log_d[:, rows, None] - log_d[:, None, columns]
            after = there.mT - here
            weight = (d[:, rows, None] - d[:, None, columns]).abs_().sub_(widest).div_(tau)
            weight = weight.clamp_(min=FLOOR).exp_()
            if same:
                weight.diagonal(dim1=-2, dim2=-1).zero_()
            if windowed:
                dead = before.isnan() | after.isnan()
                if same:  # a block is no partner of its own
                    dead.diagonal(dim1=-2, dim2=-1).zero_()
                before, after, weight = before.nan_to_num(), after.nan_to_num(), weight.masked_fill(dead, 0)
                left_out += dead.sum((-1, -2)) * (1 if same else 2)
            mine, share = _unit(before), _unit(after) * weight
            if same:
                sums += _sums(share * mine, share * mine.mT, weight)
            else:
                theirs, rest = _unit(-before), _unit(-after) * weight
                sums += _sums(share * mine + rest * theirs, share * theirs + rest * mine, 2 * weight)
    positional, symbolic, weight = sums
    return PairScores(
        (2 * positional / weight).clamp(0, 1).to(d), (2 * symbolic / weight).clamp(0, 1).to(d), left_out // 2
    )


def _unit(log_ratio: Tensor) -> Tensor:
    """The first component of the unit vector along (e^y, 1)."""
    return (2 * log_ratio).clamp_(min=FLOOR).sigmoid_().sqrt_()


def _sums(*tables: Tensor) -> Float[Tensor, "3 X"]:
    return torch.stack([table.sum((-1, -2)) for table in tables]).double()
