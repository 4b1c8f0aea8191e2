"""How a head's attention responds when the contents of two blocks are swapped: positional or symbolic.

A pair of blocks receives attention v = (d_i, d_j) before the swap and v' = (d'_i, d'_j) after it. Attention that stays
in place is positional, cos(v', v) = 1; attention that follows the contents is symbolic, cos(v', (d_j, d_i)) = 1.

With the placement table summed over blocks, S[i, j] = contents of block i at the places of block j, a swap turns
(S[i, i], S[j, j]) into (S[j, i], S[i, j]) up to a common normaliser, which does not affect the cosine. The cosines do
not depend on how swaps are weighted, so one walk over the pairs serves any number of weightings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .compiled import compiled
from .harmonics import WEAK, Interpolation, Strips, has_harmonics
from .pair_sums import FLOOR, Strip, sum_log_pairs, sum_mass_pairs, sum_pairs
from .placement import Placement

# Elements of the largest intermediate tensor of one piece, 2 MB of float32, which a processor core keeps in its cache;
# and the number of blocks in a strip, which are compared with all later blocks at once.
PIECE, STRIP = 2**19, 16
# A head whose logits stay within this bound is scored without logarithms: no number leaves float32's range.
GENTLE = 12.0
# Pairs are left out as long as all of them together hold at most this share of the weight. A score is a weighted mean
# of numbers between 0 and 1, so this is also the most by which it can change.
NEGLIGIBLE = 1e-8
# To leave out pairs, a head needs its own copy of the places: this pays if at most this share of the pairs remains, and
# if there are more blocks than this.
WORTHWHILE, FEW = 0.6, 64


class Weighting(NamedTuple):
    """A swap has the weight softmax(|d_i - d_j| / tau) over all pairs; tau = inf is the plain mean. `without_first`
    removes key 0 from the softmax that gives the attention d."""

    tau: float
    without_first: bool = False


class PairScores(NamedTuple):
    """The first axis, V, is that of the weightings."""

    positional: Float[Tensor, "V ..."]
    symbolic: Float[Tensor, "V ..."]
    skipped: Int[Tensor, "V ..."]


class Pairs(NamedTuple):
    """For every head the attention d on its blocks, up to a factor; the weight of a pair of blocks is
    max(rise_i fall_j, fall_i rise_j). If `order` is given, blocks are in this order, the most attended first, and pairs
    of block i with blocks before `first[i]` are negligible."""

    rise: Float[Tensor, "V X M"]
    fall: Float[Tensor, "V X M"]
    order: Int[Tensor, "X M"]
    first: Int[Tensor, "X M"]
    prune: Bool[Tensor, " X"]


def score_blocks(placement: Placement, blocks: Int[Tensor, "M W"], weightings: Sequence[Weighting]) -> PairScores:
    """Positional and symbolic score of every head over all swaps of two blocks, computed exactly.

    `blocks` holds the token indices of each block, which are consecutive. A pair without mass before or after its swap
    is skipped and counted.
    """
    flat, axes = placement.flat(), len(placement.lead)
    count, width = blocks.shape
    pairs = _weigh_pairs(placement, blocks, weightings)
    logits = _of_blocks(placement.logits(), blocks).flatten(0, axes - 1)
    weak, gentle, steep = _regimes(placement, has_harmonics(flat, width))
    sums, interpolated = flat.content.new_zeros(4, len(weightings), len(weak), dtype=torch.float64), _logit_strips
    if weak.any():
        interpolation, chosen = Interpolation.of(flat, blocks), weak.nonzero().flatten()
        own = _relative_mass(logits if len(chosen) == len(logits) else logits[chosen])
        if interpolation.sum_pairs(flat, blocks, chosen, own, (pairs.rise, pairs.fall), sums):
            weak = torch.zeros_like(weak)  # done
        interpolated = interpolation.strips
    for heads, depth, strips_of, own_of, sum_strip in (
        (weak, 1, interpolated, _relative_mass, sum_pairs),
        (gentle, width, _logit_strips, _relative_mass, sum_mass_pairs),
        (steep, width, _logit_strips, _log_mass, sum_log_pairs),
    ):
        step = max(1, PIECE // (min(STRIP, count) * count * depth))
        for prune in (False, True):
            chosen = (heads & (pairs.prune == prune)).nonzero().flatten()
            chosen = chosen[pairs.first[chosen, 0].argsort()] if prune else chosen  # pieces of heads that are alike
            for some in filter(len, chosen.split(step)):
                order = pairs.order[some] if prune else None
                first = pairs.first[some].amin(0).tolist() if prune else [0] * count
                own = own_of(logits[some])
                own, rise, fall = (
                    _ordered(values, order) for values in (own, pairs.rise[:, some], pairs.fall[:, some])
                )
                part, strips = sums.new_zeros(4, len(weightings), len(some)), strips_of(flat, blocks, some, order)
                for at in range(0, count, STRIP):
                    start = max(at, first[at])
                    if start < count:
                        tables = strips(slice(at, at + STRIP), slice(start, count))
                        sum_strip(*tables, Strip(own, rise, fall, at, start, part))
                sums[:, :, some] = part
    positional, symbolic, weight, skipped = sums.unflatten(-1, placement.lead)
    positional, symbolic = (positional / weight).clamp(0, 1), (symbolic / weight).clamp(0, 1)
    return PairScores(positional.float(), symbolic.float(), skipped.long())


def _regimes(placement: Placement, harmonics: bool) -> tuple[Bool[Tensor, " X"], ...]:
    """Which heads are summed by interpolation, which without logarithms, and which with them.

    Compiled sums take no longer with logarithms, so all whole heads are summed with them, together.
    """
    if placement.content.shape[-1] > 2 and compiled(placement.content) is not None:
        everything = torch.ones(placement.lead.numel(), dtype=torch.bool, device=placement.content.device)
        return ~everything, ~everything, everything
    ceiling = placement.ceiling.expand(placement.lead).flatten()
    weak = (ceiling < WEAK) & harmonics
    gentle = (ceiling < GENTLE) & ~weak
    return weak, gentle, ~(weak | gentle)


def block_attention(
    placement: Placement, blocks: Int[Tensor, "M W"], without_first: bool = False
) -> Float[Tensor, "*lead M"]:
    """d: each block's mean attention."""
    placement = placement.without_first() if without_first else placement
    return _of_blocks(placement.attention(), blocks).mean(-1)


