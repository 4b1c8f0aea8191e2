"""The paper on learning dynamics, reproduced: both tasks, several seeds, beside what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...cells.cells import run_cells
from ...lab import Recipe, load_checkpoint
from ...lab.train import accuracy_by_hops
from ...results import Progress, Result, ignore_progress, versions
from ...tasks import TASKS, Sequences
from ...tracing.fingerprint import weights_hash
from ...words import name_layers
from ..dynamics.measure import measure_series, views_of_sequences
from ..dynamics.result import Dynamics
from ..dynamics.series import series_of_run
from ..lengths.hop_lengths import GRID, measure_lengths
from ..theorems.discrepancy import discrepancy_curves
from .geometry import geometry
from .published import mean_frequencies, steps_to_learn
from .roles import measure_roles, role_table
from .train import train_task

LEARNT = 0.99  # accuracy from which a number of hops counts as learnt
FULL, PART = 2400, 400  # validation sequences scored for the first seed of a task, and for the others
STEPS, FREQUENCIES = "step at which 1, 2, 3, 4 hops first reach 99 %", "mean frequency ID by layer"

# As printed in the text, or read off a figure by eye (~); curves and tables are in published/.
PUBLISHED = {  # number, letter
    "pure positional, gamma 0.1": ("layers 0-3", "none"),
    "pure symbolic, gamma 0.1": ("layers 4-11", "layers 1-11"),
    "positional heads in the order in which they became pure": ("1 0 2 3", "none"),
    "symbolic heads in the order in which they became pure": ("not stated", "1 to 11, by depth"),
    "pure positional, gamma 0.05": ("layers 1-2", "none"),
    "pure symbolic, gamma 0.05": ("layers 5-11", "not stated"),
    STEPS: tuple(" ".join(map(str, steps_to_learn(task, LEARNT))) for task in TASKS),
    FREQUENCIES: tuple(" ".join(map(str, mean_frequencies(task))) for task in TASKS),
    "accuracy at 100, 300, 1000, 5000 tokens": ("~.74 ~.47 ~.20 ~.04", "not stated, ~.99 ~.86 ~.48"),
}


@dataclass(frozen=True)
class FinalCell:
    """The last checkpoint of a run: roles of its heads on validation sequences, accuracy on the test sequences."""

    weights: str
    task: str
    prompts: int
    tested: int
    version: int = 2


@dataclass(frozen=True)
class MultihopResults(Result, file="multihop.json", kind="reproduction of the paper on learning dynamics"):
    """All runs together: the tables of their dynamics with columns for task and seed, and the comparison.

    `test` is accuracy on the test sequences, `geometry` how heads hold queries and keys, `lengths` and `loss` accuracy
    and loss of attention on longer sequences. `discrepancy` belongs to the heads that theory constructs.
    """

    heads: pd.DataFrame
    accuracy: pd.DataFrame
    purity: pd.DataFrame
    roles: pd.DataFrame
    test: pd.DataFrame
    geometry: pd.DataFrame
    lengths: pd.DataFrame
    loss: pd.DataFrame
    comparison: pd.DataFrame
    discrepancy: pd.DataFrame
    about: dict[str, Any]

    def small_tables(self) -> dict[str, pd.DataFrame]:
        """Those that fit on a screen."""
        return {
            "comparison": self.comparison, "test": self.test, "purity": self.purity, "roles": self.roles,
            "geometry": self.geometry, "lengths": self.lengths, "loss": self.loss,
        }  # fmt: skip

    @classmethod
    def _paths(cls) -> dict[str, str]:
        """Names that can share a folder with the results of other papers."""
        return {name: f"dynamics-{path}" for name, path in super()._paths().items()}


def reproduce_multihop(
    folder: str | Path,
    seeds: Sequence[int] = (0, 1),
    tasks: Sequence[str] = ("number", "letter"),
    *,
    recipe: Callable[[int], Recipe] = lambda seed: Recipe(seed=seed),
    prompts: tuple[int, int] = (FULL, PART),
    longest: int = max(GRID),
    progress: Progress = ignore_progress,
) -> MultihopResults:
    """Train and measure models on every task and seed, and compare them with the paper.

    Every run is in folder/TASK-SEED, the result is saved in folder/multihop; existing runs and measurements are reused.

    >>> reproduce_multihop("runs").comparison                          # doctest: +SKIP
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    compared: dict[str, dict[str, dict[str, str]]] = {}
    for task in tasks:
        _, validation, test = TASKS[task]().splits()
        for number, seed in enumerate(seeds):
            name = f"{task}-{seed}"
            run, show = Path(folder) / name, _named(progress, name)
            train_task(task, run, recipe(seed), progress=show)
            sequences = validation[: prompts[0] if number == 0 else prompts[1]]
            about = {"task": task, "seed": seed}
            watched = measure_series(
                series_of_run(run), views_of_sequences(sequences), run / "dynamics", about=about, progress=show
            )
            show("test and roles", 0, 1)
            found = {"heads": watched.heads, "accuracy": watched.accuracy, "purity": watched.purity}
            found |= at_the_end(run, task, validation[: prompts[1]], test, final_scores(watched))
            held = geometry(load_checkpoint(run), validation[: prompts[1]])
            held.save(run / "geometry")
            far = measure_lengths(
                load_checkpoint(run), task, run / "lengths" / "cells", grid=[at for at in GRID if at <= longest],
                progress=show,
            )  # fmt: skip
            far.save(run / "lengths")
            found |= {"geometry": held.heads, "lengths": far.accuracy, "loss": far.loss}
            for part, table in found.items():
                parts.setdefault(part, []).append(table.assign(task=task, seed=seed))
            compared.setdefault(task, {})[f"seed {seed}"] = in_words(watched) | at_lengths(far.accuracy)
    joined = {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
    progress("discrepancy", 0, 1)
    recipes = [asdict(recipe(seed)) | {"betas": list(recipe(seed).betas)} for seed in seeds]
    about = {"tasks": list(tasks), "recipes": recipes, "prompts": list(prompts), "longest": longest}
    made = MultihopResults(
        **joined,
        comparison=compare_with_paper(compared),
        discrepancy=discrepancy_curves(),
        about=about | {"versions": versions()},
    )
    made.save(Path(folder) / "multihop")
    return made


def at_the_end(
    run: Path, task: str, some: Sequences, test: Sequences, scores: Float[Tensor, "L H 2"]
) -> dict[str, pd.DataFrame]:
    """Roles of the heads of a finished run on some sequences, and its accuracy on the test sequences."""
    model = load_checkpoint(run)

    def compute(cell: FinalCell) -> dict[str, Tensor]:
        return measure_roles(model, some) | {"test": torch.tensor(accuracy_by_hops(model, test))}

    cell = FinalCell(weights_hash(model), task, len(some), len(test))
    (measured,) = run_cells(run / "dynamics" / "cells", [cell], compute)
    by_hops = measured["test"].tolist()
    tested = pd.DataFrame({"hops": range(1, len(by_hops) + 1), "accuracy": by_hops})
    return {"roles": role_table(measured, scores), "test": tested}


def final_scores(watched: Dynamics) -> Float[Tensor, "L H 2"]:
    """Positional and symbolic score of every head at the last step."""
    last = _last_step(watched)
    scores = torch.stack([torch.tensor(last[name].to_numpy()) for name in ("positional", "symbolic")], -1)
    return scores.unflatten(0, (len(set(last["layer"])), -1))


def in_words(watched: Dynamics) -> dict[str, str]:
    """The findings of a run in the words of the paper."""
    made = {}
    for gamma in (0.1, 0.05):
        for kind, axis in (("where", "positional"), ("what", "symbolic")):
            pure = watched.purity.query(f"gamma == {gamma} and kind == '{kind}'")
            layers = tuple(pure.sort_values("step")["layer"].tolist())
            made[f"pure {axis}, gamma {gamma}"] = name_layers(layers) if layers else "none"
            if gamma == 0.1:
                order = " ".join(map(str, layers)) or "none"
                made[f"{axis} heads in the order in which they became pure"] = order
    learnt = []
    for _, seen in watched.accuracy.groupby("hops"):
        steps = seen["step"].to_numpy()[seen["accuracy"].to_numpy() >= LEARNT]
        learnt.append(str(steps.min()) if len(steps) else "never")
    made[STEPS] = " ".join(learnt)
    made[FREQUENCIES] = " ".join(f"{number:.0f}" for number in _last_step(watched)["mean_frequency"])
    return made


def at_lengths(accuracy: pd.DataFrame) -> dict[str, str]:
    """Accuracy over all hops at some lengths."""
    whole = accuracy.query("hops == 0")
    shares = dict(zip(whole["length"], whole["accuracy"], strict=True))
    return {
        "accuracy at 100, 300, 1000, 5000 tokens": " ".join(
            f"{shares[length]:.2f}" if length in shares else "-" for length in (100, 300, 1000, 5000)
        )
    }


def _named(progress: Progress, name: str) -> Progress:
    return lambda what, done, total: progress(f"{name}: {what}", done, total)


def _last_step(watched: Dynamics) -> pd.DataFrame:
    return watched.heads.query(f"query == 0 and step == {watched.heads['step'].max()}")


def compare_with_paper(compared: dict[str, dict[str, dict[str, str]]]) -> pd.DataFrame:
    """One row per finding: what was published, beside what was found for each seed."""
    rows = [
        {"task": task, "finding": finding, "published": dict(zip(TASKS, published, strict=True))[task]}
        | {seed: found.get(finding, "-") for seed, found in by_seed.items()}
        for task, by_seed in compared.items()
        for finding, published in PUBLISHED.items()
    ]
    return pd.DataFrame(rows)
