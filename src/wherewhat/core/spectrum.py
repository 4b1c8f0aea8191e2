"""What position does to the spectrum of a head's logits: shares of variance, singular values, conditioning.

The logits of N queries and N keys are an N x N matrix, and here that matrix itself is the object. Without bias and
soft-capping it is the product of queries and keys, so its singular values follow from two triangles of at most D x D,
at any N. It has at most D of them that are not 0, turned or not: conditions are told over the first min(N, D).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import BadInput
from .rotation import Rotation
from .toeplitz import everything
from .trace import AttentionLayer


class Shares(NamedTuple):
    """Of the variance of a table, what contents explain, what positions explain, and what only both together do."""

    content: Float[Tensor, "*lead"]
    position: Float[Tensor, "*lead"]
    interaction: Float[Tensor, "*lead"]


@dataclass(frozen=True)
class TwoWay:
    """table[a, b] = mean + content[a] + position[b] + interaction[a, b], every part of mean 0 over what is seen."""

    mean: Float[Tensor, "*lead"]
    content: Float[Tensor, "*lead X"]
    position: Float[Tensor, "*lead Y"]
    interaction: Float[Tensor, "*lead X Y"]
    weight: Float[Tensor, "*#lead Y"]

    def shares(self) -> Shares:
        """The parts are orthogonal, so their variances add up to that of the table."""
        content = self.content.square().mean(-1)
        position = (self.position.square() * self.weight).sum(-1)
        interaction = (self.interaction.square().mean(-2) * self.weight).sum(-1)
        whole = content + position + interaction
        return Shares(content / whole, position / whole, interaction / whole)


def two_way(table: Float[Tensor, "*lead X Y"], seen: Bool[Tensor, "*#lead Y"] | None = None) -> TwoWay:
    """Take a placement table, contents x positions, apart by its two-way means; positions not `seen` are left out.

    >>> made = two_way(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))                 # 2 for the content, 1 for the position
    >>> made.shares()
    Shares(content=tensor(0.8000, dtype=torch.float64), position=tensor(0.2000, dtype=torch.float64), \
interaction=tensor(0., dtype=torch.float64))
    """
    seen = torch.ones_like(table[..., 0, :], dtype=torch.bool) if seen is None else seen
    table = table.double().where(seen.unsqueeze(-2), 0)
    weight = seen.double() / seen.sum(-1, keepdim=True)
    by_content = (table * weight.unsqueeze(-2)).sum(-1)
    by_position = table.mean(-2)
    mean = by_content.mean(-1)
    content = by_content - mean.unsqueeze(-1)
    position = (by_position - mean.unsqueeze(-1)).where(seen, 0)
    rest = table - by_content.unsqueeze(-1) - position.unsqueeze(-2)
    return TwoWay(mean, content, position, rest.where(seen.unsqueeze(-2), 0), weight)


@dataclass(frozen=True)
class Spectrum:
    """Singular values, largest first, as many as the product of queries and keys can have."""

    values: Float[Tensor, "*lead R"]

    @property
    def norm(self) -> Float[Tensor, "*lead"]:
        """The 2-norm."""
        return self.values[..., 0]

    @property
    def condition(self) -> Float[Tensor, "*lead"]:
        """Largest over smallest."""
        return self.values[..., 0] / self.values[..., -1]

    @property
    def effective_rank(self) -> Float[Tensor, "*lead"]:
        """exp of the entropy of the singular values, normalised to sum 1 (Roy and Vetterli)."""
        share = self.values / self.values.sum(-1, keepdim=True)
        return torch.special.entr(share).sum(-1).exp()


def spectrum(
    queries: Float[Tensor, "*lead N D"],
    keys: Float[Tensor, "*lead N D"],
    bias: Float[Tensor, "*#lead N N"] | None = None,
) -> Spectrum:
    """The first min(N, D) singular values of queries keys^T + bias; scale the queries first.

    Without a bias no N x N matrix is formed when N > D. With one there are up to N singular values: beyond min(N, D)
    they are left out, so that encodings with and without bias have conditions of the same kind.

    >>> queries, keys = torch.randn(2, 8, 30, 16).unbind()                         # 8 heads, 30 tokens
    >>> spectrum(queries, keys).condition.shape
    torch.Size([8])
    """
    queries, keys = queries.double(), keys.double()
    rank = min(queries.shape[-2:])
    if bias is None and queries.shape[-2] > rank:
        queries, keys = (torch.linalg.qr(each, mode="r").R for each in (queries, keys))
    logits = queries @ keys.mT
    return Spectrum(torch.linalg.svdvals(logits if bias is None else logits + bias.double())[..., :rank])


def majorised(small: Float[Tensor, "*lead R"], large: Float[Tensor, "*lead R"], slack: float = 1e-9) -> Tensor:
    """Whether the largest k of `small` never add up to more than the largest k of `large`, for every k.

    Weak majorisation; for eigenvalues of matrices of equal trace it is majorisation. `slack` is relative.

    >>> majorised(torch.tensor([2.0, 2.0]), torch.tensor([3.0, 1.0]))
    tensor(True)
    """
    sums = (each.sort(-1, descending=True).values.cumsum(-1) for each in (small, large))
    below, above = sums
    return (below <= above + slack * large.abs().sum(-1, keepdim=True)).all(-1)


@dataclass(frozen=True)
class Contents:
    """Queries and keys of every head of a layer before position turned them, scaled, over the same N positions."""

    queries: Float[Tensor, "B H N D"]
    keys: Float[Tensor, "B H N D"]
    rotation: Rotation

    @staticmethod
    def of(layer: AttentionLayer) -> Contents:
        """Turn what was captured back. The queries must be those of all positions but the first, whose key is the
        usual sink and is left out too."""
        tokens = layer.keys.shape[2]
        if layer.queries.shape[2] != tokens - 1:
            raise BadInput("logits of all queries: capture them with queries=range(1, tokens)")
        at = torch.arange(1, tokens, device=layer.keys.device)
        group = layer.queries.shape[1] // layer.keys.shape[1]
        queries = layer.rotation.turn(layer.queries.float() * layer.scaling, at, back=True)
        keys = layer.rotation.turn(layer.keys[:, :, 1:].float(), at, back=True).repeat_interleave(group, 1)
        return Contents(queries.double(), keys.double(), layer.rotation)

    def first(self, length: int) -> Contents:
        """The first so many positions."""
        return replace(self, queries=self.queries[..., :length, :], keys=self.keys[..., :length, :])

    def turned(self, base: float | None = None) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, "B H N D"]]:
        """Queries and keys turned to their positions, as the model does or as RoPE with another base would."""
        rotation = self.rotation if base is None else with_base(self.rotation, base)
        at = torch.arange(1, 1 + self.queries.shape[2], device=self.queries.device)
        return rotation.turn(self.queries, at), rotation.turn(self.keys, at)


def seen_logits(layer: AttentionLayer) -> tuple[Float[Tensor, "B H N N"], Bool[Tensor, "N N"]]:
    """The logits of all queries but the first on all keys but the first, with soft-capping and bias, and which of them
    all heads of the layer can see: those before the query, and within its window."""
    queries, keys = Contents.of(layer).turned()
    logits = queries @ keys.mT
    if layer.softcap is not None:
        logits = layer.softcap * (logits / layer.softcap).tanh()
    seen = everything(logits).tril()
    if layer.bias is not None:
        bias = layer.bias[..., 1:].double()
        logits, seen = logits + bias, bias.isfinite().flatten(0, 1).all(0)
    return logits, seen


def with_base(rotation: Rotation, base: float) -> Rotation:
    """The same planes with the angles of RoPE with this base, in the order of their speeds; those at rest stay so.

    >>> with_base(Rotation.half_split(torch.tensor([1.0, 0.01]), head_dim=4), 100.0).angles
    tensor([1.0000, 0.1000])
    """
    planes, angles = len(rotation.turning), rotation.angles.clone()
    speeds = base ** -(torch.arange(planes, device=angles.device, dtype=torch.float64) / max(1, planes))
    angles[rotation.turning] = (speeds * angles[rotation.turning].sign()).to(angles)
    return replace(rotation, angles=angles)
