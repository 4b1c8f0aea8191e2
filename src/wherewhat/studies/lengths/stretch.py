"""The length at which each head of a language model loses its token: predicted from short prompts, and measured.

A prompt is made longer by inserting statements of its own kind after its first tokens; everything after them keeps its
distance to the query. Each head is followed at the token of the statements that it attends to most in the short prompt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.stats import spearmanr
from torch import Tensor

from ...cells.cells import run_cells
from ...core.stretch import stretch_logits
from ...core.trace import Trace
from ...errors import BadInput
from ...lab import Transformer
from ...prompts.binding import MOST_PAIRS, binding
from ...prompts.prompt import Prompt
from ...prompts.request import PromptRequest, make_prompts
from ...results import Progress, Result, Say, check_seed, ignore_progress, ignore_sentence, versions
from ...tracing import capture
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import AnyModel, Loading, is_lab_model, open_model
from ...tracing.self_check import stated_context
from .loss_length import loss_length

FARTHEST = 8192  # tokens to predict unless stated, if the model's context is no shorter
CLOSE = 1.5  # a prediction within this factor counts as close


@dataclass(frozen=True)
class StretchCell:
    """One longer prompt on one model; each head (L, H) is followed at one of the short prompt's `tokens`."""

    weights: str
    ids: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    version: int = 1


@dataclass(frozen=True)
class Stretch(Result, file="stretch.json", kind="stretch"):
    """Attention of every head on its token as the context grows.

    `heads`: one row per head, with its attention at the length of the short prompts and the length at which that is
    halved, predicted and measured (infinite: not within the lengths; NaN: not measured). `curves`: one row per head and
    measured length, with the attention predicted and measured there.

    >>> found.heads.query("predicted < 1000")                         # doctest: +SKIP
    """

    heads: pd.DataFrame
    curves: pd.DataFrame
    about: dict[str, Any]

    def agreement(self) -> dict[str, float]:
        """How good the prediction is, if anything was measured.

        Rank correlation over heads and mean absolute error of the share of attention that is left at the longest
        measured length; the number of heads that lose their token; and the share of these whose length is predicted
        within a factor of 1.5.
        """
        if self.curves.empty:
            return {}
        last: Any = self.curves.query(f"length == {self.curves['length'].max()}").merge(
            self.heads, on=["layer", "head"]
        )
        predicted, measured = (
            last[f"{name}_x"].to_numpy() / last["attention"].to_numpy() for name in ("predicted", "measured")
        )
        lost: Any = self.heads[np.isfinite(self.heads["measured"])]
        log_ratio = np.abs(np.log(lost["predicted"].to_numpy() / lost["measured"].to_numpy()))
        correlation: Any = spearmanr(predicted, measured)
        return {
            "rank correlation": float(correlation.statistic),
            "mean error": float(np.abs(predicted - measured).mean()),
            "lost": len(lost),
            "close": float((log_ratio <= np.log(CLOSE)).mean()) if len(lost) else float("nan"),
        }


