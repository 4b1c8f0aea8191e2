"""A captured forward pass: for every attention layer the queries, the keys and how position rotates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import BadInput, NotMeasurable
from .placement import Placement
from .precision import without_autocast
from .rotation import Rotation


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer as the model computed it, for one or more queries; tensors keep the model's dtype.

    `bias` is what each position adds to the logits of each query (-inf where it is masked), `sinks` a learned extra
    logit per head.
    """

    index: int
    queries: Float[Tensor, "B H Q D"]
    keys: Float[Tensor, "B K T D"]
    rotation: Rotation
    scaling: float
    softcap: float | None = None
    bias: Float[Tensor, "#B #H Q T"] | None = None
    sinks: Float[Tensor, " H"] | None = None

    def placement(self, query: int, position: int) -> Placement:
        """The placement table of every head (B, H) for row `query` of the queries, which is at this position."""
        keys = self.keys[:, :, : position + 1].float()
        places = torch.arange(position + 1, device=keys.device)
        coupling = self.rotation.couple(self.queries[:, :, query].float() * self.scaling, keys, places)
        bias = None if self.bias is None else self.bias[:, :, query, : position + 1].float()
        return Placement(
            content=coupling.flatten(-2),
            place=self.rotation.wave(places).flatten(-2)[None, None],
            bias=bias,
            softcap=self.softcap,
            sink=None if self.sinks is None else self.sinks.float()[None],
        )

    def attention(self, rows: slice, positions: Sequence[int]) -> Float[Tensor, "B H Q T"]:
        """The attention of some rows of the queries, which are at these positions, on all keys; later ones have 0."""
        return self.attention_and_slope(rows, positions)[0]

    def attention_and_slope(
        self, rows: slice, positions: Sequence[int], keys: int | None = None
    ) -> tuple[Float[Tensor, "B H Q T"], Float[Tensor, "B H Q T"] | None]:
        """The same, on the first `keys` keys, and with soft-capping the derivative of the capped logit by the logit."""
        queries, seen = self.queries[:, :, rows].float() * self.scaling, self.keys[:, :, :keys].float()
        logits = (queries.unflatten(1, (seen.shape[1], -1)) @ seen[:, :, None].mT).flatten(1, 2)
        slope = None
        if self.softcap is not None:
            capped = (logits / self.softcap).tanh()
            logits, slope = self.softcap * capped, 1 - capped.square()
        logits = logits if self.bias is None else logits + self.bias[:, :, rows, :keys].float()
        later = torch.arange(seen.shape[2]) > torch.tensor(positions)[:, None]
        logits = logits.masked_fill(later.to(logits.device), -torch.inf)
        if self.sinks is None:
            return logits.softmax(-1), slope
        extra = self.sinks.float()[None, :, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([logits, extra], -1).softmax(-1)[..., :-1], slope

    def size(self) -> int:
        """The number of elements of the contents of all heads in a placement table."""
        return self.queries.shape[0] * self.queries.shape[1] * self.keys.shape[2] * self.keys.shape[3]

    def parts(self, elements: int) -> Iterator[AttentionLayer]:
        """The layer split by key/value heads, such that the contents of each part stay below this size."""
        kv_heads = self.keys.shape[1]
        group, step = self.queries.shape[1] // kv_heads, max(1, kv_heads * elements // max(1, self.size()))
        for at in range(0, kv_heads, step):
            heads = slice(at * group, (at + step) * group)
            shared = self.bias is None or self.bias.shape[1] == 1
            yield replace(
                self,
                queries=self.queries[:, heads],
                keys=self.keys[:, at : at + step],
                bias=self.bias if shared or self.bias is None else self.bias[:, heads],
                sinks=None if self.sinks is None else self.sinks[heads],
            )

    def alike(self, other: AttentionLayer) -> bool:
        """Whether the two layers can be processed as one with a longer batch."""
        return (
            self.queries.shape == other.queries.shape
            and self.keys.shape == other.keys.shape
            and self.keys.device == other.keys.device
            and self.rotation.same_as(other.rotation)
            and (self.scaling, self.softcap) == (other.scaling, other.softcap)
            and all(part is None for layer in (self, other) for part in (layer.bias, layer.sinks))
        )


def merge(layers: Sequence[AttentionLayer]) -> AttentionLayer:
    """Concatenate layers that are alike along the batch."""
    if len(layers) == 1:
        return layers[0]
    queries, keys = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("queries", "keys"))
    return replace(layers[0], queries=queries, keys=keys)


