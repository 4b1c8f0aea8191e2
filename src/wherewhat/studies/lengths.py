"""How far a trained model generalises in length: accuracy on sequences with more and more symbols on their left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from scipy.stats import binomtest
from torch import Tensor

from ..errors import BadInput
from ..lab import Transformer, embedded, load_checkpoint
from ..lab.checkpoint import read_run
from ..lab.transformer import Attend, Drop
from ..tasks import TASKS
from .cells import run_cells
from .profile import weights_hash

# The paper's: tens to 100, hundreds to 1,000, five-hundreds to 5,000; before them the length of training.
GRID = (17, *range(20, 101, 10), *range(200, 1001, 100), *range(1500, 5001, 500))
PROMPTS = 200  # a length
TOKENS_A_PASS = 16_384  # bounds the memory

# Read off the paper's figure.
PUBLISHED: dict[str, dict[int, float]] = {
    "number": {40: 0.94, 50: 0.88, 80: 0.80, 100: 0.74, 200: 0.64, 300: 0.47, 500: 0.31, 1000: 0.20, 2000: 0.10}
    | {3000: 0.065, 5000: 0.04},
    "letter": {200: 0.99, 300: 0.99, 500: 0.95, 800: 0.89, 1000: 0.86, 2000: 0.74, 3000: 0.62, 5000: 0.48},
}


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


def lengths(
    model: Transformer,
    task: str,
    folder: str | Path | None = None,
    *,
    grid: Sequence[int] = GRID,
    prompts: int = PROMPTS,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> pd.DataFrame:
    """A row a length and number of hops: right answers of how many, and the share with its 95 % interval.

    The sequences are the same at every length, but for the targets that come before them: the path, its offsets and
    the answer stay. With a folder, what is there is not computed again.

    >>> lengths(ww.embedded("letter"), "letter", grid=(17, 100)).query("hops == 1")    # doctest: +SKIP
    """
    if task not in TASKS:
        raise BadInput(f"no task {task!r}: {', '.join(TASKS)}")
    kind = TASKS[task]()
    if not grid or min(grid) < kind.tokens:
        raise BadInput(f"lengths start at {kind.tokens} tokens, the length of training, got {sorted(grid)[:1]}")
    if prompts < 1:
        raise BadInput(f"prompts: at least 1 a length, got {prompts}")
    weights, sequences = weights_hash(model), kind.sample(prompts, seed)
    cells = [
        LengthCell(weights, task, length, prompts, first, min(first + at_once, prompts), seed)
        for length in sorted(set(grid))
        for at_once in [max(1, TOKENS_A_PASS // length)]
        for first in range(0, prompts, at_once)
    ]

    def compute(cell: LengthCell) -> dict[str, Tensor]:
        longer = kind.extend(sequences, cell.length - kind.tokens, seed=seed + cell.length)[cell.first : cell.stop]
        return {"hops": longer.hops, "right": right_answers(model, longer.tokens, longer.answers).long()}

    work, done, answered = sum(map(cost, cells)), 0, []
    for cell, result in zip(cells, run_cells(None if folder is None else Path(folder), cells, compute), strict=True):
        done += cost(cell)
        progress(f"{cell.length} tokens", done, work)
        answered += [
            (cell.length, hops, right) for hops, right in torch.stack([result["hops"], result["right"]], -1).tolist()
        ]
    return accuracy_table(answered)


def model_and_task(source: str) -> tuple[Transformer, str]:
    """The last checkpoint of a run and what it was trained on, or an embedded model, which bears its task's name."""
    if source in TASKS and not Path(source).exists():
        return embedded(source), source
    return load_checkpoint(source), read_run(source)["task"]


@torch.no_grad()
def right_answers(model: Transformer, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Which answers are right; attention is streamed, no matrix of it is ever there."""

    def streamed(layer: int, attend: Attend) -> Attend:
        def attention(queries: Tensor, keys: Tensor, values: Tensor, drop: Drop) -> Tensor:
            return F.scaled_dot_product_attention(queries, keys, values, is_causal=queries.shape[2] > 1)

        return attention

    with model.attending(streamed):
        return model(tokens.to(model.device), last=True)[:, 0].argmax(-1).cpu() == answers


def cost(cell: LengthCell) -> int:
    """Work in a cell, in some unit: attention overtakes the matrices at about 1,600 tokens."""
    return (cell.stop - cell.first) * cell.length * (1600 + cell.length)


def accuracy_table(answered: Sequence[tuple[int, int, int]]) -> pd.DataFrame:
    """From (length, hops, right) of every answer to shares with Wilson's intervals; hops 0 stands for all of them.

    >>> accuracy_table([(17, 1, 1), (17, 1, 0)]).filter(["length", "hops", "accuracy"]).to_dict("records")
    [{'length': 17, 'hops': 0, 'accuracy': 0.5}, {'length': 17, 'hops': 1, 'accuracy': 0.5}]
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for length, hops, right in answered:
        for group in ((length, 0), (length, hops)):
            groups.setdefault(group, []).append(right)
    rows = []
    for (length, hops), rights in sorted(groups.items()):
        right, asked = sum(rights), len(rights)
        low, high = binomtest(right, asked).proportion_ci(method="wilson")
        rows.append(
            {"length": length, "hops": hops, "right": right, "asked": asked, "accuracy": right / asked}
            | {"low": float(low), "high": float(high)}
        )
    return pd.DataFrame(rows)
