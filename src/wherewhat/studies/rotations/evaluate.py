"""What a model loses under a plan: divergence from the unmodified model, loss on text, copying, binding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...tracing.gate import gate
from ...tracing.hook import quiet_evaluation
from ..ablation.measures import Behaviour
from ..stats import interval, resamples
from .plan import Kept, frozen

CHUNK = 256  # positions whose probabilities are compared at a time


def evaluate(
    model: Any,
    plans: Mapping[tuple[str, int], Kept],
    layers: list[int],
    groups: list[int],
    documents: Mapping[int, Sequence[Int[Tensor, " T"]]],
    behaviour: Behaviour | None = None,
    seed: int = 0,
    progress: Callable[[float], None] = lambda done: None,
) -> pd.DataFrame:
    """One row per plan (criterion and draw), length and measure, with 95 % intervals over documents or prompts.

    `documents` are token ids by length. KL is that of the unmodified model's next-token distribution to the modified
    one's, in nats per token, a mean over positions.
    """
    values: dict[tuple[str, int, int, str], list[float]] = {}
    plain = (("none", 0), None)
    total = sum(map(len, documents.values())) + (behaviour is not None)
    for number, (length, ids) in enumerate((length, one) for length, some in documents.items() for one in some):
        own = log_probabilities(model, ids)
        for (name, draw), kept in (plain, *plans.items()):
            if kept is None:
                kl, loss = 0.0, next_token_loss(own, ids)
            else:
                with gate(model, freeze=frozen(kept, layers, groups)):
                    changed = log_probabilities(model, ids)
                kl, loss = divergence(own, changed), next_token_loss(changed, ids)
            values.setdefault((name, draw, length, "kl"), []).append(kl)
            values.setdefault((name, draw, length, "loss"), []).append(loss)
        progress((number + 1) / total)
    if behaviour is not None:
        for (name, draw), kept in (plain, *plans.items()):
            with gate(model, freeze=[] if kept is None else frozen(kept, layers, groups)):
                for measure, found in behaviour.measure(model).items():
                    values[name, draw, 0, measure] = found.tolist()
    rows = []
    for (name, draw, length, measure), each in values.items():
        low, high = interval(resamples(len(each), seed) @ torch.tensor(each, dtype=torch.float64))
        row = {"criterion": name, "draw": draw, "length": length, "measure": measure}
        rows.append(row | {"value": sum(each) / len(each), "low": float(low), "high": float(high), "units": len(each)})
    return pd.DataFrame(rows)


def log_probabilities(model: Any, ids: Int[Tensor, " T"]) -> Float[Tensor, "T V"]:
    """Of the next token, after every token."""
    with quiet_evaluation(model):
        return model(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(-1)


def divergence(own: Float[Tensor, "T V"], changed: Float[Tensor, "T V"]) -> float:
    """KL(own || changed), a mean over positions."""
    parts = [(one.exp() * (one - two)).sum() for one, two in zip(own.split(CHUNK), changed.split(CHUNK), strict=True)]
    return float(torch.stack(parts).sum()) / len(own)


def next_token_loss(own: Float[Tensor, "T V"], ids: Int[Tensor, " T"]) -> float:
    return float(cross_entropy(own[:-1], ids[1:]))
