"""Does one head hold it all? What a model loses without each of its heads, and how unevenly the losses are spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..lab.classifier import Classifier
from ..lab.fit import pieces

BATCH = 128


class Ablation(NamedTuple):
    """The accuracy of a model, and without each head: its output set to zero, or to its mean over tokens."""

    whole: Float[Tensor, ""]
    zero: Float[Tensor, "L H"]
    mean: Float[Tensor, "L H"]


class Deposit(NamedTuple):
    """How a loss is spread over heads: the largest drop of one head, its share of all drops, by how much it exceeds
    the second, and how many equal heads would spread it as much, (sum D)^2 / sum D^2. A head whose absence helps
    counts as 0; without any drop, share and number are NaN.
    """

    largest: Float[Tensor, "*lead"]
    share: Float[Tensor, "*lead"]
    gap: Float[Tensor, "*lead"]
    effective: Float[Tensor, "*lead"]


def deposit(drops: Float[Tensor, "*lead L H"]) -> Deposit:
    """
    >>> deposit(torch.tensor([[0.6, 0.0], [0.2, 0.0]]))
    Deposit(largest=tensor(0.6000), share=tensor(0.7500), gap=tensor(0.4000), effective=tensor(1.6000))
    """
    drops = drops.flatten(-2).clamp(min=0)
    first, second = drops.topk(2).values.unbind(-1)
    total = drops.sum(-1)
    return Deposit(first, first / total, first - second, total.square() / drops.square().sum(-1))


@torch.no_grad()
def ablate_heads(model: Classifier, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> Ablation:
    """The accuracy of a classifier without each of its heads, on sequences that it was not trained on.

    The run up to a layer is shared by all its heads: of what the layer adds to the stream, the part of one head is
    taken out again, and only what comes after is run for each. No weight is changed, so nothing needs to be restored.

    >>> ablate_heads(model, tokens, answers).zero                                      # doctest: +SKIP
    """
    design = model.design
    means = head_means(model, tokens, answers)
    right = torch.zeros(2, design.layers, design.heads, device=model.device)
    whole = torch.zeros((), device=model.device)
    for some, labels in _batches(model, tokens, answers):
        stream, reading = model.begin(some)
        for layer in range(design.layers):
            stream, block = model.tell(layer, stream), model.block(layer)
            attended = model.ask(layer, stream, reading).attended()
            joined = stream + block.attention_out(attended)
            outward = block.attention_out.weight.unflatten(1, (design.heads, -1)).unbind(1)  # H of (W, D)
            for head, own in enumerate(attended.unflatten(-1, (design.heads, -1)).unbind(2)):
                for how, instead in enumerate((0.0, means[layer, head])):
                    lost = (own - instead).flatten(0, 1)
                    without = torch.addmm(joined.flatten(0, 1), lost, outward[head].mT, alpha=-1).view_as(joined)
                    logits = model.proceed(layer + 1, block.think(without), reading)
                    right[how, layer, head] += (logits.argmax(-1) == labels).sum()
            stream = block.think(joined)
        whole += (model.finish(stream, reading).argmax(-1) == labels).sum()
    return Ablation(whole / len(tokens), *(right / len(tokens)))


@torch.no_grad()
def head_means(model: Classifier, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> Float[Tensor, "L H D"]:
    """What each head brings on average, over all tokens that count."""
    design = model.design
    sums = torch.zeros(design.layers, design.width, device=model.device)
    number = 0
    for some, _ in _batches(model, tokens, answers):
        stream, reading = model.begin(some)
        seen = torch.ones_like(some, dtype=torch.bool) if reading.seen is None else reading.seen
        number += int(seen.sum())
        for layer in range(design.layers):
            stream, block = model.tell(layer, stream), model.block(layer)
            attended = model.ask(layer, stream, reading).attended()
            sums[layer] += attended[seen].sum(0)
            stream = block.think(stream + block.attention_out(attended))
    return (sums / number).unflatten(-1, (design.heads, -1))


def _batches(model: Classifier, tokens: Tensor, answers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return pieces(tokens.to(model.device), answers.to(model.device), whole=model.design.unmasked, size=BATCH)
