"""Runs beside the published curves and tables: single numbers, whole curves, and findings in the paper's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...tasks import TASKS
from ...words import count, name_layers
from ..dynamics.measure import purity_table
from ..dynamics.result import GAMMAS, Dynamics
from ..lengths.paper import TRAINED_TOKENS, published_lengths
from .published import mean_frequencies, published, steps_to_learn

LEARNT = 0.99  # accuracy from which a number of hops counts as learnt
STEPS, FREQUENCIES = "step at which 1, 2, 3, 4 hops first reach 99 %", "mean frequency ID by layer, as in table 1"
LENGTHS = "accuracy with 100, 300, 1000, 5000 added tokens"
SHOWN_LENGTHS = (100, 300, 1000, 5000)
RUN = ["task", "recipe", "seed"]
PURELY = {"where": "positional", "what": "symbolic"}  # by kind of a pure head
Tables = Mapping[str, Any]  # tables by name


def published_purity(task: str) -> pd.DataFrame:
    """When each head became pure for each gamma, by our rule, from the curves of figure 6."""
    curves: Any = published("dynamics-scores")
    return purity_table(curves[curves["task"] == task].assign(query=0, head=0))


def measures(tables: Tables) -> pd.DataFrame:
    """Single published numbers beside ours, one row per number and run.

    Columns: figure, quantity, published, ours, and task, recipe, seed, moment of the run ("last" or "best" checkpoint).
    What a run has not reached, such as a head that never became pure, is NaN.
    """
    rows = [*_hops_learnt(tables), *_final_scores(tables), *_purity_steps(tables), *_lengths(tables), *_ids(tables)]
    columns = ["figure", "quantity", "task", "recipe", "seed", "moment", "published", "ours"]
    return pd.DataFrame(rows, columns=columns)


def curves(tables: Tables) -> pd.DataFrame:
    """Published curves beside the spread over seeds of every recipe.

    `inside` is the share of published points that lie between the lowest and the highest seed, `distance` the mean
    distance between the published curve and the mean over seeds.
    """
    heads, accuracy = tables["heads"].query("query == 0 and head == 0"), tables["accuracy"]
    scores: Any = published("dynamics-scores").drop(columns="entropy").rename(columns={"layer": "part"})
    hops: Any = published("dynamics-accuracy").query("hops != 'all'").astype({"hops": int})
    far: Any = best_or_last(tables["lengths"].query("hops == 0"))
    far = far.assign(step=far["length"] - TRAINED_TOKENS, part=0)
    cases = [
        (
            "6",
            f"{score}, layer",
            scores.assign(value=scores[score]),
            heads.assign(part=heads["layer"], value=heads[score]),
        )
        for score in ("positional", "symbolic")
    ]
    cases.append((
        "2A", "accuracy, hops", hops.rename(columns={"hops": "part", "accuracy": "value"}),
        accuracy.assign(part=accuracy["hops"], value=accuracy["accuracy"]),
    ))  # fmt: skip
    cases.append(("5B", "accuracy by added tokens", _published_far(), far.assign(value=far["accuracy"])))
    rows = []
    for figure, curve, there, here in cases:
        joined = here.merge(there, on=["task", "part", "step"], suffixes=("", "_published"))
        for (task, recipe, part), those in joined.groupby(["task", "recipe", "part"]):
            over: Any = those.groupby("step")
            low, high, mean = (getattr(over["value"], name)() for name in ("min", "max", "mean"))
            wanted = over["value_published"].first()
            rows.append(
                {"figure": figure, "curve": f"{curve} {part}", "task": task, "recipe": recipe}
                | {"seeds": those["seed"].nunique(), "points": len(wanted)}
                | {"inside": float(((wanted >= low - 0.002) & (wanted <= high + 0.002)).mean())}
                | {"distance": float((wanted - mean).abs().mean())}
            )
    return pd.DataFrame(rows, columns=["figure", "curve", *RUN[:2], "seeds", "points", "inside", "distance"])


def best_or_last(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best checkpoint of each run, or of its last one if only that was measured."""
    known: Any = table
    with_best = {tuple(run) for run in known.loc[known["moment"] == "best", RUN].drop_duplicates().to_numpy().tolist()}
    wanted = ["best" if tuple(run) in with_best else "last" for run in known[RUN].to_numpy().tolist()]
    return known[known["moment"] == wanted]


