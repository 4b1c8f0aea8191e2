"""Random attention layers with known contents before rotation, and their scores by explicit swaps in float64.

Nothing of wherewhat computes here: a layer turns its contents by explicit rotation matrices, a swap exchanges two
rows of contents, and attention is a softmax of inner products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from wherewhat.core.placement import Placement
from wherewhat.core.rotation import Rotation
from wherewhat.core.trace import AttentionLayer, Trace

FLOAT32 = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class KnownLayer:
    """The query is the last of T tokens. `bias` (B|1, H|1, T) is added after soft-capping, `sinks` (H) is a logit."""

    query: Tensor  # B H D
    contents: Tensor  # B K T D
    angles: Tensor  # F
    layout: str = "half-split"
    start: int = 0
    scaling: float = 1.0
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def tokens(self) -> int:
        return self.contents.shape[2]

    @property
    def planes(self) -> list[tuple[int, int]]:
        count = len(self.angles)
        if self.layout == "half-split":
            return [(self.start + k, self.start + k + count) for k in range(count)]
        return [(self.start + 2 * k, self.start + 2 * k + 1) for k in range(count)]

    def matrices(self) -> Tensor:
        """The rotation (T, D, D) of each position. Models round the phase, position times angle, to float32."""
        phases = (torch.arange(self.tokens).float()[:, None] * self.angles.float()).double()
        turns = torch.eye(self.query.shape[-1], dtype=torch.float64).repeat(self.tokens, 1, 1)
        for (x, y), phase in zip(self.planes, phases.T, strict=True):
            turns[:, x, x] = turns[:, y, y] = phase.cos()
            turns[:, x, y], turns[:, y, x] = -phase.sin(), phase.sin()
        return turns

    def logits(self, contents: Tensor | None = None) -> Tensor:
        """The logit row (..., B, H, T) with these contents (..., B, K, T, D) on the positions, else the real ones."""
        contents = self.contents if contents is None else contents
        turns = self.matrices()
        query = self.query @ turns[-1].T
        keys = torch.einsum("tij,...tj->...ti", turns, contents)
        keys = keys.repeat_interleave(query.shape[1] // keys.shape[-3], dim=-3)
        logits = torch.einsum("bhi,...bhti->...bht", query, keys) * self.scaling
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.bias is None else logits + self.bias

    def log_attention(self, contents: Tensor | None = None) -> Tensor:
        logits = self.logits(contents)
        total = logits.logsumexp(-1, keepdim=True)
        if self.sinks is not None:
            total = torch.logaddexp(total, self.sinks[:, None])
        return logits - total

    def whole_table(self) -> Tensor:
        """The logit (B, H, T, T) of each content at each position: one row of logits with that content everywhere."""
        rows = [self.logits(self.contents[:, :, [a]].expand_as(self.contents)) for a in range(self.tokens)]
        return torch.stack(rows, dim=2)

    def table(self) -> Tensor:
        """The placement table (B, H, N, N), without the query's own key."""
        return self.whole_table()[..., :-1, :-1]

    def seen(self) -> Tensor:
        """Which keys before the query (B, H, N) are visible to each head."""
        return self.logits()[..., :-1].isfinite()

    def alone(self, frequency: int) -> KnownLayer:
        """One entry of the F axis as a separate head: a plane, or, after the planes, all non-rotary dimensions."""
        turning = [dimension for plane in self.planes for dimension in plane]
        resting = [dimension for dimension in range(self.query.shape[-1]) if dimension not in turning]
        kept = [*self.planes, resting][frequency]
        query = torch.zeros_like(self.query)
        query[..., kept] = self.query[..., kept]
        bias = None if self.bias is None else torch.where(self.bias.isinf(), self.bias, 0)
        return replace(self, query=query, softcap=None, sinks=None, bias=bias)

    def without_first(self) -> KnownLayer:
        blind = torch.zeros(self.tokens, dtype=torch.float64)
        blind[0] = -torch.inf
        return replace(self, bias=blind[None, None] if self.bias is None else self.bias + blind)

    def scores(self, blocks: list[tuple[int, int]], tau: float) -> tuple[Tensor, Tensor, Tensor]:
        """Positional score, symbolic score and number of skipped pairs (B, H), from explicit swaps."""
        pairs = list(itertools.combinations(range(len(blocks)), 2))
        orders = torch.arange(self.tokens).repeat(len(pairs), 1)
        for order, (i, j) in zip(orders, pairs, strict=True):
            order[range(*blocks[i])], order[range(*blocks[j])] = torch.arange(*blocks[j]), torch.arange(*blocks[i])

        def log_means(rows: Tensor) -> Tensor:
            return torch.stack([rows[..., a:b].logsumexp(-1) - math.log(b - a) for a, b in blocks], dim=-1)

        before = log_means(self.log_attention())
        after = log_means(self.log_attention(torch.stack([self.contents[:, :, order] for order in orders])))
        positional, symbolic, gaps = [], [], []
        for swapped, pair in zip(after, pairs, strict=True):
            v, w = (_scaled(log_d[..., list(pair)]) for log_d in (before, swapped))
            positional.append(torch.cosine_similarity(w, v, dim=-1, eps=0))
            symbolic.append(torch.cosine_similarity(w, v.flip(-1), dim=-1, eps=0))
            gaps.append(before[..., list(pair)].exp().diff(dim=-1).abs().squeeze(-1))
        cosines = torch.stack([torch.stack(positional), torch.stack(symbolic)])
        dead = cosines.isnan().any(0)
        weight = (torch.stack(gaps) / tau).masked_fill(dead, -torch.inf).softmax(0)
        return *(cosines.nan_to_num() * weight).sum(1), dead.sum(0)

    def rounding(self, tau: float) -> float:
        """The error of a score in float32: a logit is accurate to a few units in the last place of its largest term,
        a cosine equally, and a weight to that times d / tau."""
        largest = (self.query.norm(dim=-1).max() * self.contents.norm(dim=-1).max()).item() * self.scaling
        if self.bias is not None:
            largest += self.bias.masked_fill(self.bias.isinf(), 0).abs().max().item()
        logit = 4 * FLOAT32 * (1 + largest)
        return 1e-6 + logit * (2 + 4 * self.log_attention()[..., :-1].exp().max().item() / tau)

    def rotation(self) -> Rotation:
        layout = Rotation.half_split if self.layout == "half-split" else Rotation.interleaved
        return layout(self.angles.float(), self.query.shape[-1], self.start)

    def placement(self) -> Placement:
        """The placement in float64: each content holds a row of the table, each place selects an entry of it."""
        table = replace(self, softcap=None, bias=None).whole_table()
        even = torch.nn.functional.pad(table, (0, self.tokens % 2))
        place = torch.eye(*even.shape[-2:], dtype=torch.float64)[None, None]
        return Placement(even, place, self.bias, self.softcap, None if self.sinks is None else self.sinks[None])

    def captured(self, index: int = 0, dtype: torch.dtype = torch.float32) -> AttentionLayer:
        """The layer as in a capture of the model: query and keys rotated to their positions."""
        turns = self.matrices()
        return AttentionLayer(
            index=index,
            queries=(self.query @ turns[-1].T)[:, :, None].to(dtype),
            keys=torch.einsum("tij,...tj->...ti", turns, self.contents).to(dtype),
            rotation=self.rotation(),
            scaling=self.scaling,
            softcap=self.softcap,
            bias=None if self.bias is None else self.bias[:, :, None].float(),
            sinks=None if self.sinks is None else self.sinks.float(),
        )


