"""`ww.rotations`: which rotary planes each key head needs, measured on text, and what is lost without the others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import torch
from torch import Tensor

from ...cells.cells import check_writable, run_cells
from ...errors import BadInput
from ...prompts import Prompt
from ...prompts.documents import packaged_documents
from ...prompts.text import read_text
from ...results import Progress, Say, ignore_progress, ignore_sentence
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import AnyModel, Loading, open_model
from ...tracing.self_check import stated_context
from ..stats import ENOUGH_PROMPTS, interval, resamples
from .calibrate import Calibration, Ids, calibrate, cut, opening, shuffled_text, tokens_of
from .evaluate import Material, TrialCell, copies, digest_of_plans, lists_that_fit, measure_plans
from .plan import BASELINES, Kept, RotationPlan, baseline, check_plan, most_needed, plane_table, ranks, shuffled

LENGTHS = (64, 256)
SEQUENCES = 4  # of copying and binding, at least


def rotations(
    model: AnyModel,
    prompts: Sequence[Prompt] | None = None,
    *,
    keep: int = 8,
    budget: str = "model",
    folder: str | Path | None = None,
    text: str | Path | None = None,
    length: Sequence[int] | None = None,
    samples: int = 2,
    evaluate: bool = False,
    test_length: Sequence[int] | None = None,
    draws: int = 5,
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> RotationPlan:
    """Which rotary planes to keep in every key head, so that attention changes least.

    The model reads `prompts`, or `samples` documents of each `length` (64 and 256 tokens), cut from a .txt file or from
    the prose that comes with the package. The planes kept are those whose rotation changes attention most, `keep` per
    key head: budget "model" spreads them over all heads of the model, budget "head" keeps as many in each head, as
    kernels for latent attention need.

    With `evaluate`, documents that follow in the same text, of each `test_length` (default: as `length`), measure the
    divergence from the unmodified model and the loss; random tokens and their copy, and the binding task, fill the same
    lengths. The plan is compared with other criteria, each with `keep` planes in every key head (the product of norms,
    the fastest, the slowest, evenly spaced and random planes, `draws` times), with norms under the same budget, and
    with two controls (its scores shuffled over heads; calibrated on shuffled text). The text is also read with other
    numbers of planes.

    >>> plan = ww.rotations("models/stories15M", keep=8)                   # doctest: +SKIP
    >>> with ww.gate(model, plan): ...                                     # doctest: +SKIP
    """
    check_plan(keep, budget)
    lengths, test_lengths = tuple(sorted(set(length or LENGTHS))), tuple(sorted(set(test_length or length or LENGTHS)))
    if prompts is not None:
        if length:
            raise BadInput("length is for text; prompts have their own, and test_length is for those of the evaluation")
        if not prompts or min(len(prompt.ids) for prompt in prompts) < 2:
            raise BadInput("rotations need at least one prompt, of two tokens or more")
        lengths = tuple(sorted({len(prompt.ids) for prompt in prompts}))
    if (prompts is None and min(lengths) < 8) or min(test_lengths) < 8 or samples < 1 or draws < 1:
        given = ", ".join(map(str, sorted({*lengths, *test_lengths})))
        raise BadInput(
            f"lengths of 8 tokens or more, at least one sample and draw; got {given} tokens, {samples} and {draws}"
        )
    if test_length and not evaluate:
        raise BadInput("a test length needs evaluate")
    if folder is not None:
        check_writable(Path(folder))
    written = read_text(text) if text else "\n\n".join(packaged_documents().values())
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    if opened.task is not None:
        raise BadInput(f"{opened.name} reads no text: rotations are planned for language models")
    context = stated_context(opened.model)
    longest = max(*lengths, *test_lengths) if evaluate else max(lengths)
    if context is not None and longest > context:
        raise BadInput(f"the model takes {context} tokens, got a length of {longest}")
    ids = tokens_of(opened.tokenizer, written)
    if prompts is None:
        cut(opened.tokenizer, ids, max(lengths), samples)  # a text that is too short is refused with its largest need
        documents = [one for size in lengths for one in cut(opened.tokenizer, ids, size, samples)]
    else:
        documents = [prompt.ids for prompt in prompts]
    start = samples * max(lengths)  # test documents follow all calibration documents
    tests = {size: cut(opened.tokenizer, ids, size, samples, start) for size in test_lengths} if evaluate else {}
    planes = calibrate(opened.model, [documents[0][:8]], None).effect.shape[-1]
    check_plan(keep, budget, planes)  # before a long calibration
    found = calibrate(opened.model, documents, folder, progress)
    kept = most_needed(found.effect, keep, budget)
    losses = None
    if evaluate:
        first = len(opening(opened.tokenizer))
        control = calibrate(opened.model, [shuffled_text(one, first, seed) for one in documents], folder, progress)
        criteria = by_criterion(found, control, keep, budget, draws, seed)
        steps = {step: most_needed(found.effect, step, budget) for step in others(planes, keep)}
        losses = compare(opened.model, opened.tokenizer, found, criteria, steps, keep, tests, samples, seed, folder,
                         progress)  # fmt: skip
    tensors = {"effect": found.effect, "norm": found.norm, "rank": ranks(found.effect), "kept": kept}
    about = {
        "model": opened.name or "model", "weights": model_hash(opened.model), "dtype": dtype_name(opened.model),
        "keep": keep, "budget": budget, "planes": planes, "layers": found.layers, "groups": found.groups,
        "lengths": list(lengths), "documents": hashlib.sha256(repr(documents).encode()).hexdigest(),
        "samples": samples if prompts is None else len(prompts), "text": str(text) if text else None, "draws": draws,
        "seed": seed,
    }  # fmt: skip
    plan = RotationPlan(plane_table(found.effect, found.norm, kept, found.layers, found.angles), losses, about, tensors)
    if folder is not None:
        plan.save(folder)
    return plan


def others(planes: int, keep: int) -> list[int]:
    """Other numbers of planes for the curve of loss against number kept.

    >>> others(32, 8)
    [1, 2, 4, 16, 24]
    """
    return sorted({max(1, planes * part // 32) for part in (1, 2, 4, 8, 16, 24)} - {keep})


def by_criterion(
    found: Calibration, control: Calibration, keep: int, budget: str, draws: int, seed: int
) -> dict[tuple[str, int], Kept]:
    """What the plan, its baselines and its controls keep, by criterion and draw."""
    kept = {("plan", 0): most_needed(found.effect, keep, budget)}
    if budget == "model":
        kept["norm over the model", 0] = most_needed(found.norm, keep, budget)
    for name in BASELINES:
        for draw in range(draws if name == "random" else 1):
            kept[name, draw] = baseline(name, found.norm, keep, seed + draw)
    kept["shuffled heads", 0] = most_needed(shuffled(found.effect, seed), keep, budget)
    kept["shuffled text", 0] = most_needed(control.effect, keep, budget)
    return kept


def compare(
    model: Any, tokenizer: Any, found: Calibration, criteria: dict[tuple[str, int], Kept], steps: dict[int, Kept],
    keep: int, tests: dict[int, list[Ids]], samples: int, seed: int, folder: str | Path | None, progress: Progress,
) -> pd.DataFrame:  # fmt: skip
    """One row per criterion, number kept, draw, length and measure."""
    labels = [("none", 0, keep), *((name, draw, keep) for name, draw in criteria)]
    trials: list[tuple[int, Material, list[Kept], list[tuple[str, int, int]]]] = []
    for size, documents in tests.items():
        text = Material(documents=torch.tensor(documents))
        on_text = [*labels, *(("plan", 0, step) for step in steps)]
        trials.append((size, text, [*criteria.values(), *steps.values()], on_text))
        number = max(samples, SEQUENCES)
        asked = lists_that_fit(tokenizer, size, number, seed)
        tasks = Material(copies=copies(tokenizer, size, number, seed), asked=asked)
        trials.append((size, tasks, [*criteria.values()], labels))
    weights, dtype = model_hash(model), dtype_name(model)
    order = [TrialCell(weights, dtype, material.digest, digest_of_plans(plans)) for _, material, plans, _ in trials]
    cells = {cell: (material, plans) for cell, (_, material, plans, _) in zip(order, trials, strict=True)}

    def compute(cell: TrialCell) -> dict[str, Tensor]:
        return measure_plans(model, *cells[cell], found)

    rows = []
    results = run_cells(None if folder is None else Path(folder) / "cells", order, compute, "trials")
    for done, (result, (size, _, _, names)) in enumerate(zip(results, trials, strict=True), 1):
        rows += loss_rows(result, names, size, seed)
        progress("evaluating", done, len(trials))
    return pd.DataFrame(rows)


def loss_rows(
    result: dict[str, Tensor], labels: Sequence[tuple[str, int, int]], length: int, seed: int
) -> list[dict[str, Any]]:
    """The mean of every measure under every plan, and its 95 % interval over documents, sequences or prompts: NaN if
    there are too few of them."""
    rows = []
    for measure, values in result.items():
        low = high = torch.full((len(values),), torch.nan)
        if values.shape[1] >= ENOUGH_PROMPTS:
            low, high = interval(resamples(values.shape[1], seed) @ values.T)
        for at, (criterion, draw, keep) in enumerate(labels):
            row = {"criterion": criterion, "keep": keep, "draw": draw, "length": length, "measure": measure}
            rows.append(
                row | {"value": float(values[at].mean()), "low": float(low[at]), "high": float(high[at]),
                       "units": values.shape[1]}
            )  # fmt: skip
    return rows
