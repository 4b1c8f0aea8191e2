"""How position enters a Transformer: added to its embeddings, to its logits, or by rotating queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import BadInput

ADDED = ("", "sinusoidal", "learned")
BIASES = ("", "t5", "t5-plain", "alibi", "alibi-exponential")
BUCKETS, FARTHEST = 32, 128  # of T5's relative bias


@dataclass(frozen=True)
class Encoding:
    """The positional encoding of a model. Several can be combined; a model without any is NoPE.

    `added` is added to the embeddings, `bias` to the logits. With `rotary`, position rotates the planes of queries and
    keys: those of the first `heads` heads, of the first `dims` dimensions of a head (with angles spaced over these
    dimensions), except for the `stopped` slowest planes (p-RoPE). With `latent`, keys and values are computed from a
    latent vector of this size per token, and rotation acts on a separate part of `decoupled` dimensions, whose key all
    heads share (MLA). `layers` is the slice of layers with the encoding: (0, 1) the first layer, (-1, None) the last.

    >>> Encoding(rotary=True, stopped=2).angles(heads=2, head_dim=8)[0]
    tensor([1.0000, 0.1000, 0.0000, 0.0000], dtype=torch.float64)
    """

    added: str = ""
    bias: str = ""
    rotary: bool = False
    heads: int | None = None
    dims: int | None = None
    stopped: int = 0
    latent: int = 0
    decoupled: int = 0
    layers: tuple[int, int | None] = (0, None)
    base: float = 10_000.0

    def __post_init__(self) -> None:
        if self.added not in ADDED or self.bias not in BIASES:
            raise BadInput(f"added is one of {ADDED[1:]}, bias one of {BIASES[1:]}; got {self.added}, {self.bias}")
        if self.latent and (not self.rotary or self.decoupled < 2):
            raise BadInput("latent attention needs a separate rotary part: rotary=True and decoupled of at least 2")

    def within(self, layer: int, layers: int) -> bool:
        """Whether this one of `layers` layers has the encoding; what is added to embeddings stays in later layers."""
        return layer in range(layers)[slice(*self.layers)]

    def angles(self, heads: int, head_dim: int) -> Float[Tensor, "H P"]:
        """The angle of every plane of every head, 0 for non-rotary planes."""
        planes, rotary = head_dim // 2, (self.dims or head_dim) // 2
        angles = torch.zeros(planes, dtype=torch.float64)
        angles[:rotary] = self.base ** (-torch.arange(rotary, dtype=torch.float64) / rotary)
        angles[rotary - self.stopped : rotary] = 0
        return angles * (torch.arange(heads) < (heads if self.heads is None else self.heads))[:, None]


NOPE = Encoding()


def sinusoids(tokens: int, width: int, base: float = 10_000.0) -> Float[Tensor, "T W"]:
    """The sinusoids of "Attention is all you need": sine and cosine of each angle next to each other.

    >>> sinusoids(2, 4)[1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """
    angles = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    phases = torch.arange(tokens)[:, None] * angles
    return torch.stack([phases.sin(), phases.cos()], -1).flatten(1).float()


def distances(tokens: int) -> Int[Tensor, "T T"]:
    """Position of the key (column) minus position of the query (row)."""
    places = torch.arange(tokens)
    return places - places[:, None]


def alibi_slopes(heads: int) -> Float[Tensor, " H"]:
    """A geometric sequence from 2^(-8/H) down to 2^-8; between powers of two, filled up from that of the next power.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    whole = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 / whole * torch.arange(1, whole + 1))
    finer = 2.0 ** (-4 / whole * torch.arange(1, 2 * whole, 2))
    return torch.cat([slopes, finer[: heads - whole]])


def alibi(heads: int, tokens: int, exponential: bool = False) -> Float[Tensor, "H T T"]:
    """Minus slope times distance, symmetric; `exponential` slopes exp(-h/H) are those of a published implementation."""
    slopes = (-torch.arange(heads) / heads).exp() if exponential else alibi_slopes(heads)
    return -slopes[:, None, None] * distances(tokens).abs()


def t5_buckets(tokens: int, causal: bool, plain: bool = False) -> Int[Tensor, "T T"]:
    """T5's bucket of every distance: one per small distance, logarithmic beyond; `plain`: one per distance.

    >>> t5_buckets(3, causal=True)
    tensor([[0, 0, 0],
            [1, 0, 0],
            [2, 1, 0]])
    """
    after = distances(tokens)
    if plain:
        return after.clamp(-FARTHEST, FARTHEST) + FARTHEST
    buckets = BUCKETS if causal else BUCKETS // 2
    far = (-after).clamp(min=0) if causal else after.abs()
    exact = buckets // 2
    steps = (far.clamp(min=exact) / exact).log() / math.log(FARTHEST / exact) * (buckets - exact)
    near_or_far = torch.where(far < exact, far, (exact + steps.long()).clamp(max=buckets - 1))
    return near_or_far if causal else near_or_far + buckets * (after > 0)