def _published_far() -> pd.DataFrame:
    wide = published_lengths().melt("added_tokens", var_name="task").rename(columns={"added_tokens": "step"})
    return wide.assign(part=0)


def _rows(figure: str, run: Any, moment: str, pairs: Mapping[str, tuple[int | float, ...]]) -> list[dict[str, Any]]:
    of_run = dict(zip(RUN, run, strict=True)) | {"figure": figure, "moment": moment}
    return [of_run | {"quantity": name, "published": wanted, "ours": found} for name, (wanted, found) in pairs.items()]


def _hops_learnt(tables: Tables) -> list[dict[str, Any]]:
    rows = []
    for run, seen in tables["accuracy"].groupby(RUN):
        wanted = steps_to_learn(str(run[0]), LEARNT)
        found = {hops: _first(those, LEARNT) for hops, those in seen.groupby("hops")}
        pairs = {
            f"first step with 99 % at {count(hops, 'hop')}": (wanted[hops - 1], found.get(hops, np.nan))
            for hops in range(1, 5)
        }
        rows += _rows("2A", run, "last", pairs)
    return rows


def _first(seen: pd.DataFrame, least: float) -> float:
    steps = seen.loc[seen["accuracy"] >= least, "step"]
    return float(steps.min()) if len(steps) else np.nan


def _final_scores(tables: Tables) -> list[dict[str, Any]]:
    """At the last step, and at the step with the best validation accuracy, both beside the end of the curve."""
    wanted: Any = published("dynamics-scores")
    wanted = wanted[wanted["step"] == wanted["step"].max()].set_index(["task", "layer"])
    rows = []
    for run, heads in tables["heads"].query("query == 0 and head == 0").groupby(RUN):
        accuracy = tables["accuracy"].set_index(RUN).loc[run]
        for moment, step in (("last", heads["step"].max()), ("best", best_step(accuracy))):
            for one in heads[heads["step"] == step].to_dict("records"):
                known = wanted.loc[(run[0], one["layer"])]
                pairs = {f"{score}, layer {one['layer']}": (float(known[score]), one[score]) for score in SCORES}
                rows += _rows("6", run, moment, pairs)
    return rows


SCORES = ("positional", "symbolic")


def best_step(accuracy: pd.DataFrame) -> int:
    """The first step with the highest validation accuracy over all hops.

    >>> best_step(pd.DataFrame({"step": [0, 0, 50, 50, 100, 100], "accuracy": [0, 0, 1, 0.8, 0.9, 0.9]}))
    50
    """
    over: Any = accuracy.groupby("step")["accuracy"].mean()
    return int(over.idxmax())


def _purity_steps(tables: Tables) -> list[dict[str, Any]]:
    rows = []
    for run, _ in tables["heads"].groupby(RUN):
        ours: Any = tables["purity"]
        ours = ours[(ours[RUN] == list(run)).all(axis=1)]
        for gamma in GAMMAS:
            there, here = (
                {
                    (one["layer"], one["kind"]): one["step"]
                    for one in table.query(f"gamma == {gamma}").to_dict("records")
                }
                for table in (published_purity(str(run[0])), ours)
            )
            pairs = {
                f"layer {layer} purely {PURELY[kind]} at gamma {gamma} from step": (
                    there.get((layer, kind), np.nan),
                    here.get((layer, kind), np.nan),
                )
                for layer, kind in dict.fromkeys((*there, *here))
            }
            rows += _rows("2C" if gamma == 0.2 else "7", run, "last", pairs)
    return rows


def _lengths(tables: Tables) -> list[dict[str, Any]]:
    wanted, rows = published_lengths().set_index("added_tokens"), []
    for (*run, moment), far in tables["lengths"].query("hops == 0").groupby([*RUN, "moment"]):
        added = far["length"] - TRAINED_TOKENS
        pairs = {
            f"accuracy with {at} added tokens": (float(wanted.loc[at, run[0]]), found)
            for at, found in zip(added, far["accuracy"], strict=True)
            if at in wanted.index
        }
        rows += _rows("5B", run, moment, pairs)
    return rows


