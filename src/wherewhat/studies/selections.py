"""Which heads and frequencies to turn off: by number, by band, by what a profile says of them, or at random."""

from __future__ import annotations

import re

import pandas as pd
from transformers import PreTrainedModel

from ..errors import BadInput
from ..lab import Transformer, embedded
from ..lab.gptj import to_gptj
from .demo import multihop
from .profile import model_hash, profile
from .profile_file import Profile

Choice = tuple[int | str | None, ...]
AXES = {"positional": "symbolic", "symbolic": "positional"}


def ranked(heads: pd.DataFrame, axis: str) -> list[Choice]:
    """(layer, head) of all heads that have scores, those furthest towards one axis and away from the other first."""
    leaning = heads[axis] - heads[AXES[axis]]
    best = (
        heads.assign(leaning=leaning).dropna(subset=["leaning"]).sort_values("leaning", ascending=False, kind="stable")
    )
    return [(int(layer), int(head)) for layer, head in zip(best["layer"], best["head"], strict=True)]


def select(words: str, measured: Profile | None = None) -> list[Choice]:
    """Choices for `ww.gate` from words.

    "3.1" is head 1 of layer 3, "3.1.5" its frequency 5, "*.*.5" frequency 5 everywhere; "fastest quarter" a band of
    every head. With a profile also "10 most positional heads", "20% most symbolic heads" and "frequencies with
    symbolic score above .9".

    >>> select("3.1.5"), select("*.0"), select("slowest half")
    ([(3, 1, 5)], [(None, 0)], [(None, None, 'slowest half')])
    """
    said = words.strip().lower().removeprefix("the ").removeprefix("all ")
    if re.fullmatch(r"(\d+|\*)(\.(\d+|\*)){0,2}", said):
        return [tuple(None if part == "*" else int(part) for part in said.split("."))]
    if found := re.fullmatch(r"(\d+)(%?) most (positional|symbolic) heads", said):
        number, percent, axis = found.groups()
        order = ranked(_given(measured, words).heads, axis)
        count = round(int(number) / 100 * len(order)) if percent else int(number)
        if not 1 <= count <= len(order):
            raise BadInput(f"{words}: the profile has scores of {len(order)} heads")
        return list(order[:count])
    if found := re.fullmatch(r"frequencies with (positional|symbolic) score (above|below) (\d*\.?\d+)", said):
        axis, side, limit = found.groups()
        table = _given(measured, words).frequencies
        beyond = table[axis] > float(limit) if side == "above" else table[axis] < float(limit)
        chosen = table[beyond]
        if chosen.empty:
            raise BadInput(f"{words}: the profile has none")
        rows = zip(chosen["layer"], chosen["head"], chosen["frequency"], strict=True)
        return [(int(layer), int(head), int(frequency)) for layer, head, frequency in rows]
    return [(None, None, words)]


def check_profile(measured: Profile, model: PreTrainedModel | Transformer) -> str:
    """The hash of a model; a profile of another one is refused, as its heads would be those of somebody else."""
    weights = model_hash(to_gptj(model) if isinstance(model, Transformer) else model)
    if measured.about["settings"]["weights"] != weights:
        raise BadInput(f"the profile is of another model, {measured.about['model']}: other weights or configuration")
    return weights


def profile_embedded(name: str, seed: int = 0, prompts: int = 32) -> Profile:
    """The profile of an embedded model on sequences of its task."""
    return profile(embedded(name), multihop(name, prompts, seed), seed=seed)


def _given(measured: Profile | None, words: str) -> Profile:
    if measured is None:
        raise BadInput(f"{words!r} needs a profile: give --profile DIR")
    return measured
