"""Two profiles compared head by head: what moved on the plane, and whether the choice of prompts explains it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...cells.cells import check_writable
from ...files import plain
from ...results import Result, check_seed
from ...words import model_name
from ..stats import ENOUGH_PROMPTS, interval, pearson, resamples
from .result import Profile
from .tables import AXES

SUMMARY = ("model", "architecture", "level", "tau", "correlation", "medians", "accuracy", "answer_probability")


@dataclass(frozen=True)
class Comparison(Result, file="comparison.json", kind="comparison"):
    """How two profiles differ; `heads` is None if their heads cannot be matched.

    `heads` has one row per head, those that moved most first: layer, head, kind_a and kind_b, for each axis the score
    in both profiles and the difference b - a with its 95 % interval, and `moved`, the distance on the plane.
    """

    heads: pd.DataFrame | None
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return " and ".join(model_name(one["model"]) for one in self.about["profiles"])


def compare(
    a: Profile | str | Path, b: Profile | str | Path, *, folder: str | Path | None = None, seed: int = 0
) -> Comparison:
    """Differences between two profiles, or folders of profiles: the scores of `b` minus those of `a`, head by head.

    If both were measured on the same prompts, differences are taken prompt by prompt; otherwise the prompts of each are
    resampled separately. With a `folder`, the comparison is saved there.

    >>> ww.compare("profiles/a", "profiles/b").heads                  # doctest: +SKIP
    """
    check_seed(seed)
    one, other = (profile if isinstance(profile, Profile) else Profile.load(profile) for profile in (a, b))
    if folder is not None:
        check_writable(Path(folder))
    found = _compare(one, other, seed)
    if folder is not None:
        found.save(folder)
    return found


def _compare(one: Profile, other: Profile, seed: int) -> Comparison:
    about: dict[str, Any] = {
        "seed": seed,
        "profiles": [summary(one), summary(other)],
        "same_prompts": one.about["settings"]["prompts"] == other.about["settings"]["prompts"],
        "warnings": different_settings(one, other) + too_few_prompts(one, other),
    }
    names = ["layer", "head"]
    if not one.heads[names].equals(other.heads[names]):
        reason = f"{_shape(one)} and {_shape(other)}: heads cannot be matched"
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
    known = {name: profile.about[name] for name in SUMMARY} | {"little": profile.about.get("little")}
    return known | prompts | {"heads": len(profile.heads), "kinds": kinds}


def different_settings(one: Profile, other: Profile) -> list[str]:
    """One sentence for each setting that differs, apart from the model."""
    a, b = one.about["settings"], other.about["settings"]
    follows = {"weights", "prompts"} | ({"swaps"} if a["level"] != b["level"] else set())
    differ = [name for name in {**a, **b} if name not in follows and a.get(name) != b.get(name)]
    sentences = [f"{name} differs: {a.get(name)} and {b.get(name)}" for name in differ]
    if not sentences and a["prompts"] != b["prompts"]:
        sentences = ["the prompts differ"]
    return sentences


def too_few_prompts(one: Profile, other: Profile) -> list[str]:
    fewest = min(len(profile.about["prompts"]) for profile in (one, other))
    return [f"{fewest} prompts are too few for reliable intervals"] if fewest < ENOUGH_PROMPTS else []


def _drawn_differences(
    one: Profile, other: Profile, axis: str, same_prompts: bool, seed: int
) -> Float[Tensor, "R heads"]:
    a, b = (_scores(profile, axis) for profile in (one, other))
    if same_prompts:
        return resamples(len(a), seed) @ (b - a)
    return resamples(len(b), seed) @ b - resamples(len(a), seed + 1) @ a


def _scores(profile: Profile, axis: str) -> Float[Tensor, "prompts heads"]:
    """The scores of every prompt, in the order of the table of heads."""
    present = ~profile.tensors["block_attention"][0].isnan().all(-1)  # some layers have fewer heads than others
    return profile.tensors[axis].double()[:, present]


def _shape(profile: Profile) -> str:
    return f"{len(profile.heads)} heads in {profile.heads['layer'].nunique()} layers"