@dataclass(frozen=True)
class Trace:
    """A captured forward pass. `query` is the position of the query in use; `at` changes it.

    `output` holds the model's logits after the last token, `check` the deviations measured by the self-check. An
    `absolute` trace comes from a model that adds positions to its embeddings: its attention rows are correct, but
    contents carry their positions with them, so there is no placement table.

    >>> trace = ww.capture(model, input_ids)                        # doctest: +SKIP
    >>> trace.placement(layer=0, head=3)                            # doctest: +SKIP
    """

    attention: tuple[AttentionLayer, ...]
    positions: tuple[int, ...]
    query: int
    output: Float[Tensor, "B V"] | None = None
    check: Mapping[str, float] = field(default_factory=dict)
    absolute: bool = False

    def __repr__(self) -> str:
        heads = max((layer.queries.shape[1] for layer in self.attention), default=0)
        return (
            f"Trace({self.batch} x {self.keys} keys, {len(self.attention)} layers, {heads} heads, {self.planes} planes)"
        )

    @property
    def layers(self) -> list[int]:
        """The indices in the model of the attention layers along the L axis."""
        return [layer.index for layer in self.attention]

    @property
    def keys(self) -> int:
        """N, the number of keys before the query."""
        return self.query

    @property
    def batch(self) -> int:
        return self.attention[0].queries.shape[0]

    @property
    def planes(self) -> int:
        """The largest number of rotating planes of any layer."""
        return max(len(layer.rotation.rotating) for layer in self.attention)

    @property
    def angles(self) -> Float[Tensor, "L F"]:
        """The angle of every entry of the F axis, one row per layer; NaN where a layer has no such entry."""
        return torch.stack([self.spread(layer.rotation.all_angles().cpu(), layer) for layer in self.attention])

    @property
    def frequency_ids(self) -> list[int]:
        """The F axis: 1 is the fastest plane; a final 0 stands for the non-rotary dimensions, if there are any."""
        resting = any(layer.rotation.has_non_rotary for layer in self.attention)
        return [*range(1, self.planes + 1), *([0] if resting else [])]

    def at(self, position: int) -> Trace:
        """The same forward pass seen from another captured query; later tokens are dropped."""
        if position not in self.positions:
            raise BadInput(f"position {position} was not captured; captured queries: {list(self.positions)}")
        return replace(self, query=position)

    def runs(self, elements: int) -> Iterator[tuple[AttentionLayer, ...]]:
        """The layers in order; neighbours that are alike are grouped while their contents stay below this size."""
        run: tuple[AttentionLayer, ...] = ()
        for layer in self.attention:
            if run and not ((len(run) + 1) * layer.size() <= elements and run[0].alike(layer)):
                yield run
                run = ()
            run = (*run, layer)
        yield run

    def placements(self, layer: int) -> Placement:
        """The placement tables of all heads of a layer, in factored form."""
        return self.placement_of(self.attention[layer])

    def placement_of(self, layer: AttentionLayer) -> Placement:
        if self.absolute:
            raise NotMeasurable('positions move with the contents of this model: it has scores at level "prompt" only')
        return layer.placement(self.positions.index(self.query), self.query)

    @without_autocast
    def placement(self, layer: int, head: int) -> Float[Tensor, "B N N"]:
        """The placement table of one head: the logit of every content (rows) at every position (columns)."""
        if not -len(self.attention) <= layer < len(self.attention):
            raise BadInput(f"layer {layer}: the model has {len(self.attention)} attention layers, counted from 0")
        heads = self.attention[layer].queries.shape[1]
        if not -heads <= head < heads:
            raise BadInput(f"head {head}: layer {layer} has {heads} heads, counted from 0")
        placements = self.placements(layer)
        of_head = torch.arange(head % heads, self.batch * heads, heads, device=placements.content.device)
        return placements.flat().rows(of_head).table()

    @without_autocast
    def attention_rows(self, layer: int) -> Float[Tensor, "B H T"]:
        """The attention row of every head of a layer at the query, rebuilt from queries and keys."""
        return self.attention[layer].placement(self.positions.index(self.query), self.query).attention()

    def spread(self, values: Float[Tensor, "*lead F"], layer: AttentionLayer) -> Float[Tensor, "*lead G"]:
        """A layer's values on the F axis of the whole trace; NaN where the layer has no such frequency."""
        planes = len(layer.rotation.rotating)
        full = values.new_full((*values.shape[:-1], len(self.frequency_ids)), torch.nan)
        full[..., :planes] = values[..., :planes]
        if layer.rotation.has_non_rotary:
            full[..., -1] = values[..., -1]
        return full
