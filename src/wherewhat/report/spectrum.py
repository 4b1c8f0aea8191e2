"""Spectra of heads as a person reads them in a terminal."""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies.layers import name_layers
from ..studies.spectra import MEASURES, Spectra
from .terminal import count

LISTS = {"distance": "Closest to Toeplitz", "interaction": "Couple most", "content": "All content"}


def show_spectra(found: Spectra, name: str, top: int, console: Console) -> None:
    """A row a layer, the heads at the ends, and in words what rotation does and does not do to the spectra."""
    heads, about = found.heads, found.about
    prompts = count(about["prompts"], "prompt")
    console.print(
        Text.assemble((name, "bold"), f": {count(len(heads), 'head')} on {prompts} of {about['tokens']} tokens")
    )
    console.print(
        "Medians of a layer. Of the variance of the last query's logits, contents at positions: what content, "
        "position and only both together explain. Of the logits of all queries, what distance alone explains. Of "
        "queries x keys, not turned > turned, the norm (its ratio), the condition number and the effective rank."
    )
    console.print(Padding(_by_layer(heads), (1, 0)))
    for column, words in LISTS.items():
        best = heads.dropna(subset=[column]).nlargest(top, column)
        if len(best):
            listed = (f"{row['layer']}.{row['head']} {row[column]:.2f}" for row in best.to_dict("records"))
            console.print(f"{words:19} (layer.head)  {', '.join(listed)}")
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
        condition, rank = (f"{short(row[f'{name}_still'])} > {short(row[name])}" for name in MEASURES[1:])
        table.add_row(f"{row['layer']:.0f}", *shares, f"x {short(row['norm'] / row['norm_still'])}", condition, rank)
    return table


def sentences(found: Spectra) -> list[str]:
    """What became of the norm, the condition and the effective rank, and what another base would change."""
    turned, said = found.heads.dropna(subset=["kernel_norm"]), []
    if len(turned):
        for name, hoped in zip(MEASURES, ("smaller", "smaller", "larger"), strict=True):
            ratio = (turned[name] / turned[f"{name}_still"]).to_numpy()
            hits = np.count_nonzero(ratio < 1 if hoped == "smaller" else ratio > 1)
            low, median, high = map(short, np.nanquantile(ratio, [0.05, 0.5, 0.95]))
            said.append(
                f"The {name.replace('_', ' ')} is {hoped} with the rotation than without in {hits} of "
                f"{count(len(turned), 'head')}: times {median} in the median, {low} to {high} in nine of ten."
            )
        shrunk = int(np.count_nonzero(turned["majorised"] == 1))
        said.append(
            f"The singular values of {count(shrunk, 'head')} are majorised by those without it on all prompts. The "
            f"product with the mean kernel, which always shrinks them, would leave "
            f"{turned['kernel_norm'].median():.2f} of the norm."
        )
        last = found.spectra.query(f"tokens == {found.about['lengths'][-1]}")
        by_base = last.groupby("rotation", sort=False)[["condition", "effective_rank"]].median().reset_index()
        told = (
            f"{row['rotation']} {short(row['condition'])} ({short(row['effective_rank'])})"
            for row in by_base.to_dict("records")
        )
        said.append(f"Median condition (effective rank) by base: {', '.join(told)}.")
    if len(turned) < len(found.heads):
        still = name_layers(found.heads[found.heads["kernel_norm"].isna()]["layer"].tolist())
        said.append(f"Nothing turns in {still}: their spectra are those of queries and keys alone, before any bias.")
    return said


def _share(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.2f}"


def short(value: float) -> str:
    """Two digits or whole numbers, whatever the size.

    >>> short(0.4567), short(12345.6), short(16.2), short(float("nan"))
    ('0.46', '12,000', '16', '-')
    """
    return "-" if pd.isna(value) else f"{float(f'{value:.2g}'):,.10g}"
