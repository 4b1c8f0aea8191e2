"""Numbers of the documentation about spectra, from results/spectra-*.parquet (see docs_numbers.py).

python tools/docs_spectra.py spectra/*      # write the tables, from folders of `wherewhat spectrum`
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from docs_tables import ROOT, results, table, thousands
from wherewhat.files import write_table
from wherewhat.studies.spectrum.spectrum import Spectrum

MODELS = {"SmolLM2-135M-Instruct": "SmolLM2", "stories15M": "stories15M", "number": "number", "letter": "letter"}
COMPARED = {"norm smaller": "norm", "condition number smaller": "condition", "effective rank larger": "effective_rank"}


def changes() -> str:
    """What rotation changes: how many heads, the median ratio and the range of nine of ten heads."""
    heads = {model: results("spectra-heads").query("model == @model") for model in MODELS}
    compared = {
        "norm smaller": "norm",
        "condition number smaller": "condition",
        "effective rank larger": "effective_rank",
    }
    rows = []
    for name, column in compared.items():
        cells = []
        for own in heads.values():
            ratio = own[column] / own[f"{column}_unrotated"]
            count = ((ratio > 1) if "larger" in name else (ratio < 1)).sum()
            low, middle, high = (f"{value:.2g}" for value in ratio.quantile([0.05, 0.5, 0.95]))
            finite = np.isfinite(own[f"{column}_unrotated"]).all()
            cells.append(f"{count} heads" + (f"; x {middle}, {low} to {high}" if finite else ""))
        rows.append([name, *cells])
    left = [f"{own['kernel_norm'].median():.2f}" for own in heads.values()]
    majorised = [str((own["majorised"] == 1).sum() or "none") for own in heads.values()]
    rows.append(["singular values majorised on all prompts", *majorised])
    rows.append(["norm remaining after a product with the mean kernel", *left])
    names = (f"{MODELS[model]}, {len(own)} heads" for model, own in heads.items())
    return table(" | ".join(["with rotation, relative to without", *names]), rows)


def head(model: str, column: str, rank: int = 0) -> str:
    """The head with the largest share (or the next after it), and the share."""
    own = results("spectra-heads").query("model == @model").sort_values(column, ascending=False)
    one = own.iloc[rank]
    return f"{one['layer']:.0f}.{one['head']:.0f} with {one[column]:.2f}"


def share(model: str, column: str, layers: tuple[int, int]) -> str:
    """The range of a share over layers, of the median head of each."""
    own = results("spectra-heads").query("model == @model and @layers[0] <= layer <= @layers[1]")
    median = own.groupby("layer")[column].median()
    low, high = f"{median.min():.2f}", f"{median.max():.2f}"
    return low if low == high else f"{low} to {high}"


def base(rotation: str) -> str:
    """Median condition number and effective rank of the heads of stories15M with another base, or without rotation."""
    own = results("spectra-bases").query("rotation == @rotation")
    return f"{thousands(round(own['condition'].median()))} ({own['effective_rank'].median():.1f})"


def grows(model: str) -> str:
    own = results("spectra-heads").query("model == @model")
    return f"{(own['norm'] > own['norm_unrotated']).sum()} of {len(own)}"


def infinite(model: str) -> str:
    own = results("spectra-heads").query("model == @model")
    return str(np.isinf(own["condition_unrotated"]).sum())


SPECTRA = {
    "spectra": changes,
    "norm grows in stories15M": partial(grows, "stories15M"),
    "infinite condition numbers of number": partial(infinite, "number"),
    "most Toeplitz head of SmolLM2": partial(head, "SmolLM2-135M-Instruct", "distance"),
    "second most Toeplitz head of SmolLM2": partial(head, "SmolLM2-135M-Instruct", "distance", 1),
    "most Toeplitz head of stories15M": partial(head, "stories15M", "distance"),
    "interaction in stories15M": partial(share, "stories15M", "interaction", (0, 99)),
    "largest interaction in stories15M": partial(head, "stories15M", "interaction"),
    "interaction in number, layer 0": partial(share, "number", "interaction", (0, 0)),
    "interaction in number, above": partial(share, "number", "interaction", (1, 99)),
    "position in number": partial(share, "number", "position", (1, 3)),
    "content in number": partial(share, "number", "content", (5, 11)),
    **{f"base {name}": partial(base, name) for name in ("unrotated", "own", "100", "1000", "100000", "1000000")},
}


def write(folders: list[Path]) -> None:
    found = {folder.name.removesuffix(".Q4_1.gguf"): Spectrum.load(folder) for folder in folders}
    heads = pd.concat([one.heads.assign(model=name) for name, one in found.items() if name in MODELS])
    write_table(ROOT / "results" / "spectra-heads.parquet", heads[["model", *heads.columns.drop("model")]])
    longest = found["stories15M"].spectra.query("tokens == tokens.max()")
    write_table(ROOT / "results" / "spectra-bases.parquet", longest.reset_index(drop=True))


if __name__ == "__main__":
    write([Path(one) for one in sys.argv[1:]])
