"""The result of a profile: its tables, what is needed to repeat it, and protection against overwriting another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ...cells.cells import check_writable
from ...errors import BadInput
from ...results import Explorable

FREQUENCIES = ("positional", "symbolic", "use_norm", "use_max")
OVERWRITE = "rerun the profile with --overwrite"


NEEDS = {
    "about": {
        "model": str, "level": str, "settings": dict, "prompts": list, "table": list, "warnings": list,
        "sensitivity": list, "correlation": dict, "medians": dict, "sinks": dict, "self_check": dict,
    },
    "heads": ["layer", "head", "kv_head", "kind", "positional", "symbolic", "entropy"],
    "frequencies": ["layer", "head", "frequency", "angle", *FREQUENCIES],
    "tensors": ["block_attention", "positional", "symbolic"],
}  # fmt: skip


@dataclass(frozen=True)
class Profile(Explorable, file="profile.json", kind="profile", remedy=OVERWRITE, needs=NEEDS):
    """The tables of a profile, and everything needed to repeat it.

    `heads` has one row per head, `frequencies` one row per head and frequency. `tensors` hold the scores of each prompt
    (prompt, L, H), the attention of each block (prompt, L, H, M; NaN where a prompt has fewer), and for the first
    prompt `log_mass` (L, H, G, G), the placement table summed over blocks, whose rows `about["table"]` names.
    `token_attention` (prompt, L, H, T) is the attention of the last query on every token, of the first 8 prompts;
    `strongest_keys` and `strongest_attention` (L, H, Q, 8) are the keys with the most attention of each of the last
    Q queries of the first prompt. Both count attention in units of 1/65535.

    `tasks`, if there are several, has the rows of `heads` on every task but the first, in the column `task`.

    >>> profile = Profile.load("profiles/smollm2")                    # doctest: +SKIP
    >>> profile.heads.query("kind == 'where'")                        # doctest: +SKIP
    """

    heads: pd.DataFrame
    frequencies: pd.DataFrame
    about: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    tasks: pd.DataFrame | None = None


def is_saved(folder: Path, settings: Mapping[str, Any], overwrite: bool = False) -> bool:
    """Whether the folder holds a profile with these settings; a profile that differs raises an error.

    Settings that are not known yet may be missing.
    """
    check_writable(folder)
    about = None if overwrite else Profile.read_about(folder)
    if about is None:
        return False
    before = about["settings"]
    if "weights" in settings and before["weights"] != settings["weights"]:
        raise BadInput(
            f"{folder}: holds the profile of another model, {about['model']}; choose another folder or give --overwrite"
        )
    differ = [name for name, value in settings.items() if name != "weights" and before.get(name) != value]
    if differ:
        held = ", ".join(_as_option(name, before.get(name)) for name in differ)
        raise BadInput(f"{folder}: holds a profile with {held}; choose another folder or give --overwrite")
    return True


def _as_option(option: str, value: Any) -> str:
    """A setting as the user would give it."""
    if option == "prompts":
        return "other prompts"
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"no --{option}" if value is None else f"--{option} {value}"


def dense_frequencies(heads: Any, table: pd.DataFrame) -> tuple[list[int] | None, dict[str, np.ndarray]]:
    """The table of frequencies as arrays (heads, F) in the order of the heads; NaN for frequencies a head lacks."""
    if table.empty:
        return None, {}
    keys = ["layer", "head", "nth"]  # a layer that runs several times has several rows
    numbered: Any = table.assign(nth=table.groupby(["layer", "head", "frequency"]).cumcount())
    found = list(dict.fromkeys(sorted(set(numbered["frequency"]), key=lambda number: (number == 0, number))))
    index = pd.MultiIndex.from_frame(heads[keys])
    dense = {}
    for column in (*FREQUENCIES, "angle"):
        wide = numbered.pivot(index=keys, columns="frequency", values=column).reindex(index)[found]
        dense[f"frequency_{column}"] = wide.to_numpy("f4")
    return [int(number) for number in found], dense


def numbered_heads(profile: Profile) -> Any:
    """The heads, with `nth` numbering the runs of a layer that runs several times."""
    return profile.heads.assign(nth=profile.heads.groupby(["layer", "head"]).cumcount())


def head_labels(heads: Any) -> list[str]:
    """layer.head, followed by the run if the layer runs several times."""
    return [
        f"{row['layer']}.{row['head']}" + (f"-{row['nth'] + 1}" if row["nth"] else "")
        for row in heads.to_dict("records")
    ]
