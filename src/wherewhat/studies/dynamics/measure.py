"""The same prompts measured at every checkpoint of a series; attention is never stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from ...cells.cells import cell_hash, kept, run_cells
from ...cells.executors import Executor, SerialExecutor, Status, current, executing
from ...core.frequency import mean_frequency
from ...core.kinds import kind
from ...core.scores import entropy, frequency_use, score
from ...errors import BadInput, CellsFailed
from ...files import plain
from ...lab import Transformer
from ...prompts import Prompt
from ...results import Progress, Say, ignore_progress, ignore_sentence
from ...tasks import Sequences
from ...tracing import capture
from ...tracing.offload import entry_device
from ...words import count
from .result import GAMMAS, Dynamics
from .series import Checkpoint

BATCH = 64  # prompts per forward pass
MEANS = ("positional", "symbolic", "entropy", "use")
VERSION = 1


@dataclass(frozen=True)
class View:
    """Prompts of one length whose last token is the query. `query` 0: the end of the prompt, 1: the first hop, ..."""

    tokens: Int[Tensor, "B T"]
    blocks: tuple[tuple[int, int], ...] | None = None
    answers: Int[Tensor, " B"] | None = None
    hops: Int[Tensor, " B"] | None = None
    query: int = 0


@dataclass(frozen=True)
class CheckpointCell:
    """One checkpoint on one set of prompts."""

    weights: str
    prompts: str
    tau: float
    version: int = VERSION


def measure_series(
    series: Sequence[Checkpoint],
    views: Sequence[View],
    folder: str | Path | None = None,
    *,
    tau: float = 1e-4,
    allow_repeated: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Dynamics:
    """Measure every checkpoint on the same prompts; existing results in the folder are reused.

    With a folder, the other checkpoints are still measured if one fails: `about["failed"]` has the reason. Checkpoints
    with the same weights are refused unless `allow_repeated`.

    >>> found = measure_series(series_of_run("runs/number"), views_of_sequences(validation))      # doctest: +SKIP
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
            return measure_checkpoint(model, views, tau) | {
                "weights": torch.frombuffer(bytearray(weights), dtype=torch.uint8)
            }

    keep = None if folder is None else Path(folder) / "cells"
    if before := kept(keep, list(cells.values())):
        say(f"{before} of {count(len(cells), 'checkpoint')} reused from {folder}")
    failed: dict[str, str] = {}
    results: list[dict[str, Tensor]] = []
    try:
        with executing(*_executor(progress)):
            for result in run_cells(keep, list(cells.values()), compute, "checkpoints"):
                results.append(result)
                progress("checkpoints", len(results), len(cells))
    except CellsFailed as error:
        reasons = {checkpoint: error.failed.get(cell_hash(cell)) for checkpoint, cell in cells.items()}
        failed = {checkpoint.name: reason for checkpoint, reason in reasons.items() if reason is not None}
        series = [checkpoint for checkpoint in series if reasons[checkpoint] is None]
        if not series:
            raise CellsFailed("checkpoints", len(failed), failed, error.logs) from None
        results = list(run_cells(keep, [cells[checkpoint] for checkpoint in series], compute))
    weights = [bytes(one["weights"].tolist()).hex() for one in results]
    if not allow_repeated:
        refuse_repeats(series, weights)
    _refuse_mixtures(series, results)
    steps = [checkpoint.step for checkpoint in series]
    heads = head_table(steps, results)
    number = sum(len(view.tokens) for view in views if view.query == 0)
    described = {"prompts": number, "tau": plain(tau), "checkpoints": len(series), **(about or {})}
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
    """Sequences of a task with the last token as the query, and with `hop_positions` also the positions hopped to.

    Attention is causal, so a query in the middle of a sequence is the end of a shorter one.
    """
    views = [View(sequences.tokens, None, sequences.answers, sequences.hops)]
    for query in range(1, sequences.path.shape[1] - 1 if hop_positions else 1):
        for position in range(sequences.tokens.shape[1] - 1):
            rows = (sequences.path[:, query] == position) & (sequences.hops > query)
            if rows.any():
                views.append(View(sequences.tokens[rows, : position + 1], query=query))
    return views


