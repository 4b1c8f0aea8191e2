"""The paper on learning dynamics again: both tasks, several seeds, every figure's data, beside what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..files import write_tables
from ..lab import Recipe, load_checkpoint
from ..lab.train import accuracy_by_hops
from ..tasks import TASKS, Sequences
from .cells import run_cells
from .dynamics import Dynamics, dynamics, views_of_sequences
from .geometry import geometry
from .layers import name_layers
from .lengths import GRID, lengths
from .multihop import train_task
from .profile import weights_hash
from .roles import measure_roles, role_table
from .series import series_of_run

LEARNT = 0.99  # accuracy at which a number of hops counts as learnt
FULL, PART = 2400, 400  # validation sequences scored for the first seed of a task, and for the others

# Weighted mean frequency ID of each layer (Table 1); number's from layer 5 on are printed as a range, 37 to 39.
MEAN_FREQUENCY = {
    "number": (1, 2, 2, 2, 10, 38, 38, 38, 38, 38, 38, 38),
    "letter": (18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40),
}
# As printed, or read off a figure (~).
PUBLISHED = {
    "number": {
        "pure positional, gamma 0.1": "layers 0-3",
        "pure symbolic, gamma 0.1": "layers 4-11",
        "positional heads in the order in which they became pure": "1 0 2 3",
        "symbolic heads in the order in which they became pure": "not stated",
        "pure positional, gamma 0.05": "layers 1-2",
        "pure symbolic, gamma 0.05": "layers 5-11",
        "step at which 1, 2, 3, 4 hops first reach 99 %": "~2000, then ~3300-4000",
        "mean frequency ID by layer": "1 2 2 2 10, then 37-39",
        "accuracy at 100, 300, 1000, 5000 tokens": "~.74 ~.47 ~.20 ~.04",
    },
    "letter": {
        "pure positional, gamma 0.1": "none",
        "pure symbolic, gamma 0.1": "layers 1-11",
        "positional heads in the order in which they became pure": "none",
        "symbolic heads in the order in which they became pure": "1 to 11, by depth",
        "pure positional, gamma 0.05": "none",
        "pure symbolic, gamma 0.05": "not stated",
        "step at which 1, 2, 3, 4 hops first reach 99 %": "all ~3000",
        "mean frequency ID by layer": "18 32 42 37 40 38 41 38 41 39 38 40",
        "accuracy at 100, 300, 1000, 5000 tokens": "not stated, ~.99 ~.86 ~.48",
    },
}


@dataclass(frozen=True)
class FinalCell:
    """The last checkpoint of a run: its roles on some validation sequences, its accuracy on all test sequences."""

    weights: str
    task: str
    prompts: int
    tested: int
    version: int = 2


@dataclass(frozen=True)
class Learning:
    """All runs together: every table of their dynamics with a column for task and seed, and the comparison."""

    heads: pd.DataFrame
    accuracy: pd.DataFrame
    purity: pd.DataFrame
    roles: pd.DataFrame
    test: pd.DataFrame
    geometry: pd.DataFrame
    lengths: pd.DataFrame
    loss: pd.DataFrame
    comparison: pd.DataFrame

    def small_tables(self) -> dict[str, pd.DataFrame]:
        """Those that fit on a screen."""
        return {
            "comparison": self.comparison, "test": self.test, "purity": self.purity, "roles": self.roles,
            "geometry": self.geometry, "lengths": self.lengths, "loss": self.loss,
        }  # fmt: skip

    def save(self, folder: str | Path) -> None:
        write_tables(folder, {f"dynamics-{name}": table for name, table in vars(self).items()})


def reproduce_learning(
    folder: str | Path,
    seeds: Sequence[int] = (0, 1),
    tasks: Sequence[str] = ("number", "letter"),
    *,
    recipe: Callable[[int], Recipe] = lambda seed: Recipe(seed=seed),
    prompts: tuple[int, int] = (FULL, PART),
    longest: int = max(GRID),
    training: Callable[[str, int, int, float, float], None] = lambda run, step, steps, loss, accuracy: None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Learning:
    """Train, watch and compare; whatever is in the folder already is not done again.

    >>> reproduce_learning("runs").comparison                          # doctest: +SKIP
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    compared: dict[str, dict[str, dict[str, str]]] = {}
    for task in tasks:
        _, validation, test = TASKS[task]().splits()
        for number, seed in enumerate(seeds):
            name = f"{task}-{seed}"
            run = Path(folder) / name
            train_task(task, run, recipe(seed), progress=lambda *state, name=name: training(name, *state))
            seen = validation[: prompts[0] if number == 0 else prompts[1]]
            watched = dynamics(
                series_of_run(run), views_of_sequences(seen), run / "dynamics", about={"task": task, "seed": seed},
                progress=lambda _, done, total, name=name: progress(f"{name}: checkpoints", done, total),
            )  # fmt: skip
            progress(f"{name}: test and roles", 0, 1)
            found = {"heads": watched.heads, "accuracy": watched.accuracy, "purity": watched.purity}
            found |= at_the_end(run, task, validation[: prompts[1]], test, final_scores(watched))
            held = geometry(load_checkpoint(run), validation[: prompts[1]])
            held.save(run / "geometry")
            far = lengths(
                load_checkpoint(run), task, run / "lengths" / "cells", grid=[at for at in GRID if at <= longest],
                progress=lambda what, done, total, name=name: progress(f"{name}: {what}", done, total),
            )  # fmt: skip
            far.save(run / "lengths")
            found |= {"geometry": held.heads, "lengths": far.accuracy, "loss": far.loss}
            for part, table in found.items():
                parts.setdefault(part, []).append(table.assign(task=task, seed=seed))
            compared.setdefault(task, {})[f"seed {seed}"] = in_words(watched) | at_lengths(far.accuracy)
    joined = {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
    return Learning(**joined, comparison=compare_with_paper(compared))


def at_the_end(
    run: Path, task: str, some: Sequences, test: Sequences, scores: Float[Tensor, "L H 2"]
) -> dict[str, pd.DataFrame]:
    """Roles of the heads of a finished run on some sequences, and its accuracy on all test sequences."""
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
    """What happened in a run, as the paper puts its findings."""
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
    made["step at which 1, 2, 3, 4 hops first reach 99 %"] = " ".join(learnt)
    made["mean frequency ID by layer"] = " ".join(f"{number:.0f}" for number in _last_step(watched)["mean_frequency"])
    return made


def at_lengths(accuracy: pd.DataFrame) -> dict[str, str]:
    """Accuracy over all hops at some lengths, as the paper's figure shows it."""
    whole = accuracy.query("hops == 0")
    shares = dict(zip(whole["length"], whole["accuracy"], strict=True))
    return {
        "accuracy at 100, 300, 1000, 5000 tokens": " ".join(
            f"{shares[length]:.2f}" if length in shares else "-" for length in (100, 300, 1000, 5000)
        )
    }


def _last_step(watched: Dynamics) -> pd.DataFrame:
    return watched.heads.query(f"query == 0 and step == {watched.heads['step'].max()}")


def compare_with_paper(compared: dict[str, dict[str, dict[str, str]]]) -> pd.DataFrame:
    """A row a finding, what was published beside what was found for each seed."""
    rows = [
        {"task": task, "finding": finding, "published": published}
        | {seed: found.get(finding, "-") for seed, found in by_seed.items()}
        for task, by_seed in compared.items()
        for finding, published in PUBLISHED[task].items()
    ]
    return pd.DataFrame(rows)
