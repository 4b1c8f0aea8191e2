"""The result of an atlas: three tables of many models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...results import Explorable

TABLES = ("models", "heads", "frequencies")


NEEDS = {
    "about": {"title": str, "licence": str, "thresholds": dict, "failed": dict},
    "models": ["model", "layers", "heads"],
    "heads": ["model", "layer", "head", "kind", "positional", "symbolic"],
}


@dataclass(frozen=True)
class Atlas(Explorable, file="atlas.json", kind="atlas", subfolder="data", needs=NEEDS):
    """A data set of many models: one row per model in `models`; `heads` and `frequencies` hold those of all profiles.

    >>> Atlas.load("atlas").heads.query("model == 'SmolLM2-135M' and kind == 'what'")          # doctest: +SKIP
    """

    models: pd.DataFrame
    heads: pd.DataFrame
    frequencies: pd.DataFrame
    about: dict[str, Any]

    @property
    def failed(self) -> dict[str, str]:
        """The models that could not be measured, by name, with the reason."""
        return self.about["failed"]