def _ids(tables: Tables) -> list[dict[str, Any]]:
    rows, known = [], tables["geometry"].query("head == 0").dropna(subset="softmax_mean_frequency")
    for (*run, moment), heads in known.groupby([*RUN, "moment"]):
        wanted = dict(enumerate(mean_frequencies(str(run[0]))))
        found = zip(heads["layer"], heads["softmax_mean_frequency"], strict=True)
        rows += _rows("table 1", run, moment, {f"mean ID, layer {at}": (wanted[at], one) for at, one in found})
    return rows


def in_words(watched: Dynamics) -> dict[str, str]:
    """The findings of a run in the words of the paper."""
    made = {}
    for gamma in GAMMAS:
        for kind, axis in (("where", "positional"), ("what", "symbolic")):
            pure = watched.purity.query(f"gamma == {gamma} and kind == '{kind}'")
            layers = tuple(pure.sort_values(["step", "layer"])["layer"].tolist())
            made[f"pure {axis}, gamma {gamma}"] = name_layers(layers) if layers else "none"
            if gamma == GAMMAS[0]:
                order = " ".join(map(str, layers)) or "none"
                made[f"{axis} heads in the order in which they became pure, gamma {gamma}"] = order
    learnt = [_first(seen, LEARNT) for _, seen in watched.accuracy.groupby("hops")]
    made[STEPS] = " ".join("never" if np.isnan(step) else f"{step:.0f}" for step in learnt)
    return made


def words_of_run(tables: Tables, run: tuple[str, str, int]) -> dict[str, str]:
    """The findings of one run, from all tables."""
    own = {name: table[(table[RUN] == list(run)).all(axis=1)] for name, table in tables.items() if RUN[1] in table}
    made = in_words(Dynamics(own["heads"], own["accuracy"], own["purity"], {}))
    known = best_or_last(own["geometry"].query("head == 0"))["softmax_mean_frequency"].dropna()
    made[FREQUENCIES] = " ".join(f"{number:.0f}" for number in known) or "not measured"
    return made | at_lengths(own["lengths"])


def at_lengths(accuracy: pd.DataFrame) -> dict[str, str]:
    """Accuracy over all hops at some lengths, of the best checkpoint if it was measured, else of the last one."""
    whole = best_or_last(accuracy.query("hops == 0"))
    shares = dict(zip(whole["length"] - TRAINED_TOKENS, whole["accuracy"], strict=True))
    return {LENGTHS: " ".join(f"{shares[added]:.2f}" if added in shares else "-" for added in SHOWN_LENGTHS)}


def words_of_paper(task: str) -> dict[str, str]:
    """The same findings from the published curves and tables, by the same rules."""
    curves: Any = published("dynamics-scores")
    accuracy: Any = published("dynamics-accuracy").query("hops != 'all'").astype({"hops": int})
    known = Dynamics(
        curves[curves["task"] == task], accuracy[accuracy["task"] == task], published_purity(task), {"task": task}
    )
    far = published_lengths().set_index("added_tokens")[task]
    return in_words(known) | {
        FREQUENCIES: " ".join(map(str, mean_frequencies(task))),
        LENGTHS: " ".join(f"{far[added]:.2f}" for added in SHOWN_LENGTHS),
    }


def compare_with_paper(tables: Tables) -> pd.DataFrame:
    """One row per task and finding: published, and one column per recipe and seed."""
    runs = [tuple(run) for run in tables["heads"][RUN].drop_duplicates().to_numpy().tolist()]
    rows = []
    for task in TASKS:
        found = {
            f"{recipe}, seed {seed}": words_of_run(tables, (task, recipe, seed))
            for of, recipe, seed in runs
            if of == task
        }
        for finding, known in words_of_paper(task).items():
            rows.append(
                {"task": task, "finding": finding, "published": known}
                | {run: said.get(finding, "-") for run, said in found.items()}
            )
    return pd.DataFrame(rows)
