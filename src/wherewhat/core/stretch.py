"""Stretch: what a head would do in a longer context, computed from one short prompt.

A logit depends only on a content and its distance from the query, so contents of the prompt can be placed at distances
that they never had. A longer context is the same prompt with neutral contents of its own inserted after its first
tokens. Every length up to the longest follows from one running sum; the model is not run at any of them. How a longer
context changes the inputs of deeper layers is not predicted: their contents stay those of the short prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import NotMeasurable
from .trace import AttentionLayer, Trace


@dataclass(frozen=True)
class Stretched:
    """The heads of a layer at every length from that of the prompt, T, up to the longest: X = longest - T + 1 lengths.

    `logits` are those of the prompt's tokens; only those of the first `start` tokens, which stay in place, change.
    `log_total` is the logarithm of the softmax denominator, `rival` the largest logit among the inserted contents
    (-inf at the first length).
    """

    logits: Float[Tensor, "B H T X"]
    log_total: Float[Tensor, "B H X"]
    rival: Float[Tensor, "B H X"]

    def attention(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H X"]:
        """The attention on one token of each prompt at every length."""
        return (self._of(tokens) - self.log_total).exp()

    def discrepancy(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H X"]:
        """The logit of one token of each prompt minus the largest other logit, at every length."""
        own = torch.nn.functional.one_hot(tokens, self.logits.shape[2]).bool()[:, None, :, None]
        others = self.logits.masked_fill(own, -torch.inf).amax(2)
        return self._of(tokens) - torch.maximum(others, self.rival)

    def _of(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B H X"]:
        return self.logits[torch.arange(len(tokens), device=tokens.device), :, tokens]


def stretch_logits(trace: Trace, layer: int, neutral: Bool[Tensor, "B T"], longest: int, start: int = 0) -> Stretched:
    """Logits of the heads of a layer as the context grows up to `longest` tokens.

    Contents are inserted after the first `start` tokens, which stay in place: each new position contributes the mean
    of exp(logit) there over all `neutral` contents of the prompt. Everything after it keeps its distance to the query.

    >>> far = stretch_logits(trace, layer=1, neutral=letters, longest=5000)                   # doctest: +SKIP
    >>> far.attention(path[:, 1])[0, 0, 100]                      # 100 tokens longer  # doctest: +SKIP
    """
    attention = trace.attention[layer]
    check_stretchable(attention)
    placement = trace.placements(layer)
    extra, device = longest - (trace.query + 1), placement.content.device
    contents = placement.content.double()  # B H T R

    def logits(of: Tensor, places: Tensor) -> Tensor:
        raw = of @ attention.rotation.wave(places).flatten(-2).double().mT
        return raw if placement.softcap is None else placement.softcap * (raw / placement.softcap).tanh()

    drawn = logits(contents, start - 1 - torch.arange(extra, device=device))  # of every content at every new position
    drawn = drawn.masked_fill(~neutral[:, None, :, None], -torch.inf)
    count = neutral.sum(-1).double().log()[:, None, None]
    inserted = torch.nn.functional.pad((drawn.logsumexp(2) - count).logcumsumexp(-1), (1, 0), value=-torch.inf)
    rival = torch.nn.functional.pad(drawn.amax(2).cummax(-1).values, (1, 0), value=-torch.inf)
    own = placement.logits().double()[..., None].expand(-1, -1, -1, extra + 1).clone()
    for token in range(start):
        own[:, :, token] = logits(contents[:, :, token], token - torch.arange(extra + 1, device=device))
    total = torch.logaddexp(own.logsumexp(2), inserted)
    if placement.sink is not None:
        total = torch.logaddexp(total, placement.sink.double().unsqueeze(-1))
    return Stretched(own, total, rival)


def check_stretchable(layer: AttentionLayer) -> None:
    """Refuse a layer with a positional bias or a window: its values at larger distances are not in the prompt."""
    if layer.bias is not None:
        raise NotMeasurable(f"layer {layer.index} has a positional bias or a window: it cannot be stretched")
