"""The effects of ablating single heads, as the page holds them beside the profile of the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadInput
from ..results import Result
from ..studies.ablation.ablate import Ablation
from ..studies.ablation.measures import MEASURES
from ..studies.profile.result import Profile

# Columns of the table of effects, and what the page calls them.
PARTS = {"change": "change", "low": "change_low", "high": "change_high"}
PARTS |= {name: name for name in ("against", "against_low", "against_high")}


def ablations_of(sources: Sequence[Any], ablations: Sequence[Ablation]) -> dict[int, Ablation]:
    """The ablation of every profile that has one, by the index of the profile among the sources."""
    matched: dict[int, Ablation] = {}
    for ablation in ablations:
        profiles = profiles_of(sources, ablation, "ablation")
        if single_heads(ablation).empty:
            raise BadInput(f"the ablation {ablation.name} has no single heads: rerun wherewhat ablate with --each-head")
        matched |= dict.fromkeys(profiles, ablation)
    return matched


def profiles_of(sources: Sequence[Any], result: Result, what: str) -> list[int]:
    """The indices among the sources of all profiles of the model of a result; there must be one."""
    profiles = [
        at
        for at, source in enumerate(sources)
        if isinstance(source, Profile) and source.about["settings"]["weights"] == result.about["weights"]
    ]
    if not profiles:
        others = [source for source in sources if isinstance(source, Profile)]
        why = f"{others[0].name} is another model, or has other weights" if others else "no profile is given"
        raise BadInput(
            f"the {what} is shown with the profile of its model, {result.name}, and {why}: "
            "add the folder of that profile"
        )
    return profiles


def single_heads(ablation: Ablation) -> pd.DataFrame:
    """The rows of heads that were ablated one at a time, without those drawn as a control."""
    return ablation.effects.query("layer.notna() and head.notna() and draw.isna()")


def effects_data(heads: pd.DataFrame, ablation: Ablation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The measures, and for each head and measure the change, NaN where the head was not ablated."""
    rows = single_heads(ablation).astype({"layer": int, "head": int}).drop_duplicates(["layer", "head", "measure"])
    measures, arrays = [], {}
    for measure, part in rows.groupby("measure", sort=False):
        words, better = MEASURES[str(measure)]
        first = part.to_dict("records")[0]
        described = {"name": measure, "words": words, "better": better}
        measures.append(described | {name: first[name] for name in ("before", "units", "control")})
        joined = heads[["layer", "head"]].merge(part, how="left", on=["layer", "head"])
        arrays |= {f"{measure}_{name}": joined[column].to_numpy("f8") for column, name in PARTS.items()}
    drawn = ablation.effects.query("how == 'ablate' and number == 1 and draw.notna()")
    control = drawn["draw"].nunique()
    return {"measures": measures, "ablation": ablation.about["ablation"], "control": control}, arrays
