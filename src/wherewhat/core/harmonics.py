"""The placement table of a weak frequency, from a few points on the circle instead of all positions in the prompt.

A single frequency depends on position only through one phase, and the attention weight of a content there,
exp(r cos(phase - psi)) before normalisation, is a smooth function of it: its m-th harmonic is the Bessel function
I_m(r). For r <= 2 the harmonics above 10 are below float32 precision, so 21 equally spaced phases determine the value
at every position, by trigonometric interpolation.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .placement import Placement

# Up to this |logit|, interpolation changes only the last digits: its rounding error grows like e^(2r).
WEAK = 2.0
NODES = 21
FARTHEST = 4096


def has_harmonics(placement: Placement, width: int) -> bool:
    """Whether the placement holds single frequencies with no bias or soft cap.

    Blocks of several tokens are placed by their first token. This ignores how the model rounds the phase of every other
    token, which becomes noticeable far into a prompt.
    """
    near = width == 1 or placement.keys <= FARTHEST
    return near and placement.content.shape[-1] == 2 and placement.bias is None and placement.softcap is None


def interpolated_mass(
    placement: Placement, contents: Int[Tensor, "I W"], places: Int[Tensor, "J W"], workspace: Float[Tensor, " _"]
) -> Float[Tensor, "X I J"]:
    """S, as `block_mass` computes it, for weak single frequencies."""
    blocks, width = contents.shape
    own = placement.content.index_select(-2, contents.flatten()).unflatten(-2, (blocks, width))  # X I W 2
    cos, sin = placement.place[:, None, :width].unbind(-1)  # rotation of the t-th token relative to the first
    re, im = own.unbind(-1)
    own = torch.stack([re * cos + im * sin, im * cos - re * sin], dim=-1)
    nodes = torch.arange(NODES, device=own.device, dtype=torch.float64) * (2 * torch.pi / NODES)
    circle = torch.stack([nodes.cos(), nodes.sin()]).to(own)  # 2 Q
    shape = (*own.shape[:-1], NODES)
    logits = torch.matmul(own, circle, out=workspace[: math.prod(shape)].view(shape))
    return logits.exp_().sum(-2) @ _interpolation(placement.place[:, places[:, 0]], nodes).to(own)


def _interpolation(first_place: Float[Tensor, "P J 2"], nodes: Float[Tensor, " Q"]) -> Float[Tensor, "P Q J"]:
    """From values at the nodes to values at the positions: the periodic sinc, sin(Q x / 2) / (Q sin(x / 2))."""
    phase = torch.atan2(first_place[..., 1].double(), first_place[..., 0].double())[:, None]  # P 1 J
    half = nodes[:, None] / 2
    below = (phase / 2).sin() * half.cos() - (phase / 2).cos() * half.sin()
    above = (NODES * phase / 2).sin() * (1 - 2 * (torch.arange(NODES, device=nodes.device) % 2))[:, None]
    return torch.where(below.abs() < 1e-12, 1.0, above / (NODES * below))