def trace_of(*layers: KnownLayer, dtype: torch.dtype = torch.float32) -> Trace:
    last = layers[0].tokens - 1
    return Trace(tuple(layer.captured(at, dtype) for at, layer in enumerate(layers)), (last,), last)


def random_layer(
    seed: int = 0,
    tokens: int = 9,
    batch: int = 1,
    kv_heads: int = 1,
    groups: int = 1,
    planes: int = 2,
    still: int = 0,
    size: float = 1.0,
    **rest: object,
) -> KnownLayer:
    """A layer of normally distributed queries and contents; logits are of the order of `size`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    dimension = 2 * planes + still
    return KnownLayer(
        query=normal(batch, kv_heads * groups, dimension),
        contents=normal(batch, kv_heads, tokens, dimension),
        angles=(0.83 * 0.4 ** torch.arange(planes).float()).double(),
        scaling=size * dimension**-0.5,
        **rest,
    )


def window(tokens: int, width: int) -> Tensor:
    """A window: the last query attends to itself and the `width` keys before it."""
    bias = torch.zeros(1, 1, tokens, dtype=torch.float64)
    bias[..., : max(0, tokens - 1 - width)] = -torch.inf
    return bias


def alibi(heads: int, tokens: int) -> Tensor:
    slopes = 2.0 ** -torch.arange(1, heads + 1, dtype=torch.float64)
    return slopes[None, :, None] * torch.arange(1 - tokens, 1)


@st.composite
def known_layers(draw, longest: int = 13, sizes: Sequence[float] = (0.3, 2.0, 6.0), biased: bool = True) -> KnownLayer:
    """Any layer: grouped keys, both layouts, partial rotary at either end, soft-capping, windows, ALiBi, sinks."""
    tokens = draw(st.integers(5, longest))
    kv_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    planes, still = draw(st.sampled_from([(1, 0), (2, 0), (3, 0), (2, 1), (1, 3), (0, 4)]))
    heads = kv_heads * groups
    bias = None
    if biased:
        bias = draw(
            st.sampled_from(
                [None, window(tokens, tokens // 2), alibi(heads, tokens), window(tokens, 2) + alibi(heads, tokens)]
            )
        )
    return random_layer(
        seed=draw(st.integers(0, 2**16)),
        tokens=tokens,
        batch=draw(st.integers(1, 2)),
        kv_heads=kv_heads,
        groups=groups,
        planes=planes,
        still=still,
        size=draw(st.sampled_from(sizes)),
        layout=draw(st.sampled_from(["half-split", "interleaved"])),
        start=draw(st.sampled_from([0, still])),
        softcap=draw(st.sampled_from([None, 3.0])),
        sinks=draw(st.sampled_from([None, torch.linspace(-1, 2, heads, dtype=torch.float64)])),
        bias=bias,
    )


@st.composite
def spans(draw, keys: int) -> list[tuple[int, int]]:
    """Three or more blocks of one width, with gaps between them, in any order: with two, weights would not matter."""
    width = draw(st.integers(1, min(4, keys // 3)))
    blocks: list[tuple[int, int]] = []
    at = 0
    for gap in draw(st.lists(st.integers(0, 2), min_size=3, max_size=6)):
        room = keys - at - width * max(1, 3 - len(blocks))
        if room < 0:
            break
        start = at + min(gap, room)
        at = start + width
        blocks.append((start, at))
    return draw(st.permutations(blocks))


def _scaled(log_pair: Tensor) -> Tensor:
    """Two numbers given by their logarithms, up to a factor: the larger is one. NaN if both are zero."""
    return (log_pair - log_pair.amax(-1, keepdim=True)).exp()
