"""How far the heads of a real model hold: predicted from short prompts, and measured on prompts that really are longer.

A longer prompt has more statements of its own kind behind its beginning; everything after them keeps its distance to
the query. Each head is followed at the token of the statements that it attends to most in the short prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.stats import rankdata
from torch import Tensor

from ..capture import capture
from ..core.stretch import stretch
from ..core.trace import Trace
from ..errors import BadInput
from ..files import write_tables
from ..prompts.prompt import Prompt
from .cells import run_cells
from .profile import model_hash
from .stretching import loss_length

CLOSE = 1.5  # a prediction within this factor counts as close


@dataclass(frozen=True)
class HoldingCell:
    """One prompt, lengthened, on one model; `tokens` are those that its heads are followed at."""

    weights: str
    ids: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    version: int = 1


@dataclass(frozen=True)
class Holding:
    """`heads`: a row a head, with its attention at the prompts' own length and the length at which that is halved,
    predicted and measured (infinite: not within the lengths). `curves`: its attention at every length measured.

    >>> found.heads.query("predicted < 1000")                         # doctest: +SKIP
    """

    heads: pd.DataFrame
    curves: pd.DataFrame

    def save(self, folder: str | Path) -> None:
        write_tables(folder, vars(self))

    def agreement(self) -> dict[str, float]:
        """How well the prediction does: rank correlation over heads of what is left of the attention at the longest
        length, the mean absolute error of it, and of the heads that really lose their token the share whose length
        is predicted within a factor of 1.5."""
        if self.curves.empty:
            return {}
        last: Any = self.curves.query(f"length == {self.curves['length'].max()}").merge(
            self.heads, on=["layer", "head"]
        )
        expected, seen = (
            last[f"{name}_x"].to_numpy() / last["attention"].to_numpy() for name in ("predicted", "measured")
        )
        lost: Any = self.heads[np.isfinite(self.heads["measured"])]
        apart = np.abs(np.log(lost["predicted"].to_numpy() / lost["measured"].to_numpy()))
        return {
            "rank correlation": float(np.corrcoef(rankdata(expected), rankdata(seen))[0, 1]),
            "mean error": float(np.abs(expected - seen).mean()),
            "lost": len(lost),
            "close": float((apart <= np.log(CLOSE)).mean()) if len(lost) else float("nan"),
        }


def holding(
    model: Any,
    prompts: Sequence[Prompt],
    longest: int,
    folder: Path | None = None,
    *,
    measure: Sequence[int] = (),
    fillers: Sequence[Sequence[tuple[int, ...]]] = (),
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Holding:
    """Predict from the prompts alone up to `longest` tokens; run the model at the lengths of `measure` only, where
    prompts grow by their `fillers`, statements of the same width.

    >>> found = holding(model, binding(tokenizer, pairs=16, samples=4), longest=2048)             # doctest: +SKIP
    """
    tokens = {len(prompt.ids) for prompt in prompts}
    if len(tokens) > 1 or not all(len(prompt.blocks) > 2 for prompt in prompts):
        raise BadInput("the prompts must have equal lengths, with three or more blocks each")
    (own,) = tokens
    width, grid = prompts[0].blocks[0][1] - prompts[0].blocks[0][0], sorted(set(measure))
    if longest < own + width or (grid and not own + width <= grid[0] <= grid[-1] <= longest):
        raise BadInput(f"lengths go from {own + width}, one statement beyond the prompts' own, to {longest}")
    weights, total = model_hash(model), len(prompts) * (1 + len(grid))
    predicted, before, cells, layers = [], [], [], []
    for number, prompt in enumerate(prompts):
        trace = capture(model, torch.tensor([prompt.ids]))
        layers, followed = trace.layers, most_attended(trace, prompt)
        predicted.append(predict(trace, prompt, followed, longest))
        before.append(attention_on(trace, followed))
        progress("short prompts", number + 1, total)
        more = fillers[number] if fillers else ()
        longer = [lengthen(prompt, length, seed + number, more) for length in grid]
        cells += [HoldingCell(weights, ids, tuple(map(tuple, followed.tolist()))) for ids in longer]

    def compute(cell: HoldingCell) -> dict[str, Tensor]:
        seen = capture(model, torch.tensor([cell.ids]))
        return {"attention": attention_on(seen, torch.tensor(cell.tokens) + len(cell.ids) - own)}

    after: list[Tensor] = []
    for cell, result in zip(cells, run_cells(folder, cells, compute, "runs"), strict=True):
        after.append(result["attention"])
        progress(f"{len(cell.ids)} tokens", len(prompts) + len(after), total)
    each = len(grid)
    measured = [torch.stack([own_length, *after[each * at : each * (at + 1)]]) for at, own_length in enumerate(before)]
    actual = torch.tensor([len(cell.ids) for cell in cells]).view(len(prompts), each).double().mean(0).round().long()
    lengths = torch.tensor([own, *actual.tolist()])
    return Holding(*_tables(layers, lengths, torch.stack(predicted).mean(0), torch.stack(measured).mean(0)))


def most_attended(trace: Trace, prompt: Prompt) -> Int[Tensor, "L H"]:
    """The token of the statements that each head attends to most."""
    start, stop = prompt.blocks[0][0], prompt.blocks[-1][1]
    rows = [trace.attention_rows(layer)[0, :, start:stop] for layer in range(len(trace.layers))]
    return torch.stack([row.argmax(-1) for row in rows]).cpu() + start


def attention_on(trace: Trace, tokens: Int[Tensor, "L H"]) -> Float[Tensor, "L H"]:
    """Each head's attention on a token of its own."""
    rows = torch.stack([trace.attention_rows(layer)[0] for layer in range(len(trace.layers))]).cpu()
    return rows.gather(2, tokens[..., None])[..., 0]


