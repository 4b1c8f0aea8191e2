"""Two profiles, head by head: what moved on the plane, and whether by more than the choice of prompts explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from .headlines import ENOUGH_PROMPTS, pearson
from .profile_file import Profile, plain
from .tables import AXES, interval, resamples

SUMMARY = ("model", "architecture", "level", "tau", "correlation", "medians", "accuracy", "answer_probability")


@dataclass(frozen=True)
class Comparison:
    """What two profiles share and where they differ; `heads` is None where their heads cannot be matched.

    `heads` holds layer, head, kind_a and kind_b, for each axis its score in both and the difference b - a with its
    95 % interval, and `moved`, the distance on the plane; those that moved most come first.
    """

    heads: pd.DataFrame | None
    about: dict[str, Any]


def compare(one: Profile, other: Profile, seed: int = 0) -> Comparison:
    """Compare two profiles; differences are the scores of the second less those of the first.

    On the same prompts differences are taken prompt by prompt; else the prompts of each are resampled on their own.

    >>> compare(Profile.load("profiles/a"), Profile.load("profiles/b")).heads        # doctest: +SKIP
    """
    about: dict[str, Any] = {
        "profiles": [summary(one), summary(other)],
        "same_prompts": one.about["settings"]["prompts"] == other.about["settings"]["prompts"],
        "warnings": different_settings(one, other) + too_few_prompts(one, other),
    }
    names = ["layer", "head"]
    if not one.heads[names].equals(other.heads[names]):
        reason = f"{_shape(one)} against {_shape(other)}: heads cannot be matched"
        return Comparison(None, about | {"not_matched": reason})
    columns = ["kind", *AXES]  # rows are matched by their order: a layer that runs several times has several
    heads = pd.concat(
        [one.heads[names], one.heads[columns].add_suffix("_a"), other.heads[columns].add_suffix("_b")], axis=1
    )
    agreement = {}
    for axis in AXES:
        a, b = (torch.from_numpy(heads[f"{axis}_{which}"].to_numpy(copy=True)) for which in "ab")
        low, high = interval(_drawn_differences(one, other, axis, about["same_prompts"], seed))
        for name, values in (("difference", b - a), ("low", low), ("high", high)):
            heads[f"{axis}_{name}"] = values.numpy()
        both = ~(a.isnan() | b.isnan())
        agreement[axis] = {
            "r": plain(pearson(a[both], b[both])[0]),
            "mean_difference": plain((b - a)[both].mean().item()),
            "clear": int(((low > 0) | (high < 0)).sum()),
        }
    heads["moved"] = (heads["positional_difference"] ** 2 + heads["symbolic_difference"] ** 2) ** 0.5
    heads = heads.sort_values("moved", ascending=False, kind="stable", ignore_index=True)
    changed = sum(a != b for a, b in zip(heads["kind_a"], heads["kind_b"], strict=True))
    return Comparison(heads, about | {"agreement": agreement, "changed_kind": changed})


def summary(profile: Profile) -> dict[str, Any]:
    """The headline numbers of a profile, and how many heads of each kind it has."""
    kinds = {str(name): int(number) for name, number in profile.heads["kind"].value_counts().items()}
    prompts = {"prompts": len(profile.about["prompts"])}
    return {name: profile.about[name] for name in SUMMARY} | prompts | {"heads": len(profile.heads), "kinds": kinds}


def different_settings(one: Profile, other: Profile) -> list[str]:
    """What else than the model differs, each in one sentence."""
    a, b = one.about["settings"], other.about["settings"]
    follows = {"weights", "prompts"} | ({"swaps"} if a["level"] != b["level"] else set())
    differ = [name for name in {**a, **b} if name not in follows and a.get(name) != b.get(name)]
    said = [f"{name} differs: {a.get(name)} against {b.get(name)}" for name in differ]
    if not said and a["prompts"] != b["prompts"]:
        said = ["the prompts differ"]
    return said


def too_few_prompts(one: Profile, other: Profile) -> list[str]:
    fewest = min(len(made.about["prompts"]) for made in (one, other))
    return [f"{fewest} prompts are too few for intervals to be trusted"] if fewest < ENOUGH_PROMPTS else []


def _drawn_differences(
    one: Profile, other: Profile, axis: str, same_prompts: bool, seed: int
) -> Float[Tensor, "R heads"]:
    a, b = (_scores(profile, axis) for profile in (one, other))
    if same_prompts:
        return resamples(len(a), seed) @ (b - a)
    return resamples(len(b), seed) @ b - resamples(len(a), seed + 1) @ a


def _scores(profile: Profile, axis: str) -> Float[Tensor, "prompts heads"]:
    """The scores of every prompt in the order of the table of heads."""
    there = ~profile.tensors["block_attention"][0].isnan().all(-1)  # some layers have fewer heads than the most
    return profile.tensors[axis].double()[:, there]


def _shape(profile: Profile) -> str:
    return f"{len(profile.heads)} heads in {profile.heads['layer'].nunique()} layers"
