"""`ww.export`: a profile as a table, a set of heads, a pattern for a key-value cache, or the data of HeadVis."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from ...errors import BadInput
from ...files import write_atomically
from ...results import records
from ..ablation.selections import choose
from ..head_set import HeadSet
from ..profile.result import Profile
from .duo import write_pattern
from .headvis import write_headvis

FORMATS = ("csv", "latex", "json", "heads", "duo", "headvis")
PRINTED = ("layer", "head", "kind", "positional", "symbolic", "on_blocks", "answer", "induction")


def export(
    profile: Profile | str | Path,
    *,
    to: str,
    path: str | Path,
    heads: HeadSet | str | None = None,
    share: float = 0.5,
    sink: int = 4,
    recent: int = 64,
) -> Path:
    """Write a profile in the format of another program, and return the path.

    `to` is "csv" (the table of heads), "latex" (its main columns, for booktabs), "json" (heads, frequencies and how
    they were measured), "heads" (a set of heads, for `ablate --heads @FILE`), "duo" (a folder with the pattern of
    full-attention heads that DuoAttention and kvpress read) or "headvis" (the folder of data that HeadVis shows).

    `heads` limits tables to some heads, in the words of `ablate` or as a `HeadSet`; for "duo" these keep full
    attention. Otherwise "duo" scores the heads, and `share` of the key heads stream: they see the first `sink` and the
    last `recent` tokens only. The scores do not depend on `share`.

    >>> ww.export("profiles/smollm2", to="duo", path="patterns/smollm2")               # doctest: +SKIP
    """
    if to not in FORMATS:
        raise BadInput(f"to is {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {to}")
    if not 0 <= share <= 1 or sink < 0 or recent < 1:
        raise BadInput(f"share lies in 0 to 1, sink is at least 0, recent at least 1; got {share:g}, {sink}, {recent}")
    given, path = Profile.load(profile) if isinstance(profile, (str, Path)) else profile, Path(path)
    chosen = None if heads is None else choose(heads, given)
    if to == "duo":
        write_pattern(given, path, chosen, share, sink, recent)
        return path
    if to == "headvis":
        write_headvis(given, path, chosen)
        return path
    if to == "heads":
        if chosen is None:
            raise BadInput("to heads: name them, as in --heads '10 most retrieving heads'")
        chosen.save(path)
        return path
    tables = [table if chosen is None else _only(table, chosen) for table in (given.heads, given.frequencies)]
    if to == "csv":
        content = tables[0].to_csv(index=False)
    elif to == "latex":
        content = _latex(tables[0])
    else:
        about = {name: given.about.get(name) for name in ("model", "revision", "level", "settings", "versions")}
        listed = {"heads": records(tables[0]), "frequencies": records(tables[1])}
        content = json.dumps({"about": about} | listed, indent=1, allow_nan=False, default=str) + "\n"
    write_atomically(path, content)
    return path


def _only(table: pd.DataFrame, chosen: HeadSet) -> pd.DataFrame:
    places, wanted = zip(table["layer"], table["head"], strict=True), set(chosen.heads)
    return table.loc[[place in wanted for place in places], :].reset_index(drop=True)


def _latex(heads: pd.DataFrame) -> str:
    """A booktabs table of the main columns; a dash where there is no number."""
    columns = [name for name in PRINTED if name in heads]
    rows = [
        " & ".join(
            ("--" if pd.isna(value) else f"{value:.2f}") if isinstance(value, float) else str(value) for value in row
        )
        for row in heads[columns].itertuples(index=False)
    ]
    title = " & ".join(name.replace("_", " ") for name in columns)
    kinds = "".join("l" if name == "kind" else "r" for name in columns)
    body = "".join(f"{row} \\\\\n" for row in rows)
    return f"\\begin{{tabular}}{{{kinds}}}\n\\toprule\n{title} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
