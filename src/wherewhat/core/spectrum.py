"""How position shapes the logits of a head: shares of variance, singular values, condition numbers.

The logits of N queries and N keys form an N x N matrix. Without bias and soft-capping it is the product of queries and
keys, so its singular values follow from two triangular matrices of at most D x D, for any N. Rotated or not, at most D
of them are nonzero: condition numbers are taken over the first min(N, D).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import BadInput
from .precision import without_autocast
from .rotation import Rotation
from .toeplitz import everything
from .trace import AttentionLayer, Trace


class Shares(NamedTuple):
    """The shares of the variance of a table that are explained by content, by position, and only by both together."""

    content: Float[Tensor, "*lead"]
    position: Float[Tensor, "*lead"]
    interaction: Float[Tensor, "*lead"]


@dataclass(frozen=True)
class TwoWay:
    """table[a, b] = mean + content[a] + position[b] + interaction[a, b]; parts have mean 0 over visible positions."""

    mean: Float[Tensor, "*lead"]
    content: Float[Tensor, "*lead X"]
    position: Float[Tensor, "*lead Y"]
    interaction: Float[Tensor, "*lead X Y"]
    weight: Float[Tensor, "*#lead Y"]

    def shares(self) -> Shares:
        """The share of each part; the parts are orthogonal, so their variances add up to that of the table."""
        content = self.content.square().mean(-1)
        position = (self.position.square() * self.weight).sum(-1)
        interaction = (self.interaction.square().mean(-2) * self.weight).sum(-1)
        whole = content + position + interaction
        return Shares(content / whole, position / whole, interaction / whole)


def two_way(table: Float[Tensor, "*lead X Y"], seen: Bool[Tensor, "*#lead Y"] | None = None) -> TwoWay:
    """Two-way decomposition of a placement table, contents x positions; positions that are not `seen` are excluded.

    >>> parts = two_way(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))              # 2 for the content, 1 for the position
    >>> parts.shares()
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
class SingularValues:
    """The first min(N, D) singular values of a logit matrix, largest first, and the numbers that follow from them."""

    values: Float[Tensor, "*lead R"]

    @property
    def norm(self) -> Float[Tensor, "*lead"]:
        """The 2-norm."""
        return self.values[..., 0]

    @property
    def condition(self) -> Float[Tensor, "*lead"]:
        """The condition number: largest over smallest."""
        return self.values[..., 0] / self.values[..., -1]

    @property
    def effective_rank(self) -> Float[Tensor, "*lead"]:
        """exp of the entropy of the singular values, normalised to sum 1 (Roy and Vetterli)."""
        share = self.values / self.values.sum(-1, keepdim=True)
        return torch.special.entr(share).sum(-1).exp()


@overload
def singular_values(trace: Trace, /) -> list[SingularValues]: ...
@overload
def singular_values(
    queries: Float[Tensor, "*lead N D"],
    keys: Float[Tensor, "*lead N D"],
    bias: Float[Tensor, "*#lead N N"] | None = None,
) -> SingularValues: ...
@without_autocast
def singular_values(
    queries: Trace | Float[Tensor, "*lead N D"],
    keys: Float[Tensor, "*lead N D"] | None = None,
    bias: Float[Tensor, "*#lead N N"] | None = None,
) -> SingularValues | list[SingularValues]:
    """Singular values of the logits of every head, from a trace or from queries and keys.

    A trace must hold the queries of all positions but the first. The result is one `SingularValues` (B, H, R) per
    attention layer, of the logits as the model computes them before soft-capping: rotated, and with the bias if that
    does not mask any key. The first key, the usual attention sink, is excluded.

    Otherwise these are the first min(N, D) singular values of queries keys^T + bias; scale the queries first. Without
    a bias no N x N matrix is formed when N > D. With one there can be N nonzero singular values; those beyond
    min(N, D) are omitted, so that encodings with and without bias have comparable condition numbers.

    >>> trace = ww.capture(model, input_ids, queries=range(1, input_ids.shape[1]))     # doctest: +SKIP
    >>> ww.singular_values(trace)[3].condition                          # layer 3      # doctest: +SKIP
    >>> queries, keys = torch.randn(2, 8, 30, 16).unbind()                             # 8 heads, 30 tokens
    >>> singular_values(queries, keys).condition.shape
    torch.Size([8])
    """
    if isinstance(queries, Trace):
        return [singular_values(*Contents.of(layer).rotated(), finite_bias(layer)) for layer in queries.attention]
    if keys is None:
        raise BadInput("singular values need a trace, or queries and keys")
    left, right = queries.double(), keys.double()
    rank = min(left.shape[-2:])
    if bias is None and left.shape[-2] > rank:
        left, right = (torch.linalg.qr(each, mode="r").R for each in (left, right))
    logits = left @ right.mT
    return SingularValues(torch.linalg.svdvals(logits if bias is None else logits + bias.double())[..., :rank])


