"""The paper on learning dynamics, reproduced: both tasks, several seeds and recipes, beside what was published.

Everything about one run is measured in its folder, in cells that are reused. The tables of all runs are then joined;
rows of earlier runs in the results folder are kept, so recipes can be trained one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...cells.cells import run_cells
from ...errors import BadInput
from ...files import read_table
from ...lab import Recipe, Transformer, load_checkpoint
from ...lab.train import accuracy_by_hops
from ...results import Progress, Result, Say, ignore_progress, ignore_sentence, versions
from ...tasks import TASKS, Sequences
from ...tracing.fingerprint import weights_hash
from ..dynamics.measure import measure_series, views_of_sequences
from ..dynamics.result import Dynamics
from ..dynamics.series import series_of_run
from ..lengths.hop_lengths import measure_lengths
from ..lengths.paper import TRAINED_TOKENS, published_lengths
from ..theorems.discrepancy import discrepancy_curves
from .comparison import RUN, best_step, compare_with_paper, curves, measures
from .flow import flow
from .geometry import geometry
from .roles import measure_roles, role_table
from .runs import RECIPES, PlannedRun, plan, runs_in
from .train import train_task

FULL, PART = 2400, 400  # validation sequences scored at every checkpoint, and used for roles, geometry and flow
ADDED = tuple(published_lengths()["added_tokens"])
FAR, FAR_PROMPTS = TRAINED_TOKENS + 1000, 40  # at more tokens, which take most of the time, fewer sequences are asked
JOINED = "heads accuracy purity roles test geometry use flow example lengths loss".split()


@dataclass(frozen=True)
class MomentCell:
    """A checkpoint of a run: roles of its heads on validation sequences, accuracy on the test sequences."""

    weights: str
    task: str
    prompts: int
    tested: int
    version: int = 2


@dataclass(frozen=True)
class MultihopResults(Result, file="multihop.json", kind="reproduction of the paper on learning dynamics"):
    """The tables of all runs, with columns task, recipe and seed, and their comparison with the paper.

    `heads`, `accuracy` and `purity` cover every checkpoint. The other tables describe two checkpoints (`moment`): the
    one with the best validation accuracy, as in the paper, and the last one. `measures` are single numbers, `curves`
    whole curves, `comparison` findings in words, each beside the published ones. `discrepancy` belongs to the heads
    that theory constructs. `about["unfinished"]` lists runs that were not trained to the end.
    """

    heads: pd.DataFrame
    accuracy: pd.DataFrame
    purity: pd.DataFrame
    roles: pd.DataFrame
    test: pd.DataFrame
    geometry: pd.DataFrame
    use: pd.DataFrame
    flow: pd.DataFrame
    example: pd.DataFrame
    lengths: pd.DataFrame
    loss: pd.DataFrame
    measures: pd.DataFrame
    curves: pd.DataFrame
    comparison: pd.DataFrame
    discrepancy: pd.DataFrame
    about: dict[str, Any]

    def small_tables(self) -> dict[str, pd.DataFrame]:
        """Those that fit on a screen."""
        names = "comparison curves measures test purity roles geometry lengths loss".split()
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _paths(cls) -> dict[str, str]:
        """Names that can share a folder with the results of other papers."""
        return {name: f"dynamics-{path}" for name, path in super()._paths().items()}


def reproduce_multihop(
    folder: str | Path,
    seeds: Sequence[int] = range(3),
    tasks: Sequence[str] = tuple(TASKS),
    recipes: Sequence[str] = ("64",),
    *,
    finished_only: bool = False,
    recipe: Recipe | None = None,
    prompts: tuple[int, int] = (FULL, PART),
    longest: int = TRAINED_TOKENS + max(ADDED),
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> MultihopResults:
    """Train and measure models on every task, recipe and seed, and compare them with the paper.

    Every run is in folder/TASK-RECIPE-SEED, the result in folder/multihop; existing runs and measurements are reused,
    and rows of other runs in folder/results are kept. With `finished_only` nothing is trained: all finished runs in the
    folder are measured, whatever their recipe. `recipe` replaces the settings of the recipes, for tests.

    >>> reproduce_multihop("runs").comparison                          # doctest: +SKIP
    """
    planned = list(runs_in(folder)) if finished_only else plan(tasks, recipes, seeds)
    unfinished = [run.name for run in planned if finished_only and not run.finished(folder)]
    for name in unfinished:
        say(f"{name}: not finished, left out")
    found: list[dict[str, pd.DataFrame]] = []
    for run in planned:
        if run.name not in unfinished:
            show = _named(progress, run.name)
            if not finished_only:
                trained_by = recipe or run.recipe.recipe(run.seed)
                train_task(
                    run.task, Path(folder) / run.name, trained_by, exact_gelu=run.recipe.exact_gelu, progress=show
                )
            found.append(measure_run(run, Path(folder), prompts, longest, show))
    joined = join_runs(found, Path(folder) / "results")
    progress("discrepancy", 0, 1)
    made = finish(joined, {"unfinished": unfinished, "prompts": list(prompts), "longest": longest})
    made.save(Path(folder) / "multihop")
    return made


def finish(joined: dict[str, pd.DataFrame], about: dict[str, Any]) -> MultihopResults:
    """The joined tables with their comparison with the paper."""
    heads: Any = joined["heads"]
    runs = heads[RUN].drop_duplicates().to_dict("records")
    return MultihopResults(
        **joined,
        measures=measures(joined),
        curves=curves(joined),
        comparison=compare_with_paper(joined),
        discrepancy=_discrepancy(),
        about=about | {"runs": runs, "recipes": _described_recipes(), "versions": versions()},
    )


def measure_run(
    run: PlannedRun, folder: Path, prompts: tuple[int, int], longest: int, progress: Progress
) -> dict[str, pd.DataFrame]:
    """All tables of a finished run."""
    _, validation, test = TASKS[run.task]().splits()
    at, about = folder / run.name, {"task": run.task, "seed": run.seed, "recipe": run.recipe.words}
    watched = measure_series(
        series_of_run(at), views_of_sequences(validation[: prompts[0]]), at / "dynamics", about=about, progress=progress
    )
    tables = {"heads": [watched.heads], "accuracy": [watched.accuracy], "purity": [watched.purity]}
    scored: Any = watched.heads
    last = int(scored["step"].max())
    for moment, step in (("best", best_step(watched.accuracy)), ("last", last)):
        progress(f"{moment} checkpoint", 0, 1)
        model = load_checkpoint(at, step)
        scores = scores_at(watched, step)
        there = measure_moment(model, run.task, at, moment, (validation[: prompts[1]], test), scores, longest, progress)
        for name, table in there.items():
            tables.setdefault(name, []).append(table.assign(moment=moment, step=step))
    return {
        name: pd.concat(parts, ignore_index=True).assign(task=run.task, seed=run.seed, recipe=run.recipe.words)
        for name, parts in tables.items()
    }


def measure_moment(
    model: Transformer,
    task: str,
    folder: Path,
    moment: str,
    sequences: tuple[Sequences, Sequences],
    scores: Float[Tensor, "L H 2"],
    longest: int,
    progress: Progress,
) -> dict[str, pd.DataFrame]:
    """What is measured of one checkpoint: on some validation sequences, on the test sequences, and at all lengths."""
    some, test = sequences

    def compute(cell: MomentCell) -> dict[str, Tensor]:
        return measure_roles(model, some) | {"test": torch.tensor(accuracy_by_hops(model, test))}

    cell = MomentCell(weights_hash(model), task, len(some), len(test))
    (measured,) = run_cells(folder / "dynamics" / "cells", [cell], compute)
    by_hops = measured["test"].tolist()
    held, moving = geometry(model, some), flow(model, task, some)
    held.save(folder / f"geometry-{moment}")
    grid = [TRAINED_TOKENS + added for added in ADDED if TRAINED_TOKENS + added <= longest]
    near, cells = [length for length in grid if length <= FAR], folder / "lengths" / "cells"
    lengths = measure_lengths(model, task, cells, grid=near, progress=progress)
    lengths.save(folder / f"lengths-{moment}")
    accuracy = [lengths.accuracy]
    if far := grid[len(near) :]:
        accuracy += [measure_lengths(model, task, cells, grid=far, prompts=FAR_PROMPTS, progress=progress).accuracy]
    return {
        "roles": role_table(measured, scores),
        "test": pd.DataFrame({"hops": range(1, len(by_hops) + 1), "accuracy": by_hops}),
        "geometry": held.heads, "use": held.use, "flow": moving.shares, "example": moving.example,
        "lengths": pd.concat(accuracy, ignore_index=True), "loss": lengths.loss,
    }  # fmt: skip


def join_runs(found: Sequence[dict[str, pd.DataFrame]], results: Path) -> dict[str, pd.DataFrame]:
    """The tables of these runs, and the rows of all other runs from the results folder."""
    joined = {}
    for name in JOINED:
        parts, path = [tables[name] for tables in found], results / f"dynamics-{name}.parquet"
        if path.is_file():
            before: Any = read_table(path)
            now = {run for table in parts for run in table[RUN].drop_duplicates().itertuples(index=False, name=None)}
            kept = [run not in now for run in before[RUN].itertuples(index=False, name=None)]
            parts.append(before[kept])
        if not parts:
            raise BadInput(f"no finished runs and no earlier results in {results.parent}")
        table: Any = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
        key = {label: number for number, label in enumerate(one.words for one in RECIPES.values())}
        order = [table["task"].map(list(TASKS).index), table["recipe"].map(key), table["seed"]]
        table = table.iloc[pd.concat(order, axis=1).sort_values(RUN, kind="stable").index]
        joined[name] = table.reset_index(drop=True)
    return joined


def scores_at(watched: Dynamics, step: int) -> Float[Tensor, "L H 2"]:
    """Positional and symbolic score of every head at a step."""
    there = watched.heads.query(f"query == 0 and step == {step}")
    scores = torch.stack([torch.tensor(there[name].to_numpy()) for name in ("positional", "symbolic")], -1)
    return scores.unflatten(0, (len(set(there["layer"])), -1))


def _described_recipes() -> dict[str, dict[str, Any]]:
    return {
        one.words: asdict(one.recipe(0)) | {"betas": list(one.recipe(0).betas), "exact_gelu": one.exact_gelu}
        for one in RECIPES.values()
    }


@cache
def _discrepancy() -> pd.DataFrame:
    return discrepancy_curves()


def _named(progress: Progress, name: str) -> Progress:
    return lambda what, done, total: progress(f"{name}: {what}", done, total)
