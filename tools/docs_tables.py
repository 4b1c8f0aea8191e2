"""What the modules behind tools/docs_numbers.py share: the stored tables, and how numbers are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parents[1]


@cache
def results(name: str) -> pd.DataFrame:
    return pd.read_parquet(ROOT / "results" / f"{name}.parquet")


@cache
def bench(part: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))[part]


def table(header: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    columns = header.split(" | ")
    lines = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")
    return f"\n\n{body}\n\n"


def span(values: Iterable[float], form: str = ".2f", word: str = " to ", times: float = 1) -> str:
    """The smallest and the largest of some values, as one number if they are written alike."""
    found = sorted(values)
    return word.join(dict.fromkeys(f"{times * value:{form}}" for value in (found[0], found[-1])))


def spread(values: Iterable[float], digits: int = 1) -> str:
    """Mean ± half of the 95 % interval over seeds, in percent."""
    found = 100 * np.asarray(list(values), float)
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
    return f"{found.mean():.{digits}f} ± {half:.{digits}f}"


def thousands(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    """An accuracy: .84, 1.00."""
    return f"{value:.2f}".removeprefix("0")


def short_span(values: Iterable[float]) -> str:
    found = sorted(values)
    return " to ".join(dict.fromkeys(short(value) for value in (found[0], found[-1])))