def views_of_prompts(prompts: Sequence[Prompt]) -> list[View]:
    """Prompts of language models with their blocks; each answer counts as one hop."""
    return [
        View(
            torch.tensor([prompt.ids]),
            prompt.blocks,
            None if prompt.answer is None else torch.tensor([prompt.answer]),
            None if prompt.answer is None else torch.tensor([1]),
        )
        for prompt in prompts
    ]


def measure_checkpoint(model: Transformer | PreTrainedModel, views: Sequence[View], tau: float) -> dict[str, Tensor]:
    """Means over all prompts: (Q, L, H), for the use of frequencies (Q, L, H, F), and accuracy by hops."""
    totals: dict[tuple[str, int], Tensor] = {}
    counts: dict[int, int] = {}
    most = max((int(view.hops.max()) for view in views if view.hops is not None), default=0)
    right, asked = torch.zeros(most), torch.zeros(most)
    for view, rows in _batches(views):
        trace = capture(model, view.tokens[rows].to(entry_device(model)))
        scores = score(trace, view.blocks, tau)
        values = (scores.positional, scores.symbolic, entropy(trace), frequency_use(trace).maximum)
        for name, value in zip(MEANS, values, strict=True):
            total = value.double().sum(0)
            totals[name, view.query] = totals.get((name, view.query), torch.zeros_like(total)) + total
        counts[view.query] = counts.get(view.query, 0) + values[0].shape[0]
        if view.answers is not None and view.hops is not None and trace.output is not None:
            correct = (trace.output.argmax(-1).cpu() == view.answers[rows]).float()
            right.index_add_(0, view.hops[rows] - 1, correct)
            asked.index_add_(0, view.hops[rows] - 1, torch.ones_like(correct))
    means = {
        name: torch.stack([totals[name, query] / counts[query] for query in sorted(counts)]).float() for name in MEANS
    }
    return means | {"accuracy": right / asked, "queries": torch.tensor(sorted(counts))}


def head_table(steps: Sequence[int], results: Sequence[dict[str, Tensor]]) -> pd.DataFrame:
    """One row per step, query, layer and head."""
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
    """One row per step and number of hops."""
    rows = [
        {"step": step, "hops": hops, "accuracy": share}
        for step, result in zip(steps, results, strict=True)
        for hops, share in enumerate(result["accuracy"].tolist(), 1)
    ]
    return pd.DataFrame(rows, columns=["step", "hops", "accuracy"])


def purity_table(heads: pd.DataFrame) -> pd.DataFrame:
    """When each head became pure: the first step after which it stays pure to the end. Other heads have no row.

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


def _executor(progress: Progress) -> tuple[Executor, Status]:
    """The executor in force; else one that computes here, one by one, and continues after a failure."""
    executor, status = current()
    if executor is not None:
        return executor, status
    return SerialExecutor(), lambda _, done, running, failed, total: progress("checkpoints", done + failed, total)


def refuse_repeats(series: Sequence[Checkpoint], weights: Sequence[str] | None = None) -> None:
    """Refuse steps with the same weights, a mistake in the series or the list: by their files, or, once they were
    loaded, by the hashes of their weights."""
    groups: dict[str, list[str]] = {}
    for checkpoint, identity in zip(series, weights or [one.identity for one in series], strict=True):
        groups.setdefault(identity, []).append(checkpoint.name)
    if repeated := [group for group in groups.values() if len(group) > 1]:
        named = "; ".join(f"{', '.join(group[:-1])} and {group[-1]} hold the same weights" for group in repeated)
        raise BadInput(f"{named} (--allow-repeated measures them anyway)")


def _refuse_mixtures(series: Sequence[Checkpoint], results: Sequence[dict[str, Tensor]]) -> None:
    shapes = [tuple(one["use"].shape[1:]) for one in results]
    for checkpoint, (layers, heads, frequencies) in zip(series, shapes, strict=True):
        if (layers, heads, frequencies) != shapes[0]:
            raise BadInput(
                f"{checkpoint.name} has {layers} layers of {heads} heads and {frequencies} frequencies, "
                f"{series[0].name} has {shapes[0][0]}, {shapes[0][1]} and {shapes[0][2]}: they do not form one series"
            )


def _digest(views: Sequence[View]) -> str:
    """A hash of the prompts."""
    plain = [
        {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(view).items()}
        for view in views
    ]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
