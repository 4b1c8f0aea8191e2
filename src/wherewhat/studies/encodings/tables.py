"""Positional encodings side by side: the tables of all runs, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...cells.cells import cell_hash, run_cells
from ...core.deposit import DepositShape, deposit_of
from ...files import plain
from ...results import Progress, Result, Say, ignore_progress, ignore_sentence, versions
from ..stats import mean_interval
from .cost import cost_sentence
from .published import published
from .runs import measure_ahead, run_settings, training_cell
from .settings import CLEAN, SIZES, EncodingSetting, Size, plan
from .signals import SignalCell, signal_cell

SETTING = ["size", "dropout"]
GROUP = [*SETTING, "task", "encoding", "variant"]
SUMMARISED = (
    "accuracy",
    "steps_to_90",
    "norm_variation",
    "condition",
    *DepositShape._fields,
    "largest_mean",
    "effective_mean",
)
SMOOTH = 20  # steps whose batches are pooled into one value of the training curves
LEARNT = 0.9
EARLY = 50  # steps over which a head's early share of the gradient is averaged


@dataclass(frozen=True)
class Encodings(Result, file="encodings.json", kind="study of encodings"):
    """Trained models with different positional encodings.

    `runs` has one row per size, dropout, encoding, task, seed and variant; `heads` one row per head of these, `layers`
    one row per layer. `training` has accuracy, the norm of the gradient and the largest share of it that belongs to one
    head, averaged over every 20 steps.
    """

    runs: pd.DataFrame
    heads: pd.DataFrame
    training: pd.DataFrame
    layers: pd.DataFrame
    about: dict[str, Any]

    def with_runs_of(self, other: Encodings) -> Encodings:
        """These runs and those of another study, which replace the same ones here."""

        def keys(table: Any) -> pd.MultiIndex:
            return pd.MultiIndex.from_frame(table[[*GROUP, "seed"]])

        tables: list[Any] = [
            pd.concat([some for some in (mine[~keys(mine).isin(keys(other.runs))], theirs) if len(some)] or [theirs])
            for mine, theirs in zip(self.tables(), other.tables(), strict=True)
        ]
        return Encodings(*(one.reset_index(drop=True) for one in tables), about=self.about | other.about)

    def missing(self, wanted: Sequence[EncodingSetting]) -> list[EncodingSetting]:
        """The settings that have no row in the table of runs."""
        columns: Any = self.runs[[field.name for field in fields(EncodingSetting)]]
        finished = {EncodingSetting(*row) for row in columns.itertuples(index=False, name=None)}
        return [one for one in wanted if one not in finished]

    def by_setting(self) -> dict[tuple[str, float], Encodings]:
        """The runs of each size and dropout, from the small to the published size."""
        found: Any = self.runs[SETTING].drop_duplicates()
        order = list(SIZES)
        settings = sorted(found.itertuples(index=False, name=None), key=lambda one: (order.index(one[0]), one[1]))
        return {
            (size, dropout): Encodings(
                *(rows_with(table, size=size, dropout=dropout) for table in self.tables()), about=self.about
            )
            for size, dropout in settings
        }

    def tables(self) -> tuple[pd.DataFrame, ...]:
        return self.runs, self.heads, self.training, self.layers

    def summary(self) -> pd.DataFrame:
        """Means over seeds with 95 % intervals, beside what was published: one row per encoding, task and variant."""
        runs: Any = self.runs
        rows = []
        for key, group in runs.groupby(GROUP, sort=False):
            row: dict[str, Any] = dict(zip(GROUP, key, strict=True)) | {"seeds": len(group)}
            for name in SUMMARISED:
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), mean_interval(group[name]), strict=True))
            row["published"] = published(row["encoding"], row["task"]) if row["variant"] == CLEAN else ""
            rows.append(row)
        return pd.DataFrame(rows)


def rows_with(table: pd.DataFrame, **values: str | float) -> Any:
    """The rows of a table that have these values in the columns of these names."""
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]


def reproduce_encodings(
    folder: str | Path,
    seeds: Sequence[int] = range(3),
    *,
    quick: bool = False,
    size: str = "small",
    device: str = "cpu",
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    sizes: Mapping[str, Size] = SIZES,
) -> Encodings:
    """Every encoding trained on both tasks and measured; saved in the folder, from which existing runs are reused.

    `size` is one of `PLANS`. `quick` trains one seed of a few encodings.

    >>> made = reproduce_encodings("runs/encodings", quick=True)                                   # doctest: +SKIP
    """
    wanted = plan(size, seeds, quick)
    say(cost_sentence(wanted, Path(folder) / "cells", sizes))
    tables = gather(Path(folder) / "cells", wanted, progress, device, sizes)
    about = {
        "seeds": sorted({one.seed for one in wanted}),
        "quick": quick,
        "size": size,
        "sizes": {name: _described(sizes[name]) for name in dict.fromkeys(one.size for one in wanted)},
        "versions": versions(),
    }
    made = Encodings(*tables, about=about)
    made.save(folder)
    return made


def _described(size: Size) -> dict[str, Any]:
    recipe = asdict(size.recipe) | {"clip": plain(size.recipe.clip), "betas": list(size.recipe.betas)}
    return asdict(size) | {"recipe": recipe}


def gather(
    folder: Path | None,
    wanted: Sequence[EncodingSetting],
    progress: Progress = ignore_progress,
    device: str = "cpu",
    sizes: Mapping[str, Size] = SIZES,
) -> tuple[pd.DataFrame, ...]:
    """The four tables of these settings. `folder` is that of the cells, from which existing ones are reused."""
    rows, runs = [], run_settings(wanted, folder, progress, device, sizes)
    compute = partial(signal_cell, device=device)
    cells = [training_cell(setting, sizes) for setting in wanted]
    measure_ahead(folder, cells, lambda cell: SignalCell(cell_hash(cell)), compute, "signals")
    for cell, trained, measured in runs:
        wanted_signals = SignalCell(cell_hash(cell))
        signals = next(run_cells(folder, [wanted_signals], partial(compute, cell, trained), "signals"))
        rows.append(rows_of(trained, measured, signals))
    return tuple(
        pd.concat(
            [table.assign(**vars(setting)) for setting, table in zip(wanted, tables, strict=True)], ignore_index=True
        )
        for tables in zip(*rows, strict=True)
    )


def rows_of(
    trained: dict[str, Tensor], measured: dict[str, Tensor], signals: dict[str, Tensor]
) -> tuple[pd.DataFrame, ...]:
    """The rows of one run in the four tables."""
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
        # The rank of the head with the largest drop among all heads by early share of the gradient; 1 is the largest.
        "seed_rank": (early > early.flatten()[drops["zero"].argmax()]).sum() + 1,
    } | seed_of_deposit(signals, drops["zero"])
    for how, end in (("zero", ""), ("mean", "_mean")):
        run |= {f"{name}{end}": value for name, value in deposit_of(drops[how])._asdict().items()}
    layers, heads = torch.meshgrid(*(torch.arange(size) for size in early.shape), indexing="ij")
    by_head = {"layer": layers, "head": heads} | {how: drops[how] for how in drops} | {"early_share": early}
    by_layer: dict[str, Tensor] = {"layer": layers[:, 0]}
    signals = signals | {"margin": margins(signals["seed"])}
    for name, values in signals.items():
        (by_layer if values.dim() == 2 else by_head).update({name: values[0], f"{name}_trained": values[-1]})
    curve = {
        "step": (torch.arange(len(smooth)) + 1) * SMOOTH,
        "accuracy": smooth,
        "norm": smoothed(norm),
        "largest_share": smoothed(shares.flatten(1).amax(1)),
    }
    return (
        pd.DataFrame({name: [float(value)] for name, value in run.items()}),
        pd.DataFrame({name: value.flatten().numpy() for name, value in by_head.items()}),
        pd.DataFrame({name: value.numpy() for name, value in curve.items()}),
        pd.DataFrame({name: value.numpy() for name, value in by_layer.items()}),
    )


def seed_of_deposit(signals: dict[str, Tensor], drops: Tensor) -> dict[str, Tensor]:
    """What the paper's propositions are about: the seed at the start, its growth, and the margins of its largest head.

    `seed` is the largest seed at initialisation and `seed_agreement` how far sequences agree there; `seed_growth` the
    factor by which the largest seed has grown at the second snapshot; `margin_growth` the factor per layer, from the
    last layer to the first, by which the margin grows at initialisation; `seed_head_rank` the rank by seed of the head
    with the largest drop. Growth and rank are NaN without rotation and bias, where all seeds are 0.
    """
    seed = signals["seed"]  # snapshots L H
    largest, margin = seed.flatten(1).amax(1), margins(seed)[0]
    rank = (seed[0] > seed[0].flatten()[drops.argmax()]).sum() + 1
    return {
        "seed": largest[0],
        "seed_agreement": signals["seed_agreement"][0].flatten()[seed[0].argmax()],
        "seed_growth": largest[1] / largest[0],
        "margin_growth": (margin[0] / margin[-1]) ** (1 / max(1, len(margin) - 1)),
        "seed_head_rank": torch.where(largest[0] > 0, rank, math.nan),
    }


def margins(seeds: Tensor) -> Tensor:
    """How far the largest seed of a layer is ahead of the second largest (..., L)."""
    first, second = seeds.topk(2).values.unbind(-1)
    return first - second


def smoothed(values: Tensor) -> Tensor:
    """Means over every `SMOOTH` steps."""
    return values[: len(values) // SMOOTH * SMOOTH].unflatten(0, (-1, SMOOTH)).mean(1)
