"""What can be read off a model on its way: the spectrum of its logits, and what pulls each head towards position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..core.spectrum import spectrum
from ..lab.classifier import PAD, Asked, Classifier
from ..lab.fit import held_out
from .encodings import TrainingCell, restore

VERSION = 1
SEQUENCES = 64


@dataclass(frozen=True)
class SignalCell:
    """All that the signals of a run depend on: the run, by its hash, and how many sequences are looked at."""

    training: str
    sequences: int = SEQUENCES
    version: int = VERSION


def signal_cell(
    cell: TrainingCell, trained: dict[str, Tensor], signals: SignalCell, device: str = "cpu"
) -> dict[str, Tensor]:
    """Condition, effective rank and pulls of every head (looks, L, H) at the looks of a run.

    The sequences are the first that fill four fifths of the longest, cut to that length: none has padding.
    """
    drawn, labels = held_out(cell.labels, cell.recipe, 16 * signals.sequences)
    length = 4 * cell.labels.tokens // 5
    long = (drawn[:, length - 1] != PAD).nonzero().flatten()[: signals.sequences]
    tokens, answers = drawn[long].to(device), labels[long].to(device)
    found = []
    for look in range(len(trained["looks"])):
        model = restore(cell, trained, look, device)
        found.append({**of_logits(model, tokens[:, :length]), **pulls(model, tokens, answers)})
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


@torch.no_grad()
def of_logits(model: Classifier, tokens: Int[Tensor, "B T"]) -> dict[str, Float[Tensor, "L H"]]:
    """Condition number (geometric mean) and effective rank (mean over sequences) of the logits of every head."""
    layers: list[tuple[Tensor, Tensor]] = []

    def watch(_: int, asked: Asked) -> None:
        made = spectrum(asked.queries * asked.queries.shape[-1] ** -0.5, asked.keys, asked.bias)
        layers.append((made.condition.log().mean(0).exp(), made.effective_rank.mean(0)))

    model(tokens, watch=watch)
    condition, rank = (torch.stack(part).float() for part in zip(*layers, strict=True))
    return {"condition": condition, "rank": rank}


def pulls(model: Classifier, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> dict[str, Float[Tensor, "L H"]]:
    """The gradient of each head's logits as a function of distance alone: its norm, and how far sequences agree.

    For every sequence the gradient is averaged along the diagonals. `pull` is the norm of its mean over the batch,
    `agreement` that norm over the mean of the norms: 1 if all sequences pull the same way, about 1 / sqrt(B) if they
    cancel.
    """
    stream, reading = model.begin(tokens)
    probes = []
    for layer in range(model.design.layers):
        stream, block = model.tell(layer, stream), model.block(layer)
        asked = model.ask(layer, stream, reading)
        probe = torch.zeros(*asked.queries.shape[:3], asked.keys.shape[2], device=model.device, requires_grad=True)
        probes.append(probe)
        bias = probe if asked.bias is None else probe + asked.bias
        stream = block.think(stream + block.attention_out(asked._replace(bias=bias).attended()))
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
