"""Signals at the snapshots of a run: the spectrum of the logits, the gradient of each head's logits by distance and
along its positional part, and how much of the residual stream is position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...core.spectrum import singular_values
from ...lab.classifier import PAD, AttentionInputs, BatchContext, Classifier
from ...lab.fit import held_out
from .runs import TrainingCell, restore

VERSION = 2
SEQUENCES = 64


@dataclass(frozen=True)
class SignalCell:
    """Everything that the signals of a run depend on: the hash of the run and the number of sequences."""

    training: str
    sequences: int = SEQUENCES
    version: int = VERSION


def signal_cell(
    cell: TrainingCell, trained: dict[str, Tensor], signals: SignalCell, device: str = "cpu"
) -> dict[str, Tensor]:
    """Everything that is measured of every head (snapshots, L, H), and of the stream before each layer (snapshots, L).

    The sequences are the first ones with at least four fifths of the maximal length. For the spectrum and the stream
    they are cut to that length, so that none has padding.
    """
    drawn, labels, length = long_sequences(cell, signals.sequences)
    tokens, answers = drawn.to(device), labels.to(device)
    found = []
    for snapshot in range(len(trained["looks"])):
        model = restore(cell, trained, snapshot, device)
        cut = tokens[:, :length]
        found.append({**of_logits(model, cut), **pulls(model, tokens, answers), **of_stream(model, cut)})
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


def long_sequences(cell: TrainingCell, number: int = SEQUENCES) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"], int]:
    """The first held-out sequences with at least four fifths of the maximal length, their labels, and that length."""
    drawn, labels = held_out(cell.labels, cell.recipe, 16 * number)
    length = 4 * cell.labels.tokens // 5
    long = (drawn[:, length - 1] != PAD).nonzero().flatten()[:number]
    return drawn[long], labels[long], length


@torch.no_grad()
def of_logits(model: Classifier, tokens: Int[Tensor, "B T"]) -> dict[str, Float[Tensor, "L H"]]:
    """Condition number (geometric mean) and effective rank (mean over sequences) of the logits of every head."""
    layers: list[tuple[Tensor, Tensor]] = []

    def watch(_: int, inputs: AttentionInputs) -> None:
        made = singular_values(inputs.queries * inputs.queries.shape[-1] ** -0.5, inputs.keys, inputs.bias)
        layers.append((made.condition.log().mean(0).exp(), made.effective_rank.mean(0)))

    model(tokens, watch=watch)
    condition, rank = (torch.stack(part).float() for part in zip(*layers, strict=True))
    return {"condition": condition, "rank": rank}


def pulls(model: Classifier, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> dict[str, Float[Tensor, "L H"]]:
    """The gradient of each head's logits, as a function of distance alone and along their positional part.

    As a function of distance: for every sequence the gradient is averaged along the diagonals. `pull` is the norm of
    the mean over the batch; `agreement` is that norm divided by the mean of the norms: 1 if all sequences pull in the
    same direction, about 1 / sqrt(B) if they cancel.

    Along the positional part: the derivative of a sequence's loss with respect to a gain of what rotation and bias add
    to the head's logits. `seed` is the absolute mean of this derivative over the batch, `seed_agreement` that mean
    divided by the mean of the absolute values: 1 if all sequences have the same sign, 0 if they cancel. Both are 0 and
    NaN in layers without rotation and bias.
    """
    stream, reading = model.begin(tokens)
    probes, parts = [], []
    for layer in range(model.design.layers):
        stream, block = model.add_position(layer, stream), model.block(layer)
        inputs = model.project(layer, stream, reading)
        probe = torch.zeros(*inputs.queries.shape[:3], inputs.keys.shape[2], device=model.device, requires_grad=True)
        probes.append(probe)
        parts.append(positional_part(model, layer, stream.detach(), reading))
        bias = probe if inputs.bias is None else probe + inputs.bias
        stream = block.mlp(stream + block.attention_out(inputs._replace(bias=bias).attended()))
    loss = F.cross_entropy(model.finish(stream, reading), answers, reduction="sum")
    gradients = torch.autograd.grad(loss, probes)
    along = torch.stack([diagonal_means(gradient) for gradient in gradients])  # L B H 2T-1
    gains = torch.stack([(gradient * part).sum((-1, -2)) for gradient, part in zip(gradients, parts, strict=True)])
    norm, seed = along.mean(1).norm(dim=-1), gains.mean(1).abs()
    return {
        "pull": norm,
        "agreement": norm / along.norm(dim=-1).mean(1),
        "seed": seed,
        "seed_agreement": seed / gains.abs().mean(1),
    }


@torch.no_grad()
def positional_part(
    model: Classifier, layer: int, stream: Float[Tensor, "B T W"], context: BatchContext
) -> Float[Tensor, "B H T T"]:
    """What rotation and bias add to the logits of a layer: the logits minus those without either."""
    whole, content = (
        model.project(layer, stream, context, positions)._replace(mask=None).logits() for positions in (True, False)
    )
    return whole - content


@torch.no_grad()
def of_stream(model: Classifier, tokens: Int[Tensor, "B T"]) -> dict[str, Float[Tensor, " L"]]:
    """How much of the residual stream before each layer is position, and along which direction.

    `position_share` is the share of the variance of the stream that is explained by the position of a token, without
    the share that chance explains (epsilon squared); `position_cosine` the cosine between the mean stream by position
    and the positions that were added to the embeddings, NaN if there are none. Noise of that mean lowers the cosine
    where position explains little of the stream.
    """
    stream, context = model.begin(tokens)
    added = model.add_position(model.first_layer, torch.zeros_like(stream[:1]))[0]
    shares, cosines = [], []
    for layer in range(model.design.layers):
        stream, block = model.add_position(layer, stream), model.block(layer)
        by_position = stream.mean(0)
        within = (stream - by_position).square().sum() / (stream.shape[0] - 1) / stream.shape[1]
        total = (stream - stream.mean((0, 1))).square().sum() / (stream.shape[0] * stream.shape[1] - 1)
        shares.append(1 - within / total)
        cosines.append(F.cosine_similarity(*((one - one.mean(0)).flatten() for one in (by_position, added)), dim=0))
        stream = block.mlp(stream + block.attention_out(model.project(layer, stream, context).attended()))
    cosine = torch.stack(cosines)
    return {
        "position_share": torch.stack(shares),
        "position_cosine": cosine if model.design.encoding.added else torch.full_like(cosine, math.nan),
    }


def diagonal_means(tables: Float[Tensor, "*lead T T"]) -> Float[Tensor, "*lead diagonals"]:
    """The mean along every diagonal, from the lowest to the highest.

    >>> diagonal_means(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    tensor([3., 3., 2.])
    """
    tokens = tables.shape[-1]
    offsets = range(1 - tokens, tokens)
    return torch.stack([tables.diagonal(offset, -2, -1).mean(-1) for offset in offsets], -1)