def predict(trace: Trace, prompt: Prompt, tokens: Int[Tensor, "L H"], longest: int) -> Float[Tensor, "L H X"]:
    """Attention on these tokens at every length from the prompt's own on, from the prompt alone.

    What is inserted is like the statements that are not asked about.
    """
    neutral = torch.zeros(1, len(prompt.ids), dtype=torch.bool)
    for number, block in enumerate(prompt.blocks):
        neutral[:, slice(*block)] = number != prompt.target
    start = prompt.blocks[0][0]
    curves = []
    for layer in range(len(trace.layers)):
        far = stretch(trace, layer, neutral, longest, start)
        own = far.logits[0].gather(1, tokens[layer][:, None, None].expand(-1, 1, far.logits.shape[-1]))[:, 0]
        curves.append((own - far.log_total[0]).exp())
    return torch.stack(curves).float().cpu()


def lengthen(prompt: Prompt, length: int, seed: int, fillers: Sequence[tuple[int, ...]] = ()) -> tuple[int, ...]:
    """The prompt with as many more statements behind its beginning as fit: fillers, or its own that are not asked
    about, in random order, each again only when all were used."""
    pool = list(fillers) or [
        prompt.ids[slice(*block)] for number, block in enumerate(prompt.blocks) if number != prompt.target
    ]
    start, draw, more = prompt.blocks[0][0], random.Random(seed), []
    while len(prompt.ids) + len(more) < length:
        more += [token for statement in draw.sample(pool, len(pool)) for token in statement]
    kept = (length - len(prompt.ids)) // len(pool[0]) * len(pool[0])
    return (*prompt.ids[:start], *more[:kept], *prompt.ids[start:])


def fillers_for(prompts: Sequence[Prompt], others: Sequence[Prompt]) -> list[list[tuple[int, ...]]]:
    """For each prompt the statements of other prompts, of its own width, that do not begin like the one asked about."""
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
    return pd.DataFrame(heads), pd.DataFrame(curves if len(lengths) > 1 else [], columns=list(curves[0]))
