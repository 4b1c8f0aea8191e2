"""Heads that stream: they see the first `sink` and the last `recent` tokens only, as with a bounded key-value cache.

A streaming head keeps its queries, keys and values; its mask hides the tokens that a bounded cache has dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import BadInput, NotMeasurable

SINK, RECENT = 4, 64
MASKED = ("eager", "sdpa", "wherewhat")  # attention functions that take a mask per head


@dataclass(frozen=True)
class Window:
    """The heads of one call of attention that stream, and what they see; the current token is one of the recent."""

    heads: Bool[Tensor, " H"]
    sink: int
    recent: int


@dataclass(frozen=True)
class Run:
    """Which tokens a forward pass runs: after `past` tokens in the cache; `first` is the first that is not padding."""

    past: int = 0
    first: Int[Tensor, " B"] | None = None

    @classmethod
    def of(cls, inputs: dict[str, Any]) -> Run:
        """From the arguments of the model."""
        cache, mask = inputs.get("past_key_values"), inputs.get("attention_mask")
        padded = isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask[:, 0].all())
        first = mask.long().argmax(-1) if padded and mask is not None else None
        return cls(0 if cache is None else int(cache.get_seq_length()), first)


def check_window(sink: int, recent: int) -> None:
    """Refuse windows in which a token would not see itself."""
    if sink < 0 or recent < 1:
        raise BadInput(f"sink is at least 0, recent at least 1; got {sink} and {recent}")


def seen(windows: Sequence[Window], queries: int, keys: int, run: Run) -> Bool[Tensor, "#B H Q T"]:
    """Which keys each query of each head sees, causality aside. Keys end with the last query.

    >>> window = Window(torch.tensor([True, False]), sink=1, recent=2)
    >>> seen([window], 1, 5, Run())[0, :, 0].long()
    tensor([[1, 0, 0, 1, 1],
            [1, 1, 1, 1, 1]])
    """
    last = max(run.past + queries, keys)  # a window of the model itself may have dropped the first keys
    places = torch.arange(last - keys, last)
    distance = places[keys - queries :, None] - places
    from_start = (places if run.first is None else places - run.first.cpu()[:, None])[..., None, None, :]
    shown = torch.ones(1, len(windows[0].heads), 1, 1, dtype=torch.bool)
    for window in windows:
        shown = shown & (~window.heads[:, None, None] | (from_start < window.sink) | (distance < window.recent))
    return shown


def narrowed(
    mask: Tensor | None, windows: Sequence[Window], query: Tensor, key: Tensor, run: Run
) -> Bool[Tensor, "#B H Q T"] | Tensor:
    """A mask of attention, boolean or additive, in which streaming heads do not see what they have dropped."""
    queries, keys = query.shape[2], key.shape[2]
    shown = seen(windows, queries, keys, run).to(query.device)
    if mask is None:
        causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        shown = shown & causal
        return torch.zeros(shown.shape, dtype=query.dtype, device=query.device).masked_fill(~shown, _least(query))
    mask = mask[..., :keys]
    return mask & shown if mask.dtype == torch.bool else mask.masked_fill(~shown, _least(mask))


def with_mask(
    name: str,
    windows: Sequence[Window],
    query: Tensor,
    key: Tensor,
    run: Run,
    args: tuple[Any, ...],
    given: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The further arguments of an attention function, with its mask narrowed."""
    if name not in MASKED:
        raise NotMeasurable(
            f"heads stream with the attention functions sdpa and eager only: load the model with "
            f"attn_implementation='sdpa', not {name!r}"
        )
    if args:
        return (narrowed(args[0], windows, query, key, run), *args[1:]), given
    return args, given | {"attention_mask": narrowed(given.get("attention_mask"), windows, query, key, run)}


def _least(like: Tensor) -> float:
    return torch.finfo(like.dtype).min
