"""How far a model of the lab generalises in length: accuracy and attention on sequences that grow on the left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...cells.cells import run_cells
from ...errors import BadInput
from ...lab import Transformer
from ...lab.transformer import Attend, Drop
from ...results import Explorable, Progress, ignore_progress
from ...tasks import TASKS, Sequences
from ...tasks.hops import PLACES, along_path
from ...tracing.fingerprint import weights_hash
from ..stats import wilson
from .loss_length import loss_table, predict_attention

# The length of training, then steps of 10 up to 100, of 100 up to 1,000 and of 500 up to 5,000, as in the paper.
GRID = (17, *range(20, 101, 10), *range(200, 1001, 100), *range(1500, 5001, 500))
PROMPTS = 200  # per length
TOKENS_PER_PASS = 16_384  # bounds the memory


@dataclass(frozen=True)
class LengthCell:
    """Some of the prompts of one length on one model: `first` up to, not including, `stop`."""

    weights: str
    task: str
    length: int
    prompts: int
    first: int
    stop: int
    seed: int
    version: int = 1


@dataclass(frozen=True)
class SharpenedCell(LengthCell):
    """The same with the logits of all heads sharpened."""

    sharpened: bool = True


NEEDS = {
    "about": {"task": str, "prompts": int},
    "accuracy": ["length", "hops", "accuracy", "low", "high"],
    "heads": ["length", "layer", "head", *PLACES],
    "loss": ["layer", "head", "attention", "measured", "predicted"],
}


@dataclass(frozen=True)
class Lengths(Explorable, file="lengths.json", kind="lengths", needs=NEEDS):
    """Accuracy and attention of a model of the lab at every length.

    `accuracy`: one row per length and number of hops, 0 for all of them. `heads`: one row per length and head, with the
    mean attention of the last token on itself, on the next token of its path and on later ones. `loss`: one row per
    head, with the length at which its attention on the next token is halved, measured and predicted from short prompts.
    """

    accuracy: pd.DataFrame
    heads: pd.DataFrame
    loss: pd.DataFrame
    about: dict[str, Any]

    @property
    def name(self) -> str:
        model = Path(str(self.about.get("model", self.about["task"]))).name
        return f"{model}, by length" + ", sharpened" * bool(self.about.get("sharpened"))


def measure_lengths(
    model: Transformer,
    task: str,
    cells_folder: str | Path | None = None,
    *,
    grid: Sequence[int] = GRID,
    prompts: int = PROMPTS,
    sharpen: bool = False,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Lengths:
    """Accuracy with 95 % intervals, and attention along the path, at every length of the grid.

    The sequences are the same at every length, except for the targets added on their left: the path, its offsets and
    the answer stay. Existing cells in the folder are reused. `sharpen` multiplies the logits of all heads by
    log n / log 17 at n tokens: this restores attention that was only diluted, not attention to the wrong place.

    >>> measure_lengths(ww.embedded("letter"), "letter", grid=(17, 100)).accuracy      # doctest: +SKIP
    """
    if task not in TASKS:
        raise BadInput(f"no task {task!r}: {', '.join(TASKS)}")
    kind = TASKS[task]()
    if not grid or min(grid) < kind.tokens:
        raise BadInput(f"lengths start at {kind.tokens} tokens, the length of training sequences")
    if prompts < 1:
        raise BadInput(f"prompts must be at least 1 per length, got {prompts}")
    weights, sequences = weights_hash(model), kind.sample(prompts, seed)
    kind_of_cell = SharpenedCell if sharpen else LengthCell
    cells = [
        kind_of_cell(weights, task, length, prompts, first, min(first + at_once, prompts), seed)
        for length in sorted(set(grid))
        for at_once in [max(1, TOKENS_PER_PASS // length)]
        for first in range(0, prompts, at_once)
    ]

    def compute(cell: LengthCell) -> dict[str, Tensor]:
        longer = kind.extend(sequences, cell.length - kind.tokens, seed=seed + cell.length)[cell.first : cell.stop]
        return {"hops": longer.hops} | answer(model, longer, sharper(cell.length, kind.tokens) if sharpen else 1.0)

    keep = None if cells_folder is None else Path(cells_folder)
    work, done = sum(map(cost, cells)), 0
    results: dict[int, list[dict[str, Tensor]]] = {}
    for cell, result in zip(cells, run_cells(keep, cells, compute), strict=True):
        done += cost(cell)
        progress(f"{cell.length} tokens", done, work)
        results.setdefault(cell.length, []).append(result)
    joined = {
        length: {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for length, parts in results.items()
    }
    heads, predicted = head_table(joined), predict_attention(model, kind, sequences, max(grid))
    loss = loss_table(heads, predicted, list(joined))
    if sharpen:  # the prediction is for logits that are not sharpened
        loss["predicted"] = math.nan
    about = {"task": task, "prompts": prompts, "seed": seed, "weights": weights, "sharpened": sharpen}
    return Lengths(accuracy_table(joined), heads, loss, about)


@torch.no_grad()
def answer(model: Transformer, sequences: Sequences, sharpness: float = 1.0) -> dict[str, Tensor]:
    """Which answers are right (B), and the last token's attention along its path (B, L, H, 3).

    Only the last row of each attention matrix is ever in memory.
    """
    looks: list[Float[Tensor, "B H 3"]] = []
    path = sequences.path.to(model.device)

    def streamed(layer: int, attend: Attend) -> Attend:
        def attention(queries: Tensor, keys: Tensor, values: Tensor, drop: Drop) -> Tensor:
            queries = queries * sharpness
            row = (queries[:, :, -1:] * queries.shape[-1] ** -0.5 @ keys.mT).softmax(-1)
            looks.append(along_path(row[:, :, 0], path))
            return F.scaled_dot_product_attention(queries, keys, values, is_causal=queries.shape[2] > 1)

        return attention

    with model.attending(streamed):
        logits = model(sequences.tokens.to(model.device), last=True)[:, 0]
    return {"right": logits.argmax(-1).cpu() == sequences.answers, "looks": torch.stack(looks, 1).cpu()}


def sharper(length: int, trained: int) -> float:
    """The factor on logits with which one that stands out keeps its share of attention at this length.

    >>> sharper(289, trained=17)
    2.0
    """
    return math.log(length) / math.log(trained)


def cost(cell: LengthCell) -> int:
    """Work in a cell, in arbitrary units: attention costs as much as the matrix products at about 1,600 tokens."""
    return (cell.stop - cell.first) * cell.length * (1600 + cell.length)


def accuracy_table(answered: Mapping[int, Mapping[str, Tensor]]) -> pd.DataFrame:
    """Accuracy by length and number of hops with Wilson intervals; hops 0 stands for all of them.

    >>> made = accuracy_table({17: {"right": torch.tensor([True, False]), "hops": torch.tensor([1, 1])}})
    >>> made.filter(["length", "hops", "accuracy"]).to_dict("records")
    [{'length': 17, 'hops': 0, 'accuracy': 0.5}, {'length': 17, 'hops': 1, 'accuracy': 0.5}]
    """
    rows = []
    for length, result in answered.items():
        for hops in [0, *result["hops"].unique().tolist()]:
            rights = result["right"][(result["hops"] == hops) | (hops == 0)]
            right, asked = int(rights.sum()), len(rights)
            low, high = wilson(right, asked)
            rows.append(
                {"length": length, "hops": hops, "right": right, "asked": asked, "accuracy": right / asked}
                | {"low": low, "high": high}
            )
    return pd.DataFrame(rows)


def head_table(answered: Mapping[int, Mapping[str, Tensor]]) -> pd.DataFrame:
    """One row per length, layer and head: mean attention on itself, the next token of the path, and later ones."""
    rows = []
    for length, result in answered.items():
        means = result["looks"].mean(0)
        for layer, head in np.ndindex(*means.shape[:2]):
            seen = dict(zip(PLACES, means[layer, head].tolist(), strict=True))
            rows.append({"length": length, "layer": layer, "head": head} | seen)
    return pd.DataFrame(rows)
