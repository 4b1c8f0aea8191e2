"""An atlas as the page holds it: one JSON object per model; for every head, three two-byte numbers and its kind."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt16

from ..files import plain
from ..studies.atlas.atlas import Atlas
from ..studies.atlas.sentences import atlas_sentences
from ..studies.atlas.tables import KINDS, MODELS, VERSIONS, by_depth, by_family, rows_of

NUMBERS = ("r", "positional", "symbolic")
QUANTISED = ("positional", "symbolic", "entropy")
UNKNOWN = 0xFFFF  # stands for NaN


def atlas_data(atlas: Atlas, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Models ordered by family, and arrays of their heads in the same order."""
    models: Any = atlas.models.sort_values(["family", "model"])
    own = {str(model): heads for model, heads in atlas.heads.groupby("model")}
    heads: Any = pd.concat([own[model] for model in models["model"]])
    arrays = {column: quantised(heads[column].to_numpy("f8")) for column in QUANTISED}
    arrays["kind"] = heads["kind"].map(KINDS.index).to_numpy("u1")
    depths = by_depth(atlas.heads)
    family_depths = by_family(depths, models, "fifth")
    described = {
        "type": "atlas",
        "name": name,
        "sentences": atlas_sentences(atlas),
        "warnings": [f"not measured: {model} ({reason})" for model, reason in atlas.failed.items()],
        "thresholds": atlas.about["thresholds"],
        "models": [
            {column: _plain(row[column]) for column in MODELS if column in row and column not in VERSIONS}
            | {"rows": layer_rows(own[row["model"]]), "depth": _depth(depths, "model", row["model"])}
            for row in models.to_dict("records")
        ],
        "families": [
            {column: _plain(row[column]) for column in ("family", "models", *NUMBERS)}
            | {"depth": _depth(family_depths, "family", row["family"])}
            for row in by_family(atlas.models, models).to_dict("records")
        ],
        "kind_names": list(KINDS),
        "command": atlas.about["command"],
        "about": atlas.about | {"versions": {name: sorted(set(models[name])) for name in VERSIONS}},
    }
    return described, arrays


def layer_rows(heads: pd.DataFrame) -> list[list[int]]:
    """For every row of heads: the layer, its number of heads, and which run of the layer it is, counted from 0.

    >>> layer_rows(pd.DataFrame({"layer": [0, 0, 4, 4], "head": [0, 1, 0, 0]}))
    [[0, 2, 0], [4, 1, 0], [4, 1, 1]]
    """
    run = heads.groupby(["layer", "head"]).cumcount()
    rows = zip(rows_of(heads).tolist(), heads["layer"].tolist(), run.tolist(), strict=True)
    return [[layer, number, which] for (_, layer, which), number in Counter(rows).items()]


def quantised(values: Float[np.ndarray, " n"]) -> UInt16[np.ndarray, " n"]:
    """Numbers from 0 to 1 as two bytes, accurate to 1e-5.

    >>> quantised(np.array([0.0, 0.5, 1.0, np.nan])).tolist()
    [0, 32767, 65534, 65535]
    """
    steps = np.rint(np.clip(np.nan_to_num(values), 0, 1) * (UNKNOWN - 1))
    return np.where(np.isnan(values), UNKNOWN, steps).astype("u2")


def _depth(table: Any, column: str, name: str) -> dict[str, list[float | str | None]]:
    """The numbers of one model or family for each fifth of its depth."""
    rows = table[table[column] == name].sort_values("fifth")
    return {number: [plain(round(value, 4)) for value in rows[number]] for number in NUMBERS}


def _plain(value: Any) -> Any:
    """A value of a table as JSON can hold it."""
    if value is pd.NA or value is None:
        return None
    return plain(value) if isinstance(value, float) else value
