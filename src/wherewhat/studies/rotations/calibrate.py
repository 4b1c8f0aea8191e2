"""The documents that rotations are measured on, and the effect of every plane over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...cells.cells import run_cells
from ...core.rotation_effect import rotation_effect
from ...errors import BadInput
from ...prompts.prompt import tokenize
from ...results import Progress, ignore_progress
from ...tracing import capture
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.offload import entry_device

Ids = tuple[int, ...]
PAIRS = 2**22  # of queries and keys per document: longer ones than 2,048 tokens are seen from fewer queries
FEWEST = 64  # queries


@dataclass(frozen=True)
class EffectCell:
    """One document on one model."""

    weights: str
    dtype: str
    ids: Ids
    version: int = 3


@dataclass(frozen=True)
class Calibration:
    """Mean effect and norm of every plane of every key head (L, K, F), with the layers, groups and angles."""

    effect: Tensor
    norm: Tensor
    layers: list[int]
    groups: list[int]
    angles: Tensor

    @property
    def present(self) -> Tensor:
        """Which planes there are (L, K, F)."""
        return ~self.effect.isnan()


def opening(tokenizer: Any) -> Ids:
    return () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)


def cut(tokenizer: Any, ids: Sequence[int], length: int, number: int, start: int = 0) -> list[Ids]:
    """Consecutive documents of `length` tokens each, the first of which is the model's BOS token, if it has one."""
    first = opening(tokenizer)
    step = length - len(first)
    if len(ids) < start + step * number:
        needed = f"{number} documents of {length} tokens need {start + step * number:,}"
        raise BadInput(f"the text is too short: it has {len(ids):,} tokens, {needed}")
    return [(*first, *ids[start + at * step : start + (at + 1) * step]) for at in range(number)]


def tokens_of(tokenizer: Any, text: str) -> Ids:
    """The token ids of a text, without special tokens."""
    return tuple(tokenize(tokenizer, text, special=False)[0])


def shuffled_text(ids: Ids, first: int, seed: int = 0) -> Ids:
    """A document with its tokens in random order, except for the `first` ones."""
    order = torch.randperm(len(ids) - first, generator=torch.Generator().manual_seed(seed)) + first
    return (*ids[:first], *(ids[at] for at in order.tolist()))


def calibrate(
    model: Any, documents: Sequence[Ids], folder: str | Path | None, progress: Progress = ignore_progress
) -> Calibration:
    """Measure every document, or read its cell, and average."""
    weights, dtype = model_hash(model), dtype_name(model)
    cells = [EffectCell(weights, dtype, tuple(ids)) for ids in documents]
    results: list[dict[str, Tensor]] = []
    for result in run_cells(
        None if folder is None else Path(folder) / "cells", cells, partial(measure_document, model), "documents"
    ):
        results.append(result)
        progress("documents", len(results), len(cells))
    effect, norm = (torch.stack([one[name] for one in results]).mean(0) for name in ("effect", "norm"))
    layers, groups = results[0]["layers"].tolist(), results[0]["groups"].tolist()
    return Calibration(effect, norm, layers, groups, results[0]["angles"])


def queries_of(tokens: int) -> list[int]:
    """The positions at which a document is seen: all but the first. Of more than 2,048 tokens evenly spaced ones, so
    that the statistics of longer documents cost no more."""
    number = min(tokens - 1, max(FEWEST, PAIRS // tokens))
    return torch.linspace(1, tokens - 1, number, dtype=torch.float64).round().long().tolist()


def measure_document(model: Any, cell: EffectCell) -> dict[str, Tensor]:
    """Effect and norm of every plane, summed over the query heads of each key head: (L, K, F)."""
    ids = torch.tensor([cell.ids], device=entry_device(model))
    trace = capture(model, ids, queries=queries_of(len(cell.ids)), level="prompt")
    found = rotation_effect(trace)  # refuses positions that are added to embeddings
    kv_heads = [layer.keys.shape[1] for layer in trace.attention]
    groups = [layer.queries.shape[1] // heads for layer, heads in zip(trace.attention, kv_heads, strict=True)]
    grouped: dict[str, Tensor] = {}
    for name, values in found._asdict().items():
        full = values.new_full((len(groups), max(kv_heads), values.shape[-1]), torch.nan)
        for number, (heads, group) in enumerate(zip(kv_heads, groups, strict=True)):
            full[number, :heads] = values[0, number, : heads * group].unflatten(0, (heads, group)).sum(1)
        grouped[name] = full.cpu()
    sizes = {"layers": torch.tensor(trace.layers), "groups": torch.tensor(groups)}
    return grouped | sizes | {"angles": trace.angles[:, : trace.planes].contiguous()}
