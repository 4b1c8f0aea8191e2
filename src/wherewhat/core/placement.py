"""The placement table: the logit that every content would get at every position. All scores are computed from it.

The full table is never stored. Each logit is a short inner product of a content half and a place half, so only the two
halves are kept, and any part of the table is one small matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
        parts = (self.content * self.place).unflatten(-1, (-1, 2))
        raw = parts[..., 0, 0] + parts[..., 0, 1] if parts.shape[-2] == 1 else parts.sum((-1, -2))
        return self._finish(raw, slice(None), diagonal=True)

    def log_attention(self) -> Float[Tensor, "*lead keys"]:
        """The head's real attention row, as logarithms; with a sink it sums to less than one."""
        logits = self.logits()
        total = logits.logsumexp(-1, keepdim=True)
        if self.sink is not None:
            total = torch.logaddexp(total, self.sink.unsqueeze(-1))
        return logits - total

    def attention(self) -> Float[Tensor, "*lead keys"]:
        """The head's real attention row."""
        return self.logits().softmax(-1) if self.sink is None else self.log_attention().exp()

    def table(self) -> Float[Tensor, "*lead N N"]:
        """The full table, content x position. For inspection and tests; the scores never need it."""
        everything = torch.arange(self.keys, device=self.content.device)
        return self.between(everything, everything)

    def between(self, contents: Int[Tensor, " X"], places: Int[Tensor, " Y"]) -> Float[Tensor, "*lead X Y"]:
        """The part of the table with these contents at these places."""
        table = self.content[..., contents, :] @ self.place[..., places, :].mT
        return self._finish(table, places)

    def block_logits(
        self, contents: Int[Tensor, "X W"], places: Int[Tensor, "Y W"], workspace: Float[Tensor, " _"]
    ) -> Float[Tensor, "*lead W X Y"]:
        """The logits of each block's tokens at each block's places, first token at first place and so on.

        The result is written to `workspace`: allocating memory would cost more time than the arithmetic.
        """
        content = self.content.index_select(-2, contents.T.flatten()).unflatten(-2, contents.T.shape)
        place = self.place.index_select(-2, places.T.flatten()).unflatten(-2, places.T.shape)
        shape = (*content.shape[:-1], len(places))
        logits = torch.matmul(content, place.mT, out=workspace[: math.prod(shape)].view(shape))
        return self._finish(logits, places.T)

    def block_mass(
        self, contents: Int[Tensor, "X W"], places: Int[Tensor, "Y W"], workspace: Float[Tensor, " _"]
    ) -> Float[Tensor, "*lead X Y"]:
        """S: the unnormalised attention that the contents of each block receive at the places of each block."""
        return self.block_logits(contents, places, workspace).exp_().sum(-3)

    def block_log_mass(
        self, contents: Int[Tensor, "X W"], places: Int[Tensor, "Y W"], workspace: Float[Tensor, " _"]
    ) -> Float[Tensor, "*lead X Y"]:
        """log S, for logits of any size."""
        logits = self.block_logits(contents, places, workspace)
        return logits.squeeze(-3).clone() if contents.shape[1] == 1 else logits.logsumexp(-3)

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
        content = self.content if len(chosen) == len(self.content) else self.content.index_select(0, chosen)
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
        content = self.content.unflatten(-1, (-1, 2)).movedim(-2, -3)
        place = self.place.unflatten(-1, (-1, 2)).movedim(-2, -3)
        bias = None
        if self.windowed:
            assert self.bias is not None
            bias = torch.zeros_like(self.bias).masked_fill(self.bias.isinf(), -torch.inf).unsqueeze(-2)
        return Placement(content, place, bias)

    def _finish(self, raw: Tensor, places: Tensor | slice, diagonal: bool = False) -> Tensor:
        if self.softcap is not None:
            raw = raw.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            bias = self.bias[..., places]
            raw += bias if diagonal else bias.unsqueeze(-2)
        return raw
