"""Which heads and frequencies to ablate: by number, by band, or by their scores in a profile."""

from __future__ import annotations

import re

import pandas as pd
from transformers import PreTrainedModel

from ...errors import BadInput
from ...lab import Transformer
from ...lab.gptj import to_gptj
from ...tracing.fingerprint import model_hash
from ..profile.result import Profile

HeadSpec = tuple[int | str | None, ...]
AXES = {"positional": "symbolic", "symbolic": "positional"}


def ranked(heads: pd.DataFrame, axis: str) -> list[HeadSpec]:
    """(layer, head) of all heads that have scores, sorted by the score on this axis minus that on the other."""
    lead = heads[axis] - heads[AXES[axis]]
    best = heads.assign(lead=lead).dropna(subset=["lead"]).sort_values("lead", ascending=False, kind="stable")
    return [(int(layer), int(head)) for layer, head in zip(best["layer"], best["head"], strict=True)]


def select(words: str, measured: Profile | None = None) -> list[HeadSpec]:
    """Choices for `ww.gate` from words.

    "3.1" is head 1 of layer 3, "3.1.5" its frequency 5, "*.*.5" frequency 5 of every head, "fastest quarter" a band of
    every head. With a profile there are also "10 most positional heads", "20% most symbolic heads" and "frequencies
    with symbolic score above .9".

    >>> select("3.1.5"), select("*.0"), select("slowest half")
    ([(3, 1, 5)], [(None, 0)], [(None, None, 'slowest half')])
    """
    plain = words.strip().lower().removeprefix("the ").removeprefix("all ")
    if re.fullmatch(r"(\d+|\*)(\.(\d+|\*)){0,2}", plain):
        return [tuple(None if part == "*" else int(part) for part in plain.split("."))]
    if found := re.fullmatch(r"(\d+)(%?) most (positional|symbolic) heads", plain):
        number, percent, axis = found.groups()
        order = ranked(_given(measured, words).heads, axis)
        count = round(int(number) / 100 * len(order)) if percent else int(number)
        if not 1 <= count <= len(order):
            raise BadInput(f"{words}: the profile has scores for {len(order)} heads")
        return list(order[:count])
    if found := re.fullmatch(r"frequencies with (positional|symbolic) score (above|below) (\d*\.?\d+)", plain):
        axis, side, limit = found.groups()
        table = _given(measured, words).frequencies
        beyond = table[axis] > float(limit) if side == "above" else table[axis] < float(limit)
        chosen = table[beyond]
        if chosen.empty:
            raise BadInput(f"{words}: the profile has no such frequencies")
        rows = zip(chosen["layer"], chosen["head"], chosen["frequency"], strict=True)
        return [(int(layer), int(head), int(frequency)) for layer, head, frequency in rows]
    return [(None, None, words)]


def check_profile(measured: Profile, model: PreTrainedModel | Transformer) -> str:
    """The hash of a model; a profile of another model is refused."""
    weights = model_hash(to_gptj(model) if isinstance(model, Transformer) else model)
    if measured.about["settings"]["weights"] != weights:
        raise BadInput(
            f"the profile is of another model, {measured.about['model']}: its weights or configuration differ"
        )
    return weights


def _given(measured: Profile | None, words: str) -> Profile:
    if measured is None:
        raise BadInput(f"{words!r} needs a profile: give --profile FOLDER")
    return measured