def majorised(small: Float[Tensor, "*lead R"], large: Float[Tensor, "*lead R"], slack: float = 1e-9) -> Tensor:
    """Whether, for every k, the sum of the k largest of `small` is at most that of the k largest of `large`.

    This is weak majorisation; for eigenvalues of matrices with equal traces it is majorisation. `slack` is relative.

    >>> majorised(torch.tensor([2.0, 2.0]), torch.tensor([3.0, 1.0]))
    tensor(True)
    """
    sums = (each.sort(-1, descending=True).values.cumsum(-1) for each in (small, large))
    below, above = sums
    return (below <= above + slack * large.abs().sum(-1, keepdim=True)).all(-1)


@dataclass(frozen=True)
class Contents:
    """Queries and keys of every head of a layer before rotation, scaled, over the same N positions."""

    queries: Float[Tensor, "B H N D"]
    keys: Float[Tensor, "B H N D"]
    rotation: Rotation

    @staticmethod
    def of(layer: AttentionLayer) -> Contents:
        """Undo the rotation of a captured layer.

        The queries must be those of all positions but the first. The first key, the usual attention sink, is excluded.
        """
        tokens = layer.keys.shape[2]
        if layer.queries.shape[2] != tokens - 1:
            raise BadInput("the queries of all positions are needed: capture them with queries=range(1, tokens)")
        at = torch.arange(1, tokens, device=layer.keys.device)
        group = layer.queries.shape[1] // layer.keys.shape[1]
        queries = layer.rotation.rotate(layer.queries.float() * layer.scaling, at, back=True)
        keys = layer.rotation.rotate(layer.keys[:, :, 1:].float(), at, back=True).repeat_interleave(group, 1)
        return Contents(queries.double(), keys.double(), layer.rotation)

    def first(self, length: int) -> Contents:
        """The first `length` positions."""
        return replace(self, queries=self.queries[..., :length, :], keys=self.keys[..., :length, :])

    def rotated(self, base: float | None = None) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, "B H N D"]]:
        """Queries and keys rotated to their positions, as in the model or as RoPE with another base would."""
        rotation = self.rotation if base is None else with_base(self.rotation, base)
        at = torch.arange(1, 1 + self.queries.shape[2], device=self.queries.device)
        return rotation.rotate(self.queries, at), rotation.rotate(self.keys, at)


def finite_bias(layer: AttentionLayer) -> Float[Tensor, "#B #H N N"] | None:
    """The bias of a layer by position, without the first key; None if it has none, or one that masks any key."""
    return None if layer.bias is None or not layer.bias.isfinite().all() else layer.bias[..., 1:]


def seen_logits(layer: AttentionLayer) -> tuple[Float[Tensor, "B H N N"], Bool[Tensor, "N N"]]:
    """The logits of all queries and keys but the first, with soft-capping and bias, and which of them are visible to
    all heads of the layer: keys before the query and within its window."""
    queries, keys = Contents.of(layer).rotated()
    logits = queries @ keys.mT
    if layer.softcap is not None:
        logits = layer.softcap * (logits / layer.softcap).tanh()
    seen = everything(logits).tril()
    if layer.bias is not None:
        bias = layer.bias[..., 1:].double()
        logits, seen = logits + bias, bias.isfinite().flatten(0, 1).all(0)
    return logits, seen


def with_base(rotation: Rotation, base: float) -> Rotation:
    """The same planes with the angles of RoPE with this base, in order of their speeds. Planes that do not rotate are
    unchanged.

    >>> with_base(Rotation.half_split(torch.tensor([1.0, 0.01]), head_dim=4), 100.0).angles
    tensor([1.0000, 0.1000])
    """
    planes, angles = len(rotation.rotating), rotation.angles.clone()
    speeds = base ** -(torch.arange(planes, device=angles.device, dtype=torch.float64) / max(1, planes))
    angles[rotation.rotating] = (speeds * angles[rotation.rotating].sign()).to(angles)
    return replace(rotation, angles=angles)