def stretch(
    model: AnyModel,
    prompts: Sequence[Prompt] | None = None,
    *,
    folder: str | Path | None = None,
    longest: int | None = None,
    measure: Sequence[int] | None = None,
    pairs: int = 16,
    samples: int = 4,
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Stretch:
    """The length at which each head loses the token it attends to most, predicted from short prompts.

    `prompts` of equal length are given, or made: `samples` binding prompts of `pairs` statements. Lengths up to
    `longest` tokens are predicted (the model's context, at most 8192). The model is run at the lengths in `measure`
    only, to compare prediction and measurement; for that, binding prompts grow by statements of other prompts, given
    prompts by their own. With a `folder`, the result is saved there, and an interrupted run resumes.

    What deeper layers would make of a longer context does not show in a short prompt, so the first layers are
    predicted best.

    >>> ww.stretch("SmolLM2-135M-Instruct.Q4_1.gguf", longest=2048).heads              # doctest: +SKIP
    """
    if isinstance(model, Transformer) or (isinstance(model, (str, Path)) and is_lab_model(model)):
        raise BadInput("stretch is for language models; for a model of the lab, lengths predicts the same")
    check_seed(seed)
    lengths = sorted(set(measure or ()))
    if pairs < 3:
        raise BadInput(f"pairs must be at least 3, got {pairs}")
    if prompts is not None and not prompts:
        raise BadInput("at least one prompt is needed")
    request = PromptRequest(pairs=pairs, samples=samples)  # refuses what no model could take
    if longest is not None and lengths and lengths[-1] > longest:
        raise BadInput(f"measure: the longest length is {longest}, got {lengths[-1]}")
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    context = stated_context(opened.model)
    longest = min(context or FARTHEST, FARTHEST) if longest is None else longest
    most = max(longest, *lengths, 0)
    if context is not None and most > context:
        raise BadInput(f"the model's context is {context} tokens, got {most}")
    fillers: Sequence[Sequence[tuple[int, ...]]] = ()
    if prompts is None:
        prompts, _ = make_prompts(request, opened.tokenizer, context or FARTHEST, seed)
        made: dict[str, Any] = {"task": "binding", "pairs": pairs, "samples": samples}
        if lengths:
            fillers = fillers_for(prompts, binding(opened.tokenizer, MOST_PAIRS, samples=1, seed=seed + 1))
    else:
        made = {"samples": len(prompts)}
    say(f"Prompts: {len(prompts)}, of {len(prompts[0].ids)} tokens")
    weights = model_hash(opened.model)
    heads, curves = _measure(
        opened.model, weights, prompts, longest, None if folder is None else Path(folder) / "cells", measure=lengths,
        fillers=fillers, seed=seed, progress=progress,
    )  # fmt: skip
    about = {"model": opened.name, "revision": loading.get("revision"), "weights": weights}
    about |= {"dtype": dtype_name(opened.model), "longest": longest, "measure": lengths, "seed": seed, **made}
    found = Stretch(heads, curves, about | {"versions": versions("transformers")})
    if folder is not None:
        found.save(folder)
    return found


def _measure(
    model: Any,
    weights: str,
    prompts: Sequence[Prompt],
    longest: int,
    cells_folder: Path | None,
    *,
    measure: Sequence[int],
    fillers: Sequence[Sequence[tuple[int, ...]]],
    seed: int,
    progress: Progress,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables. At the lengths in `measure`, prompts grow by their `fillers`, or by their own statements."""
    tokens = {len(prompt.ids) for prompt in prompts}
    if len(tokens) > 1 or not all(len(prompt.blocks) > 2 for prompt in prompts):
        raise BadInput("the prompts must have equal lengths, with at least three blocks each")
    (own,) = tokens
    width, grid = prompts[0].blocks[0][1] - prompts[0].blocks[0][0], sorted(set(measure))
    if longest < own + width or (grid and not own + width <= grid[0] <= grid[-1] <= longest):
        raise BadInput(f"lengths range from {own + width}, one statement more than the short prompts, to {longest}")
    total = len(prompts) * (1 + len(grid))
    predicted, before, cells, layers = [], [], [], []
    for number, prompt in enumerate(prompts):
        trace = capture(model, torch.tensor([prompt.ids]))
        layers, followed = trace.layers, most_attended(trace, prompt)
        predicted.append(predict(trace, prompt, followed, longest))
        before.append(attention_on(trace, followed))
        progress("short prompts", number + 1, total)
        more = fillers[number] if fillers else ()
        longer = [lengthen(prompt, length, seed + number, more) for length in grid]
        cells += [StretchCell(weights, ids, tuple(map(tuple, followed.tolist()))) for ids in longer]

    def compute(cell: StretchCell) -> dict[str, Tensor]:
        seen = capture(model, torch.tensor([cell.ids]))
        return {"attention": attention_on(seen, torch.tensor(cell.tokens) + len(cell.ids) - own)}

    after: list[Tensor] = []
    for cell, result in zip(cells, run_cells(cells_folder, cells, compute, "runs"), strict=True):
        after.append(result["attention"])
        progress(f"{len(cell.ids)} tokens", len(prompts) + len(after), total)
    each = len(grid)
    measured = [torch.stack([own_length, *after[each * at : each * (at + 1)]]) for at, own_length in enumerate(before)]
    actual = torch.tensor([len(cell.ids) for cell in cells]).view(len(prompts), each).double().mean(0).round().long()
    lengths = torch.tensor([own, *actual.tolist()])
    return _tables(layers, lengths, torch.stack(predicted).mean(0), torch.stack(measured).mean(0))


def most_attended(trace: Trace, prompt: Prompt) -> Int[Tensor, "L H"]:
    """The token of the statements that each head attends to most."""
    start, stop = prompt.blocks[0][0], prompt.blocks[-1][1]
    rows = [trace.attention_rows(layer)[0, :, start:stop] for layer in range(len(trace.layers))]
    return torch.stack([row.argmax(-1) for row in rows]).cpu() + start


def attention_on(trace: Trace, tokens: Int[Tensor, "L H"]) -> Float[Tensor, "L H"]:
    """The attention of each head on its token."""
    rows = torch.stack([trace.attention_rows(layer)[0] for layer in range(len(trace.layers))]).cpu()
    return rows.gather(2, tokens[..., None])[..., 0]


def predict(trace: Trace, prompt: Prompt, tokens: Int[Tensor, "L H"], longest: int) -> Float[Tensor, "L H X"]:
    """Attention on these tokens at every length from that of the prompt on, from the prompt alone.

    The inserted contents are like the statements that are not asked about.
    """
    neutral = torch.zeros(1, len(prompt.ids), dtype=torch.bool)
    for number, block in enumerate(prompt.blocks):
        neutral[:, slice(*block)] = number != prompt.target
    start = prompt.blocks[0][0]
    curves = []
    for layer in range(len(trace.layers)):
        far = stretch_logits(trace, layer, neutral, longest, start)
        own = far.logits[0].gather(1, tokens[layer][:, None, None].expand(-1, 1, far.logits.shape[-1]))[:, 0]
        curves.append((own - far.log_total[0]).exp())
    return torch.stack(curves).float().cpu()


def lengthen(prompt: Prompt, length: int, seed: int, fillers: Sequence[tuple[int, ...]] = ()) -> tuple[int, ...]:
    """The prompt with as many statements inserted after its first tokens as fit.

    They are fillers, or its own statements that are not asked about, in random order; none is repeated before all were
    used.
    """
    pool = list(fillers) or [
        prompt.ids[slice(*block)] for number, block in enumerate(prompt.blocks) if number != prompt.target
    ]
    start, draw, more = prompt.blocks[0][0], random.Random(seed), []
    while len(prompt.ids) + len(more) < length:
        more += [token for statement in draw.sample(pool, len(pool)) for token in statement]
    kept = (length - len(prompt.ids)) // len(pool[0]) * len(pool[0])
    return (*prompt.ids[:start], *more[:kept], *prompt.ids[start:])


def fillers_for(prompts: Sequence[Prompt], others: Sequence[Prompt]) -> list[list[tuple[int, ...]]]:
    """For each prompt, statements of other prompts of equal width that do not begin like the one asked about."""
    made = []
    for prompt in prompts:
        width = prompt.blocks[0][1] - prompt.blocks[0][0]
        asked = "" if prompt.target is None else prompt.labels[prompt.target].split()[0]
        made.append(sorted({
            one.ids[slice(*block)]
            for one in others
            for block, label in zip(one.blocks, one.labels, strict=True)
            if block[1] - block[0] == width and label.split()[0] != asked
        }))  # fmt: skip
    return made


def _tables(
    layers: Sequence[int],
    lengths: Int[Tensor, " G"],
    predicted: Float[Tensor, "L H X"],
    measured: Float[Tensor, "G L H"],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    every = torch.arange(int(lengths[0]), int(lengths[0]) + predicted.shape[-1])
    heads, curves = [], []
    for layer, head in np.ndindex(*predicted.shape[:2]):
        at, values = {"layer": layers[layer], "head": head}, measured[:, layer, head]
        found = loss_length(lengths, values) if len(lengths) > 1 else float("nan")
        expected = loss_length(every, predicted[layer, head])
        heads.append(at | {"attention": float(values[0]), "predicted": expected, "measured": found})
        for number, length in enumerate(lengths.tolist()):
            both = {"predicted": float(predicted[layer, head, length - lengths[0]]), "measured": float(values[number])}
            curves.append(at | {"length": length} | both)
    return pd.DataFrame(heads), pd.DataFrame(curves).iloc[: None if len(lengths) > 1 else 0]
