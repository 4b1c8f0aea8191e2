"""The placement table of a weak frequency, from a few points on the circle instead of all positions in the prompt.

A single frequency depends on position only through one phase, and the attention weight of a content there,
exp(r cos(phase - psi)) before normalisation, is a smooth function of it: its m-th harmonic is the Bessel function
I_m(r). For r <= 2 the harmonics above 10 are below float32 precision, so 21 equally spaced phases determine the value
at every position, by trigonometric interpolation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .compiled import compiled, run_in_threads
from .placement import Placement

# Up to this |logit|, interpolation changes only the last digits: its rounding error grows like e^(2r).
WEAK = 2.0
NODES = 21
FARTHEST = 4096

# From rows and columns of blocks, i and j, to S[i, j] and S[j, i], or to the logits of both.
Strips = Callable[[slice, slice], tuple[Tensor, Tensor]]


def has_harmonics(placement: Placement, width: int) -> bool:
    """Whether the placement holds single frequencies with no bias or soft cap.

    Blocks of several tokens are placed by their first token. This ignores how the model rounds the phase of every other
    token, which becomes noticeable far into a prompt.
    """
    near = width == 1 or placement.keys <= FARTHEST
    return near and placement.content.shape[-1] == 2 and placement.bias is None and placement.softcap is None


class Interpolation(NamedTuple):
    """The weights (Q, M) that turn values at the nodes into values at the first place of each block, for every row of
    places."""

    weights: Float[Tensor, "P Q M"]

    @classmethod
    def of(cls, flat: Placement, blocks: Int[Tensor, "M W"]) -> Interpolation:
        return cls(_interpolation(flat.place[:, blocks[:, 0]]).to(flat.place))

    def strips(self, flat: Placement, blocks: Int[Tensor, "M W"], heads: Int[Tensor, " X"], _: object) -> Strips:
        """S[i, j] and S[j, i] of the chosen weak single frequencies, for strips of blocks i and j."""
        values = node_values(flat.rows(heads), blocks)
        weights = self.weights[heads % len(self.weights)]

        def strips(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
            return values[:, rows] @ weights[..., columns], weights[..., rows].mT @ values[:, columns].mT

        return strips

    def sum_pairs(
        self,
        flat: Placement,
        blocks: Int[Tensor, "M W"],
        heads: Int[Tensor, " X"],
        own: Float[Tensor, "X M"],
        weightings: tuple[Float[Tensor, "V Y M"], Float[Tensor, "V Y M"]],
        sums: Float[Tensor, "4 V Y"],
    ) -> bool:
        """Add all pairs of the chosen heads to `sums`, compiled; False if that is not possible."""
        if (kernels := compiled(own)) is None:
            return False
        nodes = torch.arange(kernels.PADDED, dtype=torch.float64, device=own.device) * (2 * torch.pi / NODES)
        circle, turn = torch.stack([nodes.cos(), nodes.sin()]).to(own), flat.place[:, : blocks.shape[1]]
        more = -len(blocks) % kernels.LANES
        padded, weights, rise, fall = (F.pad(values, (0, more)) for values in (own, self.weights, *weightings))
        run_in_threads(
            kernels.sum_weak_pairs, own.numel() * len(blocks) // 2, padded[:, None], heads, flat.content, turn, blocks,
            circle, weights, rise, fall, sums,
        )  # fmt: skip
        return True


def node_values(placement: Placement, blocks: Int[Tensor, "M W"]) -> Float[Tensor, "X M Q"]:
    """The mass of the contents of each block with its first token at each node."""
    turn = placement.place[:, : blocks.shape[1]]  # rotation of the t-th token relative to the first
    nodes = _nodes(turn.device)
    circle = torch.stack([nodes.cos(), nodes.sin()])
    own = placement.content.index_select(-2, blocks.flatten()).unflatten(-2, blocks.shape)  # X M W 2
    (cos, sin), (re, im) = turn[:, None].unbind(-1), own.unbind(-1)
    own = torch.stack([re * cos + im * sin, im * cos - re * sin], dim=-1)
    return (own @ circle.to(own)).exp_().sum(-2)


def _nodes(device: torch.device) -> Float[Tensor, " Q"]:
    return torch.arange(NODES, dtype=torch.float64, device=device) * (2 * torch.pi / NODES)


def _interpolation(first_place: Float[Tensor, "P M 2"]) -> Float[Tensor, "P Q M"]:
    """From values at the nodes to values at the positions: the periodic sinc, sin(Q x / 2) / (Q sin(x / 2))."""
    phase = torch.atan2(first_place[..., 1].double(), first_place[..., 0].double())[:, None]  # P 1 M
    half = _nodes(phase.device)[:, None] / 2
    below = (phase / 2).sin() * half.cos() - (phase / 2).cos() * half.sin()
    above = (NODES * phase / 2).sin() * (1 - 2 * (torch.arange(NODES, device=phase.device) % 2))[:, None]
    return torch.where(below.abs() < 1e-12, 1.0, above / (NODES * below))
