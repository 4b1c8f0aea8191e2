"""`ww.rotations`: which rotary planes each key head needs, measured on text, and what is lost without the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from ...cells.cells import check_writable, run_cells
from ...core.rotation_effect import rotation_effect
from ...errors import BadInput
from ...prompts.prompt import tokenize
from ...prompts.text import read_text
from ...results import Progress, Say, ignore_progress, ignore_sentence
from ...tracing import capture
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import AnyModel, Loading, open_model
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from ..ablation.measures import of_language_model
from .evaluate import evaluate as evaluate_plans
from .plan import BASELINES, RotationPlan, baseline, check_plan, most_needed, plane_table, ranks

LENGTHS = (64, 256)


@dataclass(frozen=True)
class EffectCell:
    """One document on one model."""

    weights: str
    dtype: str
    ids: tuple[int, ...]
    version: int = 1


def rotations(
    model: AnyModel,
    *,
    keep: int = 8,
    budget: str = "model",
    folder: str | Path | None = None,
    text: str | Path | None = None,
    length: Sequence[int] | None = None,
    samples: int = 2,
    evaluate: bool = False,
    draws: int = 5,
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> RotationPlan:
    """Which rotary planes to keep in every key head, so that attention changes least.

    The model reads `samples` documents of each `length` (64 and 256 tokens), cut from a .txt file or from a story that
    comes with the package. The planes kept are those whose rotation changes attention most, `keep` per key head:
    budget "model" spreads them over all heads of the model, budget "head" keeps as many in each head, as kernels for
    latent attention need. With `evaluate`, further documents of the same text measure the divergence from the
    unmodified model and the loss, beside copying and binding, for the plan and for other criteria: the product of
    norms, the fastest, the slowest, evenly spaced and random planes (`draws` times).

    >>> plan = ww.rotations("models/stories15M", keep=8)                   # doctest: +SKIP
    >>> with ww.gate(plan_model, freeze=plan.frozen()): ...                # doctest: +SKIP
    """
    check_plan(keep, budget)
    lengths = tuple(sorted(set(length or LENGTHS)))
    if min(lengths) < 8 or samples < 1 or draws < 1:
        raise BadInput(
            f"lengths of 8 tokens or more, and at least one sample and draw; got {lengths}, {samples}, {draws}"
        )
    if folder is not None:
        check_writable(Path(folder))
    written = read_text(text) if text else files("wherewhat.prompts").joinpath("ferry.txt").read_text(encoding="utf-8")
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    if opened.task is not None:
        raise BadInput(f"{opened.name} reads no text: rotations are planned for language models")
    context = stated_context(opened.model)
    if context is not None and max(lengths) > context:
        raise BadInput(f"the model takes {context} tokens, got a length of {max(lengths)}")
    documents = cut(opened.tokenizer, written, lengths, samples * (1 + evaluate))
    weights, dtype = model_hash(opened.model), dtype_name(opened.model)
    cells = [EffectCell(weights, dtype, ids) for some in documents.values() for ids in some[:samples]]
    results: list[dict[str, Tensor]] = []

    def compute(cell: EffectCell) -> dict[str, Tensor]:
        return measure_document(opened.model, cell)

    for result in run_cells(None if folder is None else Path(folder) / "cells", cells, compute, "documents"):
        results.append(result)
        progress("documents", len(results), len(cells))
    layers, groups = results[0]["layers"].tolist(), results[0]["groups"].tolist()
    effect, norm = (torch.stack([one[name] for one in results]).mean(0) for name in ("effect", "norm"))
    check_plan(keep, budget, effect.shape[-1])
    kept = most_needed(effect, keep, budget)
    losses = None
    if evaluate:
        plans = {("plan", 0): kept}
        plans |= {(name, 0): baseline(name, norm, keep) for name in BASELINES if name != "random"}
        plans |= {("random", draw): baseline("random", norm, keep, seed + draw) for draw in range(draws)}
        losses = evaluate_plans(
            opened.model, plans, layers, groups,
            {size: [torch.tensor(ids, device=entry_device(opened.model)) for ids in some[samples:]]
             for size, some in documents.items()},
            of_language_model(opened.model, opened.tokenizer, samples=8, seed=seed), seed,
            lambda done: progress("evaluating", done, 1),
        )  # fmt: skip
    tensors = {"effect": effect, "norm": norm, "rank": ranks(effect), "kept": kept}
    about = {
        "model": opened.name or "model", "weights": weights, "dtype": dtype, "keep": keep, "budget": budget,
        "planes": effect.shape[-1], "layers": layers, "groups": groups, "lengths": list(lengths), "samples": samples,
        "text": str(text) if text else None, "draws": draws, "seed": seed,
    }  # fmt: skip
    plan = RotationPlan(plane_table(effect, norm, kept, layers, results[0]["angles"]), losses, about, tensors)
    if folder is not None:
        plan.save(folder)
    return plan


def cut(tokenizer: Any, text: str, lengths: Sequence[int], number: int) -> dict[int, list[tuple[int, ...]]]:
    """For each length as many documents from the text, one after the other, each behind the model's first token."""
    ids, _ = tokenize(tokenizer, text, special=False)
    opening = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    documents: dict[int, list[tuple[int, ...]]] = {}
    for length in lengths:
        step = length - len(opening)
        if len(ids) < step * number:
            needed = f"{number} documents of {length} tokens need {step * number:,}"
            raise BadInput(f"the text is too short: it has {len(ids):,} tokens, {needed}")
        documents[length] = [(*opening, *ids[at * step : (at + 1) * step]) for at in range(number)]
    return documents


def measure_document(model: Any, cell: EffectCell) -> dict[str, Tensor]:
    """Effect and norm of every plane, summed over the query heads of each key head: (L, K, F)."""
    ids = torch.tensor([cell.ids], device=entry_device(model))
    trace = capture(model, ids, queries=range(1, len(cell.ids)))
    found = rotation_effect(trace)
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
