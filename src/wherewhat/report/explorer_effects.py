"""What the explorer says of heads that were turned off: gates find the profile of their model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadInput
from ..studies.behaviour import MEASURES
from ..studies.gating import Gating
from ..studies.profile_file import Profile

# Columns of the table of effects, as the page calls them.
PARTS = {"change": "change", "low": "change_low", "high": "change_high"}
PARTS |= {name: name for name in ("against", "against_low", "against_high")}


def gates_of(sources: Sequence[Any], gates: Sequence[Gating]) -> dict[int, Gating]:
    """For each gate run the profiles of the same weights, by their place among the sources."""
    found: dict[int, Gating] = {}
    for gating in gates:
        places = [
            at
            for at, source in enumerate(sources)
            if isinstance(source, Profile) and source.about["settings"]["weights"] == gating.about["weights"]
        ]
        if not places:
            raise BadInput(
                f"the gates of {gating.name} are of another model than every profile given: give its profile"
            )
        if single_heads(gating).empty:
            raise BadInput(
                f"the gates of {gating.name} turn no head off by itself: run wherewhat gate with --each-head"
            )
        found |= dict.fromkeys(places, gating)
    return found


def single_heads(gating: Gating) -> pd.DataFrame:
    """The rows of heads that were turned off by themselves, without those drawn as a control."""
    return gating.effects.query("layer.notna() and head.notna() and draw.isna()")


def effects_data(heads: pd.DataFrame, gating: Gating) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What was measured, and for each head and measure the change, NaN where it was not turned off."""
    rows = single_heads(gating).astype({"layer": int, "head": int}).drop_duplicates(["layer", "head", "measure"])
    measures, arrays = [], {}
    for measure, part in rows.groupby("measure", sort=False):
        words, better = MEASURES[str(measure)]
        first = part.to_dict("records")[0]
        said = {"name": measure, "words": words, "better": better}
        measures.append(said | {name: first[name] for name in ("before", "units", "control")})
        joined = heads[["layer", "head"]].merge(part, how="left", on=["layer", "head"])
        arrays |= {f"{measure}_{name}": joined[column].to_numpy("f8") for column, name in PARTS.items()}
    drawn = gating.effects.query("how == 'ablate' and number == 1 and draw.notna()")
    control = drawn["draw"].nunique()
    return {"measures": measures, "ablation": gating.about["ablation"], "control": control}, arrays
