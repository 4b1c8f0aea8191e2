"""The spectrum of a model in the terminal."""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...words import count, name_layers
from .spectrum import MEASURES, Spectrum

WORDS = {"norm": "norm", "condition": "condition number", "effective_rank": "effective rank"}
LISTS = {"distance": "Most distance", "interaction": "Most coupling", "content": "Most content"}


def show_spectrum(found: Spectrum, top: int, console: Console) -> None:
    """One row per layer, the heads with the largest shares, and sentences on how rotation changes the spectra."""
    heads, about = found.heads, found.about
    prompts = count(about["prompts"], "prompt")
    console.print(
        Text.assemble((found.name, "bold"), f": {count(len(heads), 'head')} on {prompts} of {about['tokens']} tokens")
    )
    console.print(
        "Medians over the heads of each layer. Content, position, both: the share of the variance of the last query's "
        "logits that is explained by content, by position, and only by both together. Distance: the share of the "
        "variance within queries, over all queries, that distance alone explains. Norm, condition number and effective "
        "rank of the logits: without > with rotation (for the norm, the ratio)."
    )
    console.print(Padding(_by_layer(heads), (1, 0)))
    for column, words in LISTS.items():
        best = heads.dropna(subset=[column]).nlargest(top, column)
        if len(best):
            listed = (f"{row['layer']}.{row['head']} {row[column]:.2f}" for row in best.to_dict("records"))
            console.print(f"{words:13} (layer.head)  {', '.join(listed)}")
    console.print()
    for sentence in sentences(found):
        console.print(sentence)


def _by_layer(heads: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layer", "content", "position", "both", "distance", "norm", "condition", "rank"):
        table.add_column(column, justify="right", no_wrap=True)
    medians = heads.groupby("layer").median(numeric_only=True).reset_index()
    for row in medians.to_dict("records"):
        shares = (_share(row[name]) for name in ("content", "position", "interaction", "distance"))
        condition, rank = (f"{short(row[f'{name}_unrotated'])} > {short(row[name])}" for name in MEASURES[1:])
        table.add_row(
            f"{row['layer']:.0f}", *shares, f"x {short(row['norm'] / row['norm_unrotated'])}", condition, rank
        )
    return table


def sentences(found: Spectrum) -> list[str]:
    """How rotation changes the norm, the condition number and the effective rank, and how another base would."""
    rotary, written = found.heads.dropna(subset=["kernel_norm"]), []
    if len(rotary):
        for name, hoped in zip(MEASURES, ("smaller", "smaller", "larger"), strict=True):
            ratio = (rotary[name] / rotary[f"{name}_unrotated"]).to_numpy()
            hits = np.count_nonzero(ratio < 1 if hoped == "smaller" else ratio > 1)
            low, median, high = map(short, np.nanquantile(ratio, [0.05, 0.5, 0.95]))
            written.append(
                f"The {WORDS[name]} is {hoped} with rotation than without in {hits} of {count(len(rotary), 'head')}: "
                f"median ratio {median}, {low} to {high} for the middle 90 %."
            )
        shrunk = int(np.count_nonzero(rotary["majorised"] == 1))
        written.append(
            f"In {count(shrunk, 'head')} the singular values with rotation are majorised by those without, on all "
            f"prompts. The product with the mean kernel, which always shrinks them, would leave "
            f"{rotary['kernel_norm'].median():.2f} of the norm."
        )
        last = found.spectra.query(f"tokens == {found.about['lengths'][-1]}")
        by_base = last.groupby("rotation", sort=False)[["condition", "effective_rank"]].median().reset_index()
        by_base["rotation"] = by_base["rotation"].replace({"unrotated": "no rotation"})
        listed = (
            f"{row['rotation']} {short(row['condition'])} ({short(row['effective_rank'])})"
            for row in by_base.to_dict("records")
        )
        written.append(f"Median condition number (effective rank) by base: {', '.join(listed)}.")
    if len(rotary) < len(found.heads):
        layers = name_layers(found.heads[found.heads["kernel_norm"].isna()]["layer"].tolist())
        written.append(f"No rotation in {layers}: their values are those of queries and keys alone, before any bias.")
    return written


def _share(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.2f}"


def short(value: float) -> str:
    """Two significant digits.

    >>> short(0.4567), short(12345.6), short(16.2), short(float("nan"))
    ('0.46', '12,000', '16', '-')
    """
    return "-" if pd.isna(value) else f"{float(f'{value:.2g}'):,.10g}"
