"""A plan: the rotary planes to keep in every key head, by their effect on attention or by another criterion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...errors import BadInput
from ...results import Result
from ...tracing.fingerprint import model_hash

BUDGETS = ("model", "head")
BASELINES = ("norm", "highest", "lowest", "uniform", "random")
CONTROLS = ("shuffled heads", "shuffled text")
# Of a score (L, K, F), NaN where a layer has no such plane or head: which planes are kept.
Scores = Float[Tensor, "L K F"]
Kept = Bool[Tensor, "L K F"]


@dataclass(frozen=True)
class RotationPlan(Result, file="rotations.json", kind="plan of rotations"):
    """Which planes keep their rotation. `planes` has one row per layer, key head and frequency.

    `effect` is what the plane's rotation does to attention, in nats per query, summed over the query heads that share
    the key head; `norm` is the product of query and key norms, the published criterion; `rank` orders the planes of a
    key head by effect, 0 first. `tensors` hold effect, norm, rank and kept as (L, K, F), for conversion scripts.
    `losses` compares the plan with its baselines, if evaluated: one row per criterion, number kept, draw, length and
    measure, with 95 % intervals over documents, sequences or prompts.
    """

    planes: pd.DataFrame
    losses: pd.DataFrame | None
    about: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)

    def frozen(self) -> Iterator[tuple[int, int, int]]:
        """(layer, query head, frequency) of every rotation that the plan drops, as `ww.gate` takes them.

        >>> with ww.gate(copy_of_the_model, freeze=plan.frozen()): ...               # doctest: +SKIP
        """
        present = ~self.tensors["effect"].isnan()
        return frozen(self.tensors["kept"], present, self.about["layers"], self.about["groups"])

    def frozen_in(self, model: Any) -> Iterator[tuple[int, int, int]]:
        """The same for `ww.gate(model, plan)`: a plan that was made for another model is refused."""
        if model_hash(model) != self.about["weights"]:
            raise BadInput(
                f"the plan was made for other weights, those of {self.about['model']} in {self.about['dtype']}; if "
                "this is that model in another type, or trained further, use freeze=plan.frozen()"
            )
        return self.frozen()

    @property
    def tested(self) -> list[int]:
        """The lengths at which it was evaluated."""
        return [] if self.losses is None else sorted({int(length) for length in self.losses["length"]})

    def curve(self) -> dict[int, float]:
        """The plan's KL by number of planes kept per key head, the largest of all lengths; empty if unknown."""
        if self.losses is None:
            return {}
        losses: Any = self.losses.query("criterion == 'plan' and measure == 'kl'")
        return losses.groupby("keep")["value"].max().sort_index().to_dict()

    def worst(self) -> dict[str, float]:
        """KL by criterion, the largest of all lengths; empty if unknown."""
        kl = [found["kl"] for found in self.summary().get("by_length", {}).values()]
        return {name: max(each[name] for each in kl) for name in (kl[0] if kl else {})}

    def needed(self, tolerance: float) -> Kept | None:
        """The planes that a KL of at most `tolerance` needs at every length: the fewest of the numbers that were
        evaluated, if any."""
        enough = [keep for keep, kl in self.curve().items() if kl <= tolerance]
        return most_needed(self.tensors["effect"], min(enough), self.about["budget"]) if enough else None

    def summary(self) -> dict[str, Any]:
        """Numbers for a program: how many planes are kept, and by criterion the mean of every measure, over all lengths
        and by length."""
        found: dict[str, Any] = {"model": self.about["model"], "keep": self.about["keep"]}
        found |= {"budget": self.about["budget"], "kept": int(self.tensors["kept"].sum())}
        found["kept_by_layer"] = self.tensors["kept"].sum((1, 2)).tolist()
        if self.losses is not None:
            losses: Any = self.losses[self.losses["keep"] == self.about["keep"]]
            for (measure, criterion), value in losses.groupby(["measure", "criterion"])["value"].mean().items():
                found.setdefault(measure, {})[criterion] = value
            for (length, measure, criterion), value in (
                losses.groupby(["length", "measure", "criterion"])["value"].mean().items()
            ):
                found.setdefault("by_length", {}).setdefault(str(length), {}).setdefault(measure, {})[criterion] = value
        return found


def frozen(
    kept: Kept, present: Bool[Tensor, "L K F"], layers: list[int], groups: list[int]
) -> Iterator[tuple[int, int, int]]:
    """The planes that are there and not kept, in every query head of their key head."""
    for number, head, plane in (present & ~kept).nonzero().tolist():
        for query_head in range(head * groups[number], (head + 1) * groups[number]):
            yield layers[number], query_head, plane + 1