def _log_mass(logits: Float[Tensor, "X M W"]) -> Float[Tensor, "X M"]:
    """log d up to a constant, also where d itself is too small for a float32."""
    return logits.squeeze(-1) if logits.shape[-1] == 1 else logits.logsumexp(-1)


def _relative_mass(logits: Float[Tensor, "X M W"]) -> Float[Tensor, "X M"]:
    """d relative to the head's largest, so that squares stay in range even if a sink takes nearly all attention."""
    return (logits - logits.amax((-1, -2), keepdim=True).clamp(min=torch.finfo(logits.dtype).min)).exp_().mean(-1)


def _of_blocks(values: Float[Tensor, "*lead keys"], blocks: Int[Tensor, "M W"]) -> Float[Tensor, "*lead M W"]:
    return values.index_select(-1, blocks.flatten().to(values.device)).unflatten(-1, blocks.shape)


def entropy(placement: Placement) -> Float[Tensor, "*lead"]:
    """Entropy of the attention on the keys before the query, divided by log N: 1 is uniform, 0 a single key."""
    log_attention = placement.logits()[..., :-1].log_softmax(-1)
    surprise = log_attention.exp() * log_attention.nan_to_num(neginf=0)
    return -surprise.sum(-1) / math.log(max(placement.keys, 2))


def _weigh_pairs(placement: Placement, blocks: Int[Tensor, "M W"], weightings: Sequence[Weighting]) -> Pairs:
    """The factors of the weights of all pairs, and which pairs are negligible.

    The widest gap is between the largest and the smallest block, and e^(|s_i - s_j| - widest) is the larger of two
    products of a factor of i and a factor of j: the softmax over pairs needs no exponential per pair.
    """
    seen = {blind: block_attention(placement, blocks, blind) for blind in {one.without_first for one in weightings}}
    seen = {blind: d.flatten(0, len(placement.lead) - 1) for blind, d in seen.items()}
    d = torch.stack([seen[one.without_first] for one in weightings])
    taus = d.new_tensor([max(one.tau, torch.finfo(torch.float32).tiny) for one in weightings])[:, None, None]
    ends = (d - d.amax(-1, keepdim=True), d.amin(-1, keepdim=True) - d)
    rise, fall = (end.div_(taus).clamp_(min=FLOOR).exp_() for end in ends)
    d = d[0]  # the order of the blocks is the same without the first key
    heads, count = d.shape
    order = first = torch.zeros(heads, count, dtype=torch.long, device=d.device)
    prune = torch.zeros(heads, dtype=torch.bool, device=d.device)
    # Most pairs of a single frequency matter; of a windowed head, those that matter may all be skipped.
    if count > FEW and placement.content.shape[-1] > 2 and not placement.windowed:
        order = d.argsort(-1, descending=True)
        limit = NEGLIGIBLE / max(1, math.comb(count, 2))  # the weight of the widest gap is 1
        first = torch.searchsorted(_ordered(fall, order), limit / _ordered(rise, order)).amin(0)
        later = torch.arange(1, count + 1, device=d.device)
        prune = (count - torch.maximum(first, later)).sum(-1) < WORTHWHILE * math.comb(count, 2)
    return Pairs(rise, fall, order, first, prune)


def _ordered(values: Float[Tensor, "*lead X M"], order: Int[Tensor, "X M"] | None) -> Float[Tensor, "*lead X M"]:
    return values.contiguous() if order is None else values.gather(-1, order.expand_as(values))


def _logit_strips(flat: Placement, blocks: Int[Tensor, "M W"], heads: Tensor, order: Tensor | None) -> Strips:
    """The terms of log S of the chosen heads: (W, X, I, J), the first token of a block at the first place and so on."""
    return flat.by_block(blocks, heads, order).both_ways
