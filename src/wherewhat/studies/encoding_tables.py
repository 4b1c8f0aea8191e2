"""Positional encodings side by side: from runs to tables, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from ..errors import BadInput
from ..files import write_table
from .cells import cell_hash, run_cells
from .deposit import Deposit, deposit
from .encoding_signals import SignalCell, signal_cell
from .encodings import CLEAN, MAIN, SIZES, TASKS, Setting, Size, look_ahead, run_settings, settings, training_cell

PUBLISHED = {
    ("rope", "distance"): "92.6 %",
    ("rope", "count"): "69.4 %",
    ("mla", "distance"): "88.3 %",
    ("mla", "count"): "97.4 %",
    ("sinusoidal", "distance"): "second best",
    ("sinusoidal", "count"): "medium",
    ("alibi", "distance"): "fails",
    ("alibi", "count"): "worst",
    ("nope", "distance"): "fails",
    ("nope", "count"): "77.7 %",
}
ROW = ["encoding", "task", "variant"]
TABLES = ("runs", "heads", "training")
SUMMARISED = (
    "accuracy",
    "steps_to_90",
    "norm_variation",
    "condition",
    *Deposit._fields,
    "largest_mean",
    "effective_mean",
)
SMOOTH = 20  # steps whose batches are taken together as one measure of accuracy
LEARNT = 0.9
EARLY = 50  # steps in which a head may get ahead


@dataclass(frozen=True)
class Encodings:
    """`runs`: a row an (encoding, task, seed, variant); `heads`: a row a head of these; `training`: accuracy, norm of
    the gradient and the largest share of it that one head has, every so many steps.

    >>> Encodings.load("results/encodings").runs.groupby(["encoding", "task"])["accuracy"].mean()     # doctest: +SKIP
    """

    runs: pd.DataFrame
    heads: pd.DataFrame
    training: pd.DataFrame

    def save(self, prefix: str | Path) -> None:
        """PREFIX.parquet with the runs, PREFIX-heads.parquet and PREFIX-training.parquet."""
        for name in TABLES:
            write_table(_path(prefix, name), getattr(self, name))

    @staticmethod
    def load(prefix: str | Path) -> Encodings:
        try:
            return Encodings(*(pd.read_parquet(_path(prefix, name)) for name in TABLES))
        except (OSError, ValueError) as error:
            raise BadInput(f"{prefix}: holds no runs of encodings ({error})") from error

    def summary(self) -> pd.DataFrame:
        """A row an encoding, task and variant: means over seeds with 95 % intervals, beside what was published."""
        runs: Any = self.runs
        rows = []
        for key, some in runs.groupby(ROW, sort=False):
            row: dict[str, Any] = dict(zip(ROW, key, strict=True)) | {"seeds": len(some)}
            for name in SUMMARISED:
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), over_seeds(some[name]), strict=True))
            row["published"] = PUBLISHED.get((row["encoding"], row["task"]), "") if row["variant"] == CLEAN else ""
            rows.append(row)
        return pd.DataFrame(rows)


def rows_with(table: pd.DataFrame, **values: str) -> Any:
    """The rows of a table that have these values in the columns of these names."""
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]


def over_seeds(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """The mean and the 95 % interval of Student's t over seeds; NaN if a seed has no value, no interval for one seed.

    >>> over_seeds([1.0, 2.0, 3.0])[0]
    2.0
    """
    known = np.asarray(values, dtype=float)
    mean = float(known.mean())
    reach = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known)) if len(known) > 1 else np.nan
    return mean, mean - float(reach), mean + float(reach)


def reproduce_encodings(
    folder: str | Path,
    seeds: Sequence[int] = range(3),
    *,
    quick: bool = False,
    size: Size = SIZES["small"],
    device: str = "cpu",
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
) -> Encodings:
    """Every encoding on both tasks; runs that are in the folder already are not done again. `quick`: one seed, four
    encodings.

    >>> made = reproduce_encodings("runs/encodings", quick=True)                                   # doctest: +SKIP
    """
    wanted = [Setting(name, task) for task in TASKS for name in MAIN] if quick else settings(seeds)
    return Encodings(*gather(Path(folder) / "cells", wanted, size, progress, device))


def gather(
    folder: Path | None,
    wanted: Sequence[Setting],
    size: Size,
    progress: Callable[[str, float, int], None],
    device: str = "cpu",
) -> tuple[pd.DataFrame, ...]:
    """The three tables of these settings, trained and measured where that was not done before."""
    rows, runs = [], run_settings(wanted, size, folder, progress, device)
    signalled = partial(signal_cell, device=device)
    cells = [training_cell(setting, size) for setting in wanted]
    look_ahead(folder, cells, lambda cell: SignalCell(cell_hash(cell)), signalled, "signals")
    for cell, trained, measured in runs:
        look = SignalCell(cell_hash(cell))
        signals = next(run_cells(folder, [look], partial(signalled, cell, trained), "signals"))
        rows.append(rows_of(trained, measured, signals))
    return tuple(
        pd.concat(
            [found[table].assign(**vars(setting)) for setting, found in zip(wanted, rows, strict=True)],
            ignore_index=True,
        )
        for table in range(len(TABLES))
    )


def rows_of(
    trained: dict[str, Tensor], measured: dict[str, Tensor], signals: dict[str, Tensor]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """One run's rows of the three tables."""
    drops = {how: measured["whole"] - measured[how] for how in ("zero", "mean")}
    shares = trained["heads"] / trained["heads"].sum((1, 2), keepdim=True)  # steps L H
    early = shares[:EARLY].mean(0)
    smooth = smoothed(trained["accuracy"])
    learnt = (smooth >= LEARNT).nonzero()
    norm = trained["norm"]
    run: dict[str, Any] = {
        "accuracy": measured["whole"],
        "steps_to_90": (learnt[0, 0] + 1) * SMOOTH if len(learnt) else math.nan,
        "norm_variation": norm.std() / norm.mean(),
        "condition": signals["condition"][0].log().mean().exp(),
        "condition_trained": signals["condition"][-1].log().mean().exp(),
        "rank": signals["rank"][0].mean(),
        "rank_trained": signals["rank"][-1].mean(),
        "pull": signals["pull"][0].max(),
        "agreement": signals["agreement"][0].max(),
        "early_share": early.max(),
        # Of all heads, where the one that costs most stands by its share of the early gradient: 1 is first.
        "seed_rank": (early > early.flatten()[drops["zero"].argmax()]).sum() + 1,
    }
    for how, end in (("zero", ""), ("mean", "_mean")):
        run |= {f"{name}{end}": value for name, value in deposit(drops[how])._asdict().items()}
    layers, heads = torch.meshgrid(*(torch.arange(size) for size in early.shape), indexing="ij")
    a_head = {"layer": layers, "head": heads} | {how: drops[how] for how in drops} | {"early_share": early}
    for name, values in signals.items():
        a_head |= {name: values[0], f"{name}_trained": values[-1]}
    curve = {
        "step": (torch.arange(len(smooth)) + 1) * SMOOTH,
        "accuracy": smooth,
        "norm": smoothed(norm),
        "largest_share": smoothed(shares.flatten(1).amax(1)),
    }
    return (
        pd.DataFrame({name: [float(value)] for name, value in run.items()}),
        pd.DataFrame({name: value.flatten().numpy() for name, value in a_head.items()}),
        pd.DataFrame({name: value.numpy() for name, value in curve.items()}),
    )


def smoothed(values: Tensor) -> Tensor:
    """Means of so many steps each."""
    return values[: len(values) // SMOOTH * SMOOTH].unflatten(0, (-1, SMOOTH)).mean(1)


def _path(prefix: str | Path, table: str) -> Path:
    return Path(f"{prefix}.parquet" if table == "runs" else f"{prefix}-{table}.parquet")
