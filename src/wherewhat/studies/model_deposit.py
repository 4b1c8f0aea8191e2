"""Does one head hold it all, in a language model: every head turned off by itself, on what the model can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from ..capture import capture
from ..files import write_table
from .behaviour import Behaviour
from .deposit import deposit
from .gating import run_gating
from .profile import weights_hash
from .trials import Trial


@dataclass(frozen=True)
class ModelDeposit:
    """`measures`: a row a measure: how its loss is spread over heads (see `deposit`), which head costs most, with the
    interval of that cost over prompts. `heads`: a row a head and measure: the cost of its absence, with its interval.
    """

    measures: pd.DataFrame
    heads: pd.DataFrame


def deposit_of_model(
    model: PreTrainedModel,
    behaviour: Behaviour,
    *,
    ablation: str = "zero",
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
) -> ModelDeposit:
    """Measure a model without each of its heads; with a folder, what was measured before is not again.

    >>> deposit_of_model(model, of_language_model(model, tokenizer)).measures          # doctest: +SKIP
    """
    trace = capture(model, behaviour.reference[:1, :2], level="prompt")
    heads = [(layer.index, head) for layer in trace.attention for head in range(layer.queries.shape[1])]
    trials = [
        Trial(f"head {layer}.{head}", "ablate", ((layer, head),), 1, 1 / len(heads), "1 heads", alone=(layer, head))
        for layer, head in heads
    ]
    made = run_gating(
        model, behaviour, trials, weights=weights_hash(model), ablation=ablation, seed=seed, folder=folder,
        progress=progress,
    )  # fmt: skip
    found = ModelDeposit(*_tables(made.effects))
    if folder is not None:
        for name in ("measures", "heads"):
            write_table(Path(folder) / f"{name}.parquet", getattr(found, name))
    return found


def _tables(effects: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Changes become costs: how much worse each measure is without a head."""
    rows, parts = [], []
    for measure, some in effects.groupby("measure", sort=False):
        worse = -1 if bool(some["better"].iloc[0]) else 1
        low, high = ("high", "low") if worse < 0 else ("low", "high")
        costs = pd.DataFrame({
            "layer": some["layer"].astype(int), "head": some["head"].astype(int), "measure": measure,
            "cost": worse * some["change"] + 0.0, "low": worse * some[low], "high": worse * some[high],
        })  # fmt: skip
        spread = deposit(torch.tensor(costs["cost"].to_numpy())[None])
        first: dict[str, Any] = costs.nlargest(1, "cost").to_dict("records")[0]
        told = {"measure": measure, "before": float(some["before"].iloc[0])}
        told |= {name: float(value) for name, value in spread._asdict().items()}
        rows.append(told | {name: first[name] for name in ("layer", "head", "low", "high")})
        parts.append(costs)
    return pd.DataFrame(rows), pd.concat(parts, ignore_index=True)
