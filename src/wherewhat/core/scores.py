"""Scores of a trace: one value per head, or per head and frequency, of every layer."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import BadInput
from .exclusion import Exclusion
from .exclusion import exclusion as placement_exclusion
from .frequency import FrequencyUse
from .frequency import frequency_use as placement_use
from .placement import Placement
from .swaps import Weighting, score_blocks
from .swaps import entropy as placement_entropy
from .trace import Trace
from .walk import Measure, every_layer

EXCLUSION = Measure(placement_exclusion)
ENTROPY = Measure(lambda placement: (placement_entropy(placement),))
USE = Measure(placement_use, frequencies=True)


@dataclass(frozen=True)
class Scores:
    """Positional and symbolic scores in [0, 1], and how many swaps were skipped: neither block receives attention."""

    positional: Float[Tensor, "*axes"]
    symbolic: Float[Tensor, "*axes"]
    skipped: Float[Tensor, "*axes"]


def score(
    trace: Trace, blocks: Sequence[tuple[int, int]] | None = None, tau: float = 1e-4, without_first: bool = False
) -> Scores:
    """Positional and symbolic score of every head: (B, L, H).

    `blocks` are spans (start, stop) of equal length before the query, None for one token per block; gaps are allowed.
    `without_first` removes key 0, the usual attention sink, from the softmax and from the blocks.

    >>> scores = ww.score(ww.capture(model, input_ids), blocks=[(4, 9), (9, 14), (14, 19)])     # doctest: +SKIP
    >>> scores.positional.shape                                                                # doctest: +SKIP
    torch.Size([B, L, H])
    """
    return _score(trace, blocks, tau, without_first, frequencies=False)


def score_frequencies(
    trace: Trace, blocks: Sequence[tuple[int, int]] | None = None, tau: float = 1e-4, without_first: bool = False
) -> Scores:
    """Positional and symbolic score of every frequency of every head, taken alone: (B, L, H, F), ID 1 (fastest) first.

    The non-rotary dimensions, if a model has any, are the last entry (ID 0, angle 0).

    >>> ww.score_frequencies(trace).symbolic[0, 12, 3, -1]              # doctest: +SKIP
    tensor(0.9987)
    """
    return _score(trace, blocks, tau, without_first, frequencies=True)


def exclusion(trace: Trace) -> Exclusion:
    """Variance and deviation bounds of the exclusion principle for every head: (B, L, H).

    >>> sides = ww.exclusion(trace)                                     # doctest: +SKIP
    >>> bool((sides.variance <= sides.bound).all())                     # doctest: +SKIP
    True
    """
    return Exclusion(*every_layer(trace, EXCLUSION)[0])


def entropy(trace: Trace) -> Float[Tensor, "B L H"]:
    """Normalised entropy of each head's attention: (B, L, H); 1 is uniform.

    >>> ww.entropy(trace)[0, 12, 3]                                     # doctest: +SKIP
    tensor(0.4210)
    """
    return every_layer(trace, ENTROPY)[0][0]


def frequency_use(trace: Trace) -> FrequencyUse:
    """Norm and maximum of the logits of every frequency of every head: (B, L, H, F).

    >>> ww.frequency_use(trace).maximum[0, 12, 3].argmax() + 1          # doctest: +SKIP
    tensor(29)
    """
    return FrequencyUse(*every_layer(trace, USE)[0])


def _score(
    trace: Trace, blocks: Sequence[tuple[int, int]] | None, tau: float, without_first: bool, frequencies: bool
) -> Scores:
    spans = block_spans(blocks, trace.keys, without_first)
    (results,) = every_layer(trace, swap_measure(trace, spans, [Weighting(tau, without_first)], frequencies))
    return Scores(*results)


def swap_measure(
    trace: Trace, blocks: Sequence[tuple[int, int]], weightings: Sequence[Weighting], frequencies: bool = False
) -> Measure:
    """The scores of heads, or of their frequencies, at several weightings: three tensors for each, as in `Scores`."""
    index = block_index(blocks, trace.keys)
    for one in weightings:
        check_tau(one.tau)

    def compute(placement: Placement) -> tuple[Tensor, ...]:
        placement = placement.by_frequency() if frequencies else placement
        found = score_blocks(placement, index.to(placement.content.device), weightings)
        return tuple(tensor for of_weighting in zip(*found, strict=True) for tensor in of_weighting)

    return Measure(compute, frequencies)


def block_index(blocks: Sequence[tuple[int, int]] | None, keys: int, without_first: bool = False) -> Int[Tensor, "M W"]:
    """The token indices of each block; refuses blocks that cannot be swapped.

    >>> block_index([(1, 3), (3, 5)], keys=6)
    tensor([[1, 2],
            [3, 4]])
    """
    spans = block_spans(blocks, keys, without_first)
    lengths = {stop - start for start, stop in spans}
    if len(lengths) > 1:
        raise BadInput(f"blocks of different lengths {sorted(lengths)} cannot be swapped at level keys")
    return torch.tensor([range(start, stop) for start, stop in spans], device="cpu")


def block_spans(
    blocks: Sequence[tuple[int, int]] | None, keys: int, without_first: bool = False
) -> list[tuple[int, int]]:
    """Spans of any lengths before the query; refuses fewer than two, and spans that overlap.

    >>> block_spans(None, keys=3)
    [(0, 1), (1, 2), (2, 3)]
    """
    spans = [(at, at + 1) for at in range(keys)] if blocks is None else [_span(block) for block in blocks]
    for start, stop in spans:
        if start < 0 or stop <= start:
            raise BadInput(f"block ({start}, {stop}) is empty or starts before the prompt")
        if start <= keys < stop:
            raise BadInput(f"block ({start}, {stop}) contains the query, which stands at {keys}")
        if stop > keys:
            raise BadInput(f"block ({start}, {stop}) exceeds the prompt: {keys} tokens come before the query")
    ordered = sorted(spans)
    for (start, stop), (later, end) in pairwise(ordered):
        if later < stop:
            raise BadInput(f"blocks ({start}, {stop}) and ({later}, {end}) overlap")
    if without_first:
        spans = [span for span in spans if span[0] > 0]
    if len(spans) < 2:
        raise BadInput(f"{len(spans)} block(s) to swap; at least two are needed")
    return spans


def _span(block: Sequence[int]) -> tuple[int, int]:
    try:
        start, stop = map(operator.index, block)
    except (TypeError, ValueError) as error:
        raise BadInput(f"a block is a pair (start, stop) of token positions, got {block!r}") from error
    return start, stop


def check_tau(tau: float) -> None:
    if math.isnan(tau) or tau <= 0:
        raise BadInput(f"tau must be positive, got {tau}; inf gives the plain mean over swaps")
