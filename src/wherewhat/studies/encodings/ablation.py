"""The accuracy of a classifier without each of its heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...lab.classifier import Classifier
from ...lab.fit import pieces

BATCH, BATCH_TOKENS = 128, 3840  # at most, in one forward pass


class HeadAccuracies(NamedTuple):
    """Accuracy of the whole model, and with each head's output set to zero or to its mean over tokens."""

    whole: Float[Tensor, ""]
    zero: Float[Tensor, "L H"]
    mean: Float[Tensor, "L H"]


@torch.no_grad()
def ablate_heads(model: Classifier, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> HeadAccuracies:
    """The accuracy of a classifier on these sequences, whole and without each of its heads.

    All heads of a layer share the forward pass up to that layer. The contribution of one head is then subtracted from
    the residual stream, and only the rest of the model is run for each head. No weight is changed.

    >>> ablate_heads(model, tokens, answers).zero                                      # doctest: +SKIP
    """
    design = model.design
    means = head_means(model, tokens, answers)
    right = torch.zeros(2, design.layers, design.heads, device=model.device)
    whole = torch.zeros((), device=model.device)
    for some, labels in _batches(model, tokens, answers):
        stream, reading = model.begin(some)
        for layer in range(design.layers):
            stream, block = model.add_position(layer, stream), model.block(layer)
            attended = model.project(layer, stream, reading).attended()
            joined = stream + block.attention_out(attended)
            outward = block.attention_out.weight.unflatten(1, (design.heads, -1)).unbind(1)  # H of (W, D)
            for head, own in enumerate(attended.unflatten(-1, (design.heads, -1)).unbind(2)):
                for how, instead in enumerate((0.0, means[layer, head])):
                    lost = (own - instead).flatten(0, 1)
                    without = torch.addmm(joined.flatten(0, 1), lost, outward[head].mT, alpha=-1).view_as(joined)
                    logits = model.proceed(layer + 1, block.mlp(without), reading)
                    right[how, layer, head] += (logits.argmax(-1) == labels).sum()
            stream = block.mlp(joined)
        whole += (model.finish(stream, reading).argmax(-1) == labels).sum()
    return HeadAccuracies(whole / len(tokens), *(right / len(tokens)))


@torch.no_grad()
def head_means(model: Classifier, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> Float[Tensor, "L H D"]:
    """The mean output of each head over all tokens that are not padding."""
    design = model.design
    sums = torch.zeros(design.layers, design.width, device=model.device)
    number = 0
    for some, _ in _batches(model, tokens, answers):
        stream, reading = model.begin(some)
        seen = torch.ones_like(some, dtype=torch.bool) if reading.seen is None else reading.seen
        number += int(seen.sum())
        for layer in range(design.layers):
            stream, block = model.add_position(layer, stream), model.block(layer)
            attended = model.project(layer, stream, reading).attended()
            sums[layer] += attended[seen].sum(0)
            stream = block.mlp(stream + block.attention_out(attended))
    return (sums / number).unflatten(-1, (design.heads, -1))


def _batches(model: Classifier, tokens: Tensor, answers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = min(BATCH, max(1, BATCH_TOKENS // tokens.shape[1]))
    return pieces(tokens.to(model.device), answers.to(model.device), whole=model.design.unmasked, size=size)
