"""A plan of rotations, as the page holds it beside the profile of the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadInput
from ..studies.rotations.plan import RotationPlan
from .data_ablation import profiles_of


def plans_of(sources: Sequence[Any], plans: Sequence[RotationPlan]) -> dict[int, RotationPlan]:
    """The plan of every profile that has one, by the index of the profile among the sources."""
    found: dict[int, RotationPlan] = {}
    for plan in plans:
        profiles = profiles_of(sources, plan, "plan")
        if found.keys() & profiles:
            raise BadInput(f"two plans of rotations for {plan.name}: a report shows one")
        found |= dict.fromkeys(profiles, plan)
    return found


def plan_data(
    heads: Any, frequencies: Sequence[int], plan: RotationPlan
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the plan keeps, and for each head and frequency its effect and whether it is kept; NaN where there is none.

    Query heads that share a key head have the same numbers.
    """
    groups: Any = heads[["layer", "kv_head"]]
    keys = pd.MultiIndex.from_frame(groups)
    wide: Any = plan.planes.pivot(index=["layer", "kv_head"], columns="frequency", values=["effect", "kept"])
    arrays = {
        f"rotation_{name}": wide[name].reindex(index=keys, columns=list(frequencies)).to_numpy("f4")
        for name in ("effect", "kept")
    }
    about = {name: plan.about[name] for name in ("keep", "planes", "budget", "lengths")}
    found = plan.summary()
    kl = {length: measures["kl"]["plan"] for length, measures in found.get("by_length", {}).items()}
    return about | {"kept": found["kept"], "kl": kl or None}, arrays
