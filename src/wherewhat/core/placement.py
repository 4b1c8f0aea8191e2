"""The placement table: the logit that every content would get at every position. All scores are computed from it.

The full table is never stored. Each logit is a short inner product of a content half and a place half, so only the two
halves are kept, and any part of the table is one small matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """M[a, b] = softcap(content[a] . place[b]) + bias[b] over the N keys before the query and the query's own key.

    Leading axes are (B, H) for heads and (B, H, F) for single frequencies; `place`, `bias` and `sink` broadcast.
    The query's own key, index N, takes part in every softmax and in no swap. `bias` is what a position adds to any
    content: ALiBi slopes, and -inf outside a sliding window. `sink` is a learned extra logit of the normaliser.
    """

    content: Float[Tensor, "*lead keys R"]
    place: Float[Tensor, "... keys R"]
    bias: Float[Tensor, "... keys"] | None = None
    softcap: float | None = None
    sink: Float[Tensor, "*_"] | None = None

    @property
    def lead(self) -> torch.Size:
        """The leading axes."""
        return self.content.shape[:-2]

    @property
    def keys(self) -> int:
        """N, the number of keys before the query."""
        return self.content.shape[-2] - 1

    @property
    def windowed(self) -> bool:
        """Whether some positions are masked."""
        return self.bias is not None and bool(torch.isinf(self.bias).any())

    def logits(self) -> Float[Tensor, "*lead keys"]:
        """The table's diagonal: the head's real logits, the query's own key last."""
        return self._logits

    @cached_property
    def _logits(self) -> Tensor:
        parts = (self.content * self.place).unflatten(-1, (-1, 2))
        raw = parts[..., 0, 0] + parts[..., 0, 1] if parts.shape[-2] == 1 else parts.sum((-1, -2))
        return self._finish(raw, self.bias)

    def log_attention(self) -> Float[Tensor, "*lead keys"]:
        """The head's real attention row, as logarithms; with a sink it sums to less than one."""
        return self._normalised(self.logits())

    def _normalised(self, logits: Float[Tensor, "*lead keys"]) -> Float[Tensor, "*lead keys"]:
        total = logits.logsumexp(-1, keepdim=True)
        if self.sink is not None:
            total = torch.logaddexp(total, self.sink.unsqueeze(-1))
        return logits - total

    def attention(self) -> Float[Tensor, "*lead keys"]:
        """The head's real attention row."""
        return self._attention

    @cached_property
    def _attention(self) -> Tensor:
        return self.logits().softmax(-1) if self.sink is None else self.log_attention().exp()

    def swapped_attention(self, first: Int[Tensor, " W"], second: Int[Tensor, " W"]) -> Float[Tensor, "*lead keys"]:
        """The head's attention row after the contents at these two groups of positions are exchanged."""
        places, contents = torch.cat([first, second]), torch.cat([second, first])
        logits = self.logits().clone()
        logits[..., places] = self.between(contents, places).diagonal(dim1=-2, dim2=-1)
        return self._normalised(logits).exp()

    def table(self) -> Float[Tensor, "*lead N N"]:
        """The full table, content x position. For inspection and tests; the scores never need it."""
        everything = torch.arange(self.keys, device=self.content.device)
        return self.between(everything, everything)

    def between(self, contents: Int[Tensor, " X"], places: Int[Tensor, " Y"]) -> Float[Tensor, "*lead X Y"]:
        """The part of the table with these contents at these places."""
        table = self.content[..., contents, :] @ self.place[..., places, :].mT
        return self._finish(table, None if self.bias is None else self.bias[..., None, places])

    def by_block(
        self,
        blocks: Int[Tensor, "M W"],
        heads: Int[Tensor, " X"] | None = None,
        order: Int[Tensor, "X M"] | None = None,
    ) -> Placement:
        """The chosen heads of a flat placement, with a block as a key: axis W, the tokens of a block, joins the leading
        axes.

        Contents and places of the first tokens of all blocks, then of the second tokens, and so on. `order` gives
        each head its own order of the blocks.
        """
        everything, keys = self.content.shape[:2]
        heads = torch.arange(everything, device=self.content.device) if heads is None else heads
        tokens = blocks.T[:, None] if order is None else blocks[order].movedim(-1, 0)  # W X M

        def take(value: Tensor, trailing: tuple[int, ...]) -> Tensor:
            index = tokens if len(value) == 1 else tokens + keys * (heads % len(value))[:, None]
            return value.reshape(-1, *trailing).index_select(0, index.flatten()).unflatten(0, index.shape)

        bias = None if self.bias is None else take(self.bias, ())
        rank = self.content.shape[-1:]
        return replace(self, content=take(self.content, rank), place=take(self.place, rank), bias=bias, sink=None)

    def both_ways(self, rows: slice, columns: slice) -> tuple[Float[Tensor, "*lead I J"], Float[Tensor, "*lead I J"]]:
        """The logits of the contents `rows` at the places `columns`; and of the contents `columns` at `rows`."""
        contents, places = self.content[..., rows, :], self.place[..., columns, :]
        if places.shape[-3] == 1 and contents.shape[-4] > 1:  # one large product for all heads
            here = (contents.flatten(-3, -2) @ places.squeeze(-3).mT).unflatten(-2, contents.shape[-3:-1])
        else:
            here = _products(contents, places)
        there = _products(self.place[..., rows, :], self.content[..., columns, :])
        bias = (None, None) if self.bias is None else (self.bias[..., None, columns], self.bias[..., rows, None])
        return self._finish(here, bias[0]), self._finish(there, bias[1])

    @cached_property
    def ceiling(self) -> Float[Tensor, "*lead"]:
        """An upper bound of every finite |M[a, b]| of a head, without the table: each plane at its best phase."""
        re, im = self.content.unflatten(-1, (-1, 2)).unbind(-1)
        reach = re.square().addcmul_(im, im).sqrt_().sum(-1).amax(-1)
        reach = reach if self.softcap is None else reach.clamp(max=self.softcap)
        if self.bias is None:
            return reach
        return reach + self.bias.masked_fill(self.bias.isinf(), 0).abs().amax(-1)

    def flat(self) -> Placement:
        """Merge all leading axes. What broadcasts stays small: row r of the heads uses row r modulo its length."""
        axes = len(self.lead)

        def merge(value: Tensor | None, trailing: int) -> Tensor | None:
            if value is None:
                return None
            own = value.shape[value.dim() - trailing :]
            lead = (1,) * (axes + trailing - value.dim()) + value.shape[: value.dim() - trailing]
            shared = next((at for at, size in enumerate(lead) if size > 1), axes)
            if lead[shared:] != self.lead[shared:]:
                value, shared = value.expand(*self.lead, *own), 0
            return value.reshape(-1, *own)

        content = self.content.reshape(-1, *self.content.shape[-2:])
        place = merge(self.place, 2)
        assert place is not None
        return replace(self, content=content, place=place, bias=merge(self.bias, 1), sink=merge(self.sink, 0))

    def rows(self, chosen: Int[Tensor, " X"]) -> Placement:
        """The chosen heads of a flat placement, for processing in pieces."""

        def part(value: Tensor | None) -> Tensor | None:
            return value if value is None or len(value) == 1 else value.index_select(0, chosen % len(value))

        place = part(self.place)
        assert place is not None
        everything = len(chosen) == len(self.content) and bool((chosen.diff() > 0).all())
        content = self.content if everything else self.content.index_select(0, chosen)
        return replace(self, content=content, place=place, bias=part(self.bias), sink=part(self.sink))

    def without_first(self) -> Placement:
        """The same heads with key 0 masked: it is removed from the normaliser and from every block."""
        bias = self.content.new_zeros(self.keys + 1) if self.bias is None else self.bias.clone()
        bias[..., 0] = -torch.inf
        return replace(self, bias=bias)

    def by_frequency(self) -> Placement:
        """Each frequency as a separate head, a rank-2 table; axis F joins the leading axes.

        Soft-capping, sinks and finite biases belong to the head as a whole and are dropped; masked positions
        stay masked.
        """
        return self._by_frequency

    @cached_property
    def _by_frequency(self) -> Placement:
        content = self.content.unflatten(-1, (-1, 2)).movedim(-2, -3)
        place = self.place.unflatten(-1, (-1, 2)).movedim(-2, -3)
        bias = None
        if self.windowed:
            assert self.bias is not None
            bias = torch.zeros_like(self.bias).masked_fill(self.bias.isinf(), -torch.inf).unsqueeze(-2)
        return Placement(content, place, bias)

    def _finish(self, raw: Tensor, bias: Tensor | None) -> Tensor:
        if self.softcap is not None:
            raw = raw.div_(self.softcap).tanh_().mul_(self.softcap)
        if bias is not None:
            raw += bias
        return raw


def _products(left: Float[Tensor, "*#lead I R"], right: Float[Tensor, "*#lead J R"]) -> Float[Tensor, "*lead I J"]:
    """left @ right.mT, rounded alike on any number of threads: several products are shared among them, a single one
    would be split."""
    if left.shape[:-2].numel() * right.shape[:-2].numel() > 1:
        return left @ right.mT
    return (left.expand(2, *left.shape) @ right.mT)[0]
