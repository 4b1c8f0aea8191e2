"""Does an ability depend on a single head? Every head of a model ablated by itself, and how the loss is spread."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import torch
from transformers import PreTrainedModel

from ...cells.cells import check_writable
from ...core.deposit import deposit_of
from ...lab import Transformer
from ...results import Progress, Result, Say, ignore_progress, ignore_sentence, versions
from ...tracing import capture
from ...tracing.fingerprint import weights_hash
from ...tracing.load import AnyModel, Loading, open_model
from .ablate import check_ablation, run_ablation
from .measures import Behaviour, behaviour_of, check_sizes
from .trials import Trial


@dataclass(frozen=True)
class Deposit(Result, file="deposit.json", kind="deposit"):
    """`measures` has one row per measure: its value for the intact model, how the costs are spread over heads (see
    `core.deposit.DepositShape`), and the costliest head with the interval of its cost over prompts. `heads` has one row
    per head and measure: the cost of ablating the head, with its interval.
    """

    measures: pd.DataFrame
    heads: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)


def deposit(
    model: AnyModel,
    *,
    folder: str | Path | None = None,
    pairs: int = 8,
    samples: int | None = None,
    ablation: str = "zero",
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Deposit:
    """Cost of ablating each head of a model by itself, and how unevenly these costs are spread over heads.

    `model`, `pairs` and `samples` (16 by default, 200 for models of the lab) are as in `ww.ablate`. An ablated head
    outputs "zero", or its "mean" over other text. With a `folder`, the result is saved there, and an interrupted run
    resumes.

    >>> ww.deposit("models/stories15M", samples=8).measures                            # doctest: +SKIP
    """
    check_ablation(ablation)
    check_sizes(pairs, samples, seed)
    if folder is not None:
        check_writable(Path(folder))
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    lab = isinstance(opened.model, Transformer)
    samples = samples or (200 if lab else 16)
    behaviour = behaviour_of(opened, pairs, samples, None, seed)
    about = {
        "model": opened.short_name,
        "revision": loading.get("revision"),
        "settings": {"samples": samples} | ({} if lab else {"pairs": pairs}),
        "versions": versions("transformers"),
    }
    found = run_deposit(
        opened.model, behaviour, ablation=ablation, seed=seed, folder=folder, about=about, progress=progress, say=say
    )
    if folder is not None:
        found.save(folder)
    return found


def run_deposit(
    model: PreTrainedModel | Transformer,
    behaviour: Behaviour,
    *,
    ablation: str = "zero",
    seed: int = 0,
    folder: str | Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Deposit:
    """Measure the model without each of its heads as cells, in `folder`/cells if there is one. Nothing else is saved.

    >>> run_deposit(model, of_language_model(model, tokenizer)).measures               # doctest: +SKIP
    """
    trace = capture(model, behaviour.reference[:1, :2], level="prompt")
    heads = [(layer.index, head) for layer in trace.attention for head in range(layer.queries.shape[1])]
    trials = [
        Trial(
            f"head {layer}.{head}",
            "ablate",
            ((layer, head),),
            1,
            1 / len(heads),
            "1 heads",
            alone=(layer, head),
            asked=False,
        )
        for layer, head in heads
    ]
    measured = run_ablation(
        model, behaviour, trials, weights=weights_hash(model), ablation=ablation, seed=seed, folder=folder,
        about=about, progress=progress, say=say,
    )  # fmt: skip
    return Deposit(*_tables(measured.effects), measured.about)


def _tables(effects: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Costs instead of changes: how much worse each measure is without a head."""
    rows, parts = [], []
    for measure, some in effects.groupby("measure", sort=False):
        worse = -1 if bool(some["better"].iloc[0]) else 1
        low, high = ("high", "low") if worse < 0 else ("low", "high")
        costs = pd.DataFrame({
            "layer": some["layer"].astype(int), "head": some["head"].astype(int), "measure": measure,
            "cost": worse * some["change"] + 0.0, "low": worse * some[low], "high": worse * some[high],
        })  # fmt: skip
        spread = deposit_of(torch.tensor(costs["cost"].to_numpy())[None])
        costliest: dict[str, Any] = costs.nlargest(1, "cost").to_dict("records")[0]
        row = {"measure": measure, "before": float(some["before"].iloc[0])}
        row |= {name: float(value) for name, value in spread._asdict().items()}
        rows.append(row | {name: costliest[name] for name in ("layer", "head", "low", "high")})
        parts.append(costs)
    return pd.DataFrame(rows), pd.concat(parts, ignore_index=True)
