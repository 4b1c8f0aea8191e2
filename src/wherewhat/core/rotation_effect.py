"""What the rotation of each plane does to attention, and which planes a norm criterion would keep instead.

Freeze one plane of a head, so that position no longer enters through it: the logit of query i on key j changes by

    delta(i, j) = <q~_i, k~_j> - <q_i, k_j>        over the two dimensions of the plane,

with q~, k~ as the model has them and q, k rotated back to position 0. In the placement table of query i, M, this is
M[j, j] - M[j, i]: freezing puts every content at distance 0. A change of logits by -delta moves attention a_i by

    KL(a_i || a_i') = log E[exp(-delta)] + E[delta] = Var(delta) / 2 + O(delta^3),        over keys j ~ a_i,

so half the attention-weighted variance of delta is, to second order, the divergence in nats that freezing the plane
causes at query i. Constant changes cancel in the softmax, and keys that get no attention do not count.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import BadInput, NotMeasurable
from .trace import AttentionLayer, Trace

ELEMENTS = 2**20  # of attention held at a time: 4 MB, so that it stays in the cache


class RotationEffect(NamedTuple):
    """`effect`: half the variance of logits that rotation causes, a mean over queries, in nats. `norm`: the mean norm
    of queries times that of keys on the plane, in units of logits. NaN where a layer has no such plane."""

    effect: Float[Tensor, "B L H F"]
    norm: Float[Tensor, "B L H F"]


def rotation_effect(trace: Trace) -> RotationEffect:
    """What the rotation of every plane of every head does to attention, over all captured queries.

    >>> trace = ww.capture(model, input_ids, queries=range(1, input_ids.shape[1]))       # doctest: +SKIP
    >>> rotation_effect(trace).effect.sum(-1)                                            # doctest: +SKIP
    """
    if trace.absolute:
        raise NotMeasurable("positions are added to its embeddings: there is no rotation to measure")
    if not trace.planes:
        raise NotMeasurable("no layer of this model rotates queries and keys")
    parts = [layer_effect(layer, trace.positions) for layer in trace.attention]
    heads = max(layer.queries.shape[1] for layer in trace.attention)
    stacked = []
    for values in zip(*parts, strict=True):
        full = values[0].new_full((len(values[0]), len(values), heads, trace.planes), torch.nan)
        for number, value in enumerate(values):
            full[:, number, : value.shape[1], : value.shape[2]] = value
        stacked.append(full)
    return RotationEffect(*stacked)


def layer_effect(layer: AttentionLayer, positions: tuple[int, ...]) -> RotationEffect:
    """The same for one layer, (B, H, F) each.

    delta is a product of four numbers of the query and four of the key, so its mean and its second moment under
    attention are those of the keys' numbers and of their ten products: attention is applied to them as to values.
    """
    if len(positions) != layer.queries.shape[2]:
        raise BadInput(f"{layer.queries.shape[2]} queries at {len(positions)} positions")
    groups, tokens = layer.queries.shape[1] // layer.keys.shape[1], layer.keys.shape[2]
    asked = torch.tensor(positions, device=layer.keys.device)
    queries, keys = layer.queries.float() * layer.scaling, layer.keys.float()
    rotated, content = (
        _planes(layer, keys),
        _planes(layer, _back(layer, keys, torch.arange(tokens, device=keys.device))),
    )
    seeking, sought = _planes(layer, queries), _planes(layer, _back(layer, queries, asked))
    of_query = torch.cat([seeking, seeking - sought], -1)  # B H Q F 4
    of_key = torch.cat([rotated - content, content], -1)  # B K T F 4
    if layer.softcap is None and layer.sinks is None:  # a constant moves all logits of a query alike: less rounding
        of_key = of_key - of_key.mean(2, keepdim=True)
    one, other = torch.triu_indices(4, 4, device=keys.device)
    twice = torch.where(one == other, 1.0, 2.0).to(keys)
    moments = torch.cat([of_key, of_key[..., one] * of_key[..., other]], -1)  # B K T F 14
    total = torch.zeros(len(keys), layer.queries.shape[1], of_key.shape[-2], device=keys.device)
    rows = max(1, ELEMENTS // (layer.queries.shape[0] * layer.queries.shape[1] * tokens))
    for start in range(0, len(positions), rows):
        some = slice(start, start + rows)
        seen = max(positions[some]) + 1  # later keys are masked
        attention, slope = layer.attention_and_slope(some, positions[some], seen)
        coefficients = of_query[:, :, some]
        if slope is None:
            mean, square = _mean(attention, moments[:, :, :seen], groups).split([4, 10], -1)
        else:
            mean = _mean(attention * slope, moments[:, :, :seen, :, :4], groups)
            square = _mean(attention * slope.square(), moments[:, :, :seen, :, 4:], groups)
        mean = (coefficients * mean).sum(-1)
        square = (coefficients[..., one] * coefficients[..., other] * twice * square).sum(-1)
        total += (square - mean.square()).clamp(min=0).sum(2)
    norm = seeking.norm(dim=-1).mean(2) * rotated.norm(dim=-1).mean(2).repeat_interleave(groups, 1)
    return RotationEffect(total / (2 * len(positions)), norm)


def _planes(layer: AttentionLayer, vectors: Float[Tensor, "*lead D"]) -> Float[Tensor, "*lead F 2"]:
    """The rotating planes of queries or keys, fastest first."""
    sides = (vectors[..., side][..., layer.rotation.rotating] for side in (layer.rotation.first, layer.rotation.second))
    return torch.stack(list(sides), -1)


def _back(layer: AttentionLayer, vectors: Tensor, positions: Tensor) -> Tensor:
    return layer.rotation.rotate(vectors, positions, back=True)


def _mean(
    attention: Float[Tensor, "B H Q T"], values: Float[Tensor, "B K T F X"], groups: int
) -> Float[Tensor, "B H Q F X"]:
    """The mean of some numbers of every key under the attention of every query."""
    seen = attention.unflatten(1, (-1, groups)) @ values.flatten(-2)[:, :, None]
    return seen.flatten(1, 2).unflatten(-1, values.shape[-2:])