def most_needed(scores: Scores, keep: int, budget: str) -> Kept:
    """The planes with the largest scores: `keep` in every key head, or as many in the whole model.

    >>> scores = torch.tensor([[[3.0, 2.0], [1.0, 0.0]]])
    >>> most_needed(scores, 1, "head").tolist(), most_needed(scores, 1, "model").tolist()
    ([[[True, False], [True, False]]], [[[True, True], [False, False]]])
    """
    present = ~scores.isnan()
    ranked = scores.nan_to_num(nan=-torch.inf)
    if budget == "head":
        order = ranked.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        return (order < keep) & present
    number = int(present.sum(-1).clamp(max=keep).sum())
    kept = torch.zeros_like(present).flatten()
    kept[ranked.flatten().argsort(descending=True, stable=True)[:number]] = True
    return kept.view_as(present) & present


def baseline(name: str, norm: Scores, keep: int, seed: int = 0) -> Kept:
    """What another criterion keeps in every key head: the planes with the largest norms (as published), the fastest or
    slowest ones, evenly spaced ones, or some drawn at random."""
    present = ~norm.isnan()
    planes = present.sum(-1, keepdim=True)
    ids = torch.arange(norm.shape[-1]).expand_as(norm)
    if name == "norm":
        return most_needed(norm, keep, "head")
    if name == "highest":
        return (ids < keep) & present
    if name == "lowest":
        return (ids >= planes - keep) & present
    if name == "uniform":
        steps = (torch.arange(keep) * planes / keep).long()  # L K keep
        return torch.zeros_like(present).scatter_(-1, steps.clamp(max=norm.shape[-1] - 1), True) & present
    if name == "random":
        drawn = torch.from_numpy(np.random.default_rng(seed).random(norm.shape))
        return most_needed(drawn.where(present, torch.nan), keep, "head")
    raise BadInput(f"no criterion {name!r}: {', '.join(BASELINES)}")


def shuffled(scores: Scores, seed: int) -> Scores:
    """The scores of all key heads of the model, permuted at random among heads with equally many planes."""
    rows, planes = scores.flatten(0, 1), (~scores.isnan()).sum(-1).flatten()
    order = torch.arange(len(rows))
    generator = torch.Generator().manual_seed(seed)
    for number in planes.unique():
        alike = (planes == number).nonzero()[:, 0]
        order[alike] = alike[torch.randperm(len(alike), generator=generator)]
    return rows[order].view_as(scores)


def check_plan(keep: int, budget: str, planes: int | None = None) -> None:
    """Refuse a number of planes that no head has, and a budget that does not exist."""
    if budget not in BUDGETS:
        raise BadInput(f"budget is {' or '.join(BUDGETS)}, got {budget}")
    if keep != int(keep):
        raise BadInput(f"keep must be a whole number, got {keep}")
    if keep < 0 or (planes is not None and keep > planes):
        most = "" if planes is None else f" to {planes}, the planes of a head"
        raise BadInput(f"keep must be 0{most or ' or more'}, got {keep}")


def plane_table(
    effect: Scores, norm: Scores, kept: Kept, layers: list[int], angles: Float[Tensor, "L F"]
) -> pd.DataFrame:
    """One row per layer, key head and plane."""
    number, head, plane = (~effect.isnan()).nonzero(as_tuple=True)
    columns = {
        "layer": torch.tensor(layers)[number],
        "kv_head": head,
        "frequency": plane + 1,
        "angle": angles[number, plane],
        "effect": effect[number, head, plane],
        "norm": norm[number, head, plane],
        "rank": ranks(effect)[number, head, plane],
        "kept": kept[number, head, plane],
    }
    return pd.DataFrame({name: values.numpy() for name, values in columns.items()})


def ranks(effect: Scores) -> Tensor:
    """The rank of every plane within its key head, 0 for the one whose rotation matters most."""
    return effect.nan_to_num(nan=-torch.inf).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def needed_by_effect(effect: Scores, tolerance: float, budget: str = "model") -> Kept:
    """The fewest planes to keep such that the effects of all others add up to at most this tolerance.

    >>> needed_by_effect(torch.tensor([[[3.0, 0.2], [1.0, 0.1]]]), 0.5).tolist()
    [[[True, False], [True, False]]]
    """
    known = effect.nan_to_num(nan=0.0).double()
    if budget == "head":
        ranked = known.sort(dim=-1, descending=True).values.sum((0, 1))
        dropped = ranked.flip(0).cumsum(0).flip(0)  # by the number that is kept
        return most_needed(effect, int((dropped > tolerance).sum()), budget)
    flat = known.flatten()
    order = flat.argsort()
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[order[flat[order].cumsum(0) <= tolerance]] = False
    return kept.view_as(effect) & ~effect.isnan()
