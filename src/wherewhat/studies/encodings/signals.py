"""Signals at the snapshots of a run: the spectrum of the logits, and the gradient of each head's logits by distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...core.spectrum import singular_values
from ...lab.classifier import PAD, AttentionInputs, Classifier
from ...lab.fit import held_out
from .runs import TrainingCell, restore

VERSION = 1
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
    """Condition number, effective rank, pull and agreement of every head at the snapshots of a run (snapshots, L, H).

    The sequences are the first ones with at least four fifths of the maximal length. For the spectrum they are cut to
    that length, so that none has padding.
    """
    drawn, labels = held_out(cell.labels, cell.recipe, 16 * signals.sequences)
    length = 4 * cell.labels.tokens // 5
    long = (drawn[:, length - 1] != PAD).nonzero().flatten()[: signals.sequences]
    tokens, answers = drawn[long].to(device), labels[long].to(device)
    found = []
    for snapshot in range(len(trained["looks"])):
        model = restore(cell, trained, snapshot, device)
        found.append({**of_logits(model, tokens[:, :length]), **pulls(model, tokens, answers)})
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


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
    """The gradient of each head's logits as a function of distance alone: its norm, and how far sequences agree.

    For every sequence the gradient is averaged along the diagonals. `pull` is the norm of the mean over the batch;
    `agreement` is that norm divided by the mean of the norms: 1 if all sequences pull in the same direction, about
    1 / sqrt(B) if they cancel.
    """
    stream, reading = model.begin(tokens)
    probes = []
    for layer in range(model.design.layers):
        stream, block = model.add_position(layer, stream), model.block(layer)
        inputs = model.project(layer, stream, reading)
        probe = torch.zeros(*inputs.queries.shape[:3], inputs.keys.shape[2], device=model.device, requires_grad=True)
        probes.append(probe)
        bias = probe if inputs.bias is None else probe + inputs.bias
        stream = block.mlp(stream + block.attention_out(inputs._replace(bias=bias).attended()))
    loss = F.cross_entropy(model.finish(stream, reading), answers, reduction="sum")
    along = torch.stack([diagonal_means(gradient) for gradient in torch.autograd.grad(loss, probes)])  # L B H 2T-1
    norm = along.mean(1).norm(dim=-1)
    return {"pull": norm, "agreement": norm / along.norm(dim=-1).mean(1)}


def diagonal_means(tables: Float[Tensor, "*lead T T"]) -> Float[Tensor, "*lead diagonals"]:
    """The mean along every diagonal, from the lowest to the highest.

    >>> diagonal_means(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    tensor([3., 3., 2.])
    """
    tokens = tables.shape[-1]
    offsets = range(1 - tokens, tokens)
    return torch.stack([tables.diagonal(offset, -2, -1).mean(-1) for offset in offsets], -1)
