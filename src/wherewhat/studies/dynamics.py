"""Watch heads become pure: the same prompts measured at every checkpoint of a series, with no attention ever stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from ..capture import capture
from ..capture.offload import entry_device
from ..core.frequency import mean_frequency
from ..core.kinds import kind
from ..core.measure import entropy, frequency_use, score
from ..errors import BadInput, CellsFailed
from ..files import write_atomically, write_table
from ..lab import Transformer
from ..prompts import Prompt
from ..tasks import Sequences
from .cells import cell_hash, run_cells
from .executors import Executor, InTurn, Status, current, executing
from .explorable import Explorable
from .profile_file import plain
from .series import Checkpoint

GAMMAS = (0.2, 0.1, 0.05)
BATCH = 64  # prompts a forward pass
TABLES = ("heads", "accuracy", "purity")
MEANS = ("positional", "symbolic", "entropy", "use")
VERSION = 1
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class View:
    """Prompts of one length seen from their last token; `query` says which one it is: 0 the end, 1 the first hop..."""

    tokens: Int[Tensor, "B T"]
    blocks: tuple[tuple[int, int], ...] | None = None
    answers: Int[Tensor, " B"] | None = None
    hops: Int[Tensor, " B"] | None = None
    query: int = 0


@dataclass(frozen=True)
class CheckpointCell:
    """One checkpoint measured on one set of prompts."""

    weights: str
    prompts: str
    tau: float
    version: int = VERSION


@dataclass(frozen=True)
class Dynamics(Explorable):
    """What became of every head: scores at every step, accuracy by hops, and when each head became pure.

    `heads` has a row a step, query (0 the last token, 1 the first position hopped to, ...), layer and head.

    >>> Dynamics.load("runs/number/dynamics").purity.query("gamma == 0.1")             # doctest: +SKIP
    """

    heads: pd.DataFrame
    accuracy: pd.DataFrame
    purity: pd.DataFrame
    about: dict[str, Any]

    def save(self, folder: str | Path) -> None:
        """Three tables and dynamics.json, each written atomically, the last one last."""
        for name in TABLES:
            write_table(Path(folder) / f"{name}.parquet", getattr(self, name))
        write_atomically(Path(folder) / "dynamics.json", json.dumps(self.about, indent=1) + "\n")

    @staticmethod
    def load(folder: str | Path) -> Dynamics:
        try:
            about = json.loads((Path(folder) / "dynamics.json").read_text())
            heads, accuracy, purity = (pd.read_parquet(Path(folder) / f"{name}.parquet") for name in TABLES)
        except FileNotFoundError as error:
            raise BadInput(f"{folder}: holds no dynamics ({Path(error.filename).name} is missing)") from error
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder}: damaged or unreadable ({error})") from error
        return Dynamics(heads, accuracy, purity, about)


def dynamics(
    series: Sequence[Checkpoint],
    views: Sequence[View],
    folder: str | Path | None = None,
    *,
    tau: float = 1e-4,
    allow_repeated: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Dynamics:
    """Measure every checkpoint on the same prompts; what is in the folder already is not measured again.

    With a folder, a checkpoint that cannot be measured stops no other: `about["failed"]` tells why. Two with the same
    weights are refused unless `allow_repeated`.

    >>> watched = dynamics(series_of_run("runs/number"), views_of_sequences(validation))      # doctest: +SKIP
    """
    if not series:
        raise BadInput("a series needs at least one checkpoint")
    if not allow_repeated:
        refuse_repeats(series)
    prompts = _digest(views)
    cells = {checkpoint: CheckpointCell(checkpoint.identity, prompts, tau) for checkpoint in series}
    of_cell = {cell: checkpoint for checkpoint, cell in cells.items()}

    def compute(cell: CheckpointCell) -> dict[str, Tensor]:
        with of_cell[cell].opened() as (model, weights):
            return measure(model, views, tau) | {"weights": torch.frombuffer(bytearray(weights), dtype=torch.uint8)}

    kept = None if folder is None else Path(folder) / "cells"
    failed: dict[str, str] = {}
    try:
        with executing(*_patiently(progress)):
            results = list(run_cells(kept, list(cells.values()), compute, "checkpoints"))
    except CellsFailed as error:
        reasons = {checkpoint: error.failed.get(cell_hash(cell)) for checkpoint, cell in cells.items()}
        failed = {checkpoint.name: reason for checkpoint, reason in reasons.items() if reason is not None}
        series = [checkpoint for checkpoint in series if reasons[checkpoint] is None]
        if not series:
            raise CellsFailed("checkpoints", len(failed), failed, error.logs) from None
        results = list(run_cells(kept, [cells[checkpoint] for checkpoint in series], compute))
    weights = [bytes(one["weights"].tolist()).hex() for one in results]
    if not allow_repeated:
        refuse_repeats(series, weights)
    _refuse_mixtures(series, results)
    steps = [checkpoint.step for checkpoint in series]
    heads = head_table(steps, results)
    count = sum(len(view.tokens) for view in views if view.query == 0)
    described = {"prompts": count, "tau": plain(tau), "checkpoints": len(series), **(about or {})}
    described["series"] = [
        {"step": one.step, "name": one.name, "commit": one.commit, "weights": hashed}
        for one, hashed in zip(series, weights, strict=True)
    ]
    described |= {"failed": failed} if failed else {}
    made = Dynamics(heads, accuracy_table(steps, results), purity_table(heads), described)
    if folder is not None:
        made.save(folder)
    return made


def views_of_sequences(sequences: Sequences, hop_positions: bool = False) -> list[View]:
    """Sequences of a task seen from their last token, and from the positions hopped to if asked for.

    A query sees what stands before it, so a sequence seen from a hop is the sequence cut there.
    """
    views = [View(sequences.tokens, None, sequences.answers, sequences.hops)]
    for query in range(1, sequences.path.shape[1] - 1 if hop_positions else 1):
        for position in range(sequences.tokens.shape[1] - 1):
            rows = (sequences.path[:, query] == position) & (sequences.hops > query)
            if rows.any():
                views.append(View(sequences.tokens[rows, : position + 1], query=query))
    return views


def views_of_prompts(prompts: Sequence[Prompt]) -> list[View]:
    """Prompts of real models with their blocks; a right answer counts as one hop."""
    return [
        View(
            torch.tensor([prompt.ids]),
            prompt.blocks,
            None if prompt.answer is None else torch.tensor([prompt.answer]),
            None if prompt.answer is None else torch.tensor([1]),
        )
        for prompt in prompts
    ]


def measure(model: Transformer | PreTrainedModel, views: Sequence[View], tau: float) -> dict[str, Tensor]:
    """Means over all prompts: (Q, L, H) and, for the use of frequencies, (Q, L, H, F); right answers by hops."""
    totals: dict[tuple[str, int], Tensor] = {}
    count: dict[int, int] = {}
    most = max((int(view.hops.max()) for view in views if view.hops is not None), default=0)
    right, asked = torch.zeros(most), torch.zeros(most)
    for view, rows in _batches(views):
        trace = capture(model, view.tokens[rows].to(entry_device(model)))
        scores = score(trace, view.blocks, tau)
        values = (scores.positional, scores.symbolic, entropy(trace), frequency_use(trace).maximum)
        for name, value in zip(MEANS, values, strict=True):
            total = value.double().sum(0)
            totals[name, view.query] = totals.get((name, view.query), torch.zeros_like(total)) + total
        count[view.query] = count.get(view.query, 0) + values[0].shape[0]
        if view.answers is not None and view.hops is not None and trace.output is not None:
            correct = (trace.output.argmax(-1).cpu() == view.answers[rows]).float()
            right.index_add_(0, view.hops[rows] - 1, correct)
            asked.index_add_(0, view.hops[rows] - 1, torch.ones_like(correct))
    means = {
        name: torch.stack([totals[name, query] / count[query] for query in sorted(count)]).float() for name in MEANS
    }
    return means | {"accuracy": right / asked, "queries": torch.tensor(sorted(count))}


def head_table(steps: Sequence[int], results: Sequence[dict[str, Tensor]]) -> pd.DataFrame:
    """A row a step, query, layer and head."""
    planes = results[0]["use"].shape[-1]
    typical = [mean_frequency(one["use"][..., :planes]) for one in results]
    shape = results[0]["positional"].shape
    index = np.indices((len(steps), *shape)).reshape(4, -1)
    columns = {name: torch.stack([one[name] for one in results]).flatten().numpy() for name in MEANS if name != "use"}
    table = pd.DataFrame(
        {"step": np.asarray(steps)[index[0]], "query": results[0]["queries"].numpy()[index[1]]}
        | {"layer": index[2], "head": index[3]}
        | columns
        | {"mean_frequency": torch.stack(typical).flatten().numpy()}
    )
    table["kind"] = [kind(*pair) for pair in zip(table["positional"], table["symbolic"], strict=True)]
    return table


def accuracy_table(steps: Sequence[int], results: Sequence[dict[str, Tensor]]) -> pd.DataFrame:
    """A row a step and number of hops."""
    rows = [
        {"step": step, "hops": hops, "accuracy": share}
        for step, result in zip(steps, results, strict=True)
        for hops, share in enumerate(result["accuracy"].tolist(), 1)
    ]
    return pd.DataFrame(rows, columns=["step", "hops", "accuracy"])


def purity_table(heads: pd.DataFrame) -> pd.DataFrame:
    """When each head became pure: the first step from which it stays so to the end; no row for one that does not.

    Pure means at least 1 - gamma on one axis and at most gamma on the other.
    """
    rows = []
    last = heads.query("query == 0").sort_values(["step", "layer", "head"])
    steps = last["step"].unique()
    places = last[["layer", "head"]].drop_duplicates().to_numpy()
    scores = {name: last[name].to_numpy().reshape(len(steps), -1) for name in ("positional", "symbolic")}
    for gamma in GAMMAS:
        for one, other, name in (("positional", "symbolic", "where"), ("symbolic", "positional", "what")):
            pure = (scores[one] >= 1 - gamma) & (scores[other] <= gamma)
            lasting = np.logical_and.accumulate(pure[::-1])[::-1]
            for column in np.flatnonzero(lasting.any(axis=0)):
                layer, head = places[column].tolist()
                step = int(steps[lasting[:, column].argmax()])
                rows.append({"gamma": gamma, "layer": layer, "head": head, "kind": name, "step": step})
    table = pd.DataFrame(rows, columns=["gamma", "layer", "head", "kind", "step"])
    return table.sort_values(["gamma", "step", "layer", "head"], ascending=[False, True, True, True], ignore_index=True)


def _batches(views: Sequence[View]) -> Iterator[tuple[View, slice]]:
    for view in views:
        for start in range(0, len(view.tokens), BATCH):
            yield view, slice(start, start + BATCH)


def _patiently(progress: Progress) -> tuple[Executor, Status]:
    """The executor in force; else here, one checkpoint after another, where one that fails stops no other."""
    executor, status = current()
    if executor is not None:
        return executor, status
    return InTurn(), lambda _, done, running, failed, total: progress("checkpoints", done + failed, total)


def refuse_repeats(series: Sequence[Checkpoint], weights: Sequence[str] | None = None) -> None:
    """Two steps with the same weights are a mistake of whoever saved them, or of the list: seen from their files, or
    from the hashes of their weights once they were loaded."""
    groups: dict[str, list[str]] = {}
    for checkpoint, identity in zip(series, weights or [one.identity for one in series], strict=True):
        groups.setdefault(identity, []).append(checkpoint.name)
    if repeated := [group for group in groups.values() if len(group) > 1]:
        named = "; ".join(f"{', '.join(group[:-1])} and {group[-1]} hold the same weights" for group in repeated)
        raise BadInput(f"{named} (--allow-repeated measures them all the same)")


def _refuse_mixtures(series: Sequence[Checkpoint], results: Sequence[dict[str, Tensor]]) -> None:
    shapes = [tuple(one["use"].shape[1:]) for one in results]
    for checkpoint, (layers, heads, frequencies) in zip(series, shapes, strict=True):
        if (layers, heads, frequencies) != shapes[0]:
            raise BadInput(
                f"{checkpoint.name} has {layers} layers of {heads} heads and {frequencies} frequencies, "
                f"{series[0].name} has {shapes[0][0]}, {shapes[0][1]} and {shapes[0][2]}: these are no one series"
            )


def _digest(views: Sequence[View]) -> str:
    """What tells these prompts from others."""
    plain = [
        {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(view).items()}
        for view in views
    ]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
