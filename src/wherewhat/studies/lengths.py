"""How far a trained model generalises in length: accuracy, and where its heads look, with more and more on the left."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.stats import binomtest
from torch import Tensor

from ..errors import BadInput
from ..files import write_atomically, write_table
from ..lab import Transformer, embedded, load_checkpoint
from ..lab.checkpoint import read_run
from ..lab.transformer import Attend, Drop
from ..tasks import TASKS, Sequences
from .cells import run_cells
from .profile import weights_hash
from .roles import PLACES, along_path
from .stretching import loss_table, predict_attention

# The paper's: tens to 100, hundreds to 1,000, five-hundreds to 5,000; before them the length of training.
GRID = (17, *range(20, 101, 10), *range(200, 1001, 100), *range(1500, 5001, 500))
PROMPTS = 200  # a length
TABLES = ("accuracy", "heads", "loss")
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


@dataclass(frozen=True)
class SharpenedCell(LengthCell):
    """The same with all attention sharpened."""

    sharpened: bool = True


@dataclass(frozen=True)
class Lengths:
    """Accuracy by length and hops; by length and head the mean attention of the last token along its path; and the
    length at which each head loses the next token of the path, measured and predicted from the short prompts."""

    accuracy: pd.DataFrame
    heads: pd.DataFrame
    loss: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> None:
        """Three tables, and lengths.json last: a folder with it is whole."""
        (Path(folder) / "lengths.json").unlink(missing_ok=True)
        for name in TABLES:
            write_table(Path(folder) / f"{name}.parquet", getattr(self, name))
        write_atomically(Path(folder) / "lengths.json", json.dumps(self.about, indent=1) + "\n")

    @staticmethod
    def load(folder: str | Path) -> Lengths:
        """What `wherewhat lengths` saved."""
        try:
            about = json.loads((Path(folder) / "lengths.json").read_text(encoding="utf-8"))
            accuracy, heads, loss = (pd.read_parquet(Path(folder) / f"{name}.parquet") for name in TABLES)
            return Lengths(accuracy, heads, loss, about)
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder}: no lengths, or damaged; give the wherewhat lengths command again") from error


def lengths(
    model: Transformer,
    task: str,
    folder: str | Path | None = None,
    *,
    grid: Sequence[int] = GRID,
    prompts: int = PROMPTS,
    sharpen: bool = False,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Lengths:
    """Right answers of how many, with 95 % intervals, and attention on the path, at every length.

    The sequences are the same at every length, but for the targets that come before them: the path, its offsets and
    the answer stay. With a folder, what is there is not computed again. `sharpen` multiplies the logits of all heads by
    log n / log 17 at n tokens: what was only drowned by the many comes back, what looks at the wrong place does not.

    >>> lengths(ww.embedded("letter"), "letter", grid=(17, 100)).accuracy              # doctest: +SKIP
    """
    if task not in TASKS:
        raise BadInput(f"no task {task!r}: {', '.join(TASKS)}")
    kind = TASKS[task]()
    if not grid or min(grid) < kind.tokens:
        raise BadInput(f"lengths start at {kind.tokens} tokens, the length of training")
    if prompts < 1:
        raise BadInput(f"prompts: at least 1 a length, got {prompts}")
    weights, sequences = weights_hash(model), kind.sample(prompts, seed)
    kind_of_cell = SharpenedCell if sharpen else LengthCell
    cells = [
        kind_of_cell(weights, task, length, prompts, first, min(first + at_once, prompts), seed)
        for length in sorted(set(grid))
        for at_once in [max(1, TOKENS_A_PASS // length)]
        for first in range(0, prompts, at_once)
    ]

    def compute(cell: LengthCell) -> dict[str, Tensor]:
        longer = kind.extend(sequences, cell.length - kind.tokens, seed=seed + cell.length)[cell.first : cell.stop]
        return {"hops": longer.hops} | answer(model, longer, sharper(cell.length, kind.tokens) if sharpen else 1.0)

    work, done = sum(map(cost, cells)), 0
    results: dict[int, list[dict[str, Tensor]]] = {}
    for cell, result in zip(cells, run_cells(None if folder is None else Path(folder), cells, compute), strict=True):
        done += cost(cell)
        progress(f"{cell.length} tokens", done, work)
        results.setdefault(cell.length, []).append(result)
    joined = {
        length: {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for length, parts in results.items()
    }
    heads, predicted = head_table(joined), predict_attention(model, kind, sequences, max(grid))
    loss = loss_table(heads, predicted, list(joined))
    if sharpen:  # what is predicted is the model as it is
        loss["predicted"] = math.nan
    about = {"task": task, "prompts": prompts, "seed": seed, "weights": weights, "sharpened": sharpen}
    return Lengths(accuracy_table(joined), heads, loss, about)


def model_and_task(source: str) -> tuple[Transformer, str]:
    """The last checkpoint of a run and what it was trained on, or an embedded model, which bears its task's name."""
    if source in TASKS and not Path(source).exists():
        return embedded(source), source
    return load_checkpoint(source), read_run(source).get("task", "")


@torch.no_grad()
def answer(model: Transformer, sequences: Sequences, sharpness: float = 1.0) -> dict[str, Tensor]:
    """Which answers are right (B), and the last token's attention along its path (B, L, H, 3).

    Attention is streamed: of its matrix only the last row is ever there.
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
    """By how much logits grow so that one that stands out keeps its share among so many more.

    >>> sharper(289, trained=17)
    2.0
    """
    return math.log(length) / math.log(trained)


def cost(cell: LengthCell) -> int:
    """Work in a cell, in some unit: attention overtakes the matrices at about 1,600 tokens."""
    return (cell.stop - cell.first) * cell.length * (1600 + cell.length)


def accuracy_table(answered: Mapping[int, Mapping[str, Tensor]]) -> pd.DataFrame:
    """Shares of right answers by length and hops with Wilson's intervals; hops 0 stands for all of them.

    >>> made = accuracy_table({17: {"right": torch.tensor([True, False]), "hops": torch.tensor([1, 1])}})
    >>> made.filter(["length", "hops", "accuracy"]).to_dict("records")
    [{'length': 17, 'hops': 0, 'accuracy': 0.5}, {'length': 17, 'hops': 1, 'accuracy': 0.5}]
    """
    rows = []
    for length, result in answered.items():
        for hops in [0, *result["hops"].unique().tolist()]:
            rights = result["right"][(result["hops"] == hops) | (hops == 0)]
            right, asked = int(rights.sum()), len(rights)
            low, high = binomtest(right, asked).proportion_ci(method="wilson")
            rows.append(
                {"length": length, "hops": hops, "right": right, "asked": asked, "accuracy": right / asked}
                | {"low": float(low), "high": float(high)}
            )
    return pd.DataFrame(rows)


def head_table(answered: Mapping[int, Mapping[str, Tensor]]) -> pd.DataFrame:
    """A row a length, layer and head: mean attention on itself, the next token of the path, and later ones."""
    rows = []
    for length, result in answered.items():
        means = result["looks"].mean(0)
        for layer, head in np.ndindex(*means.shape[:2]):
            seen = dict(zip(PLACES, means[layer, head].tolist(), strict=True))
            rows.append({"length": length, "layer": layer, "head": head} | seen)
    return pd.DataFrame(rows)
