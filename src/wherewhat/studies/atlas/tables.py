"""The three tables of an atlas, from the profiles of its models; and their summaries by family and depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int

from ...core.kinds import LITTLE
from ..profile.result import Profile
from ..profile.roles import rests_on_little
from ..profile.tables import AXES
from ..stats import pearson
from .model_list import Entry

KINDS = ("where", "what", "unfocused", "mixed", "unmeasured")
VERSIONS = ("wherewhat", "torch", "transformers", "python")
FIFTHS = 5

# The columns of the table of models: type and meaning.
MODELS: dict[str, tuple[str, str]] = {
    "model": ("string", "name of the model, the key of the other tables"),
    "source": ("string", "hub id, or path as given in the list"),
    "revision": ("string", "branch, tag or commit that was requested"),
    "commit": ("string", "commit on the hub that was measured, if it came from there"),
    "weights": ("string", "SHA-256 of parameters, buffers and configuration"),
    "family": ("string", "family as given in the list, or else the model type"),
    "model_type": ("string", "model type of transformers"),
    "layers": ("int64", "attention layers"),
    "heads": ("int64", "query heads in all layers: rows in heads"),
    "heads_per_layer": ("int64", "largest number of query heads in a layer"),
    "kv_heads": ("int64", "largest number of key-value heads in a layer"),
    "head_size": ("Int64", "dimensions of a head, according to the configuration"),
    "rope_base": ("float64", "base of the rotary angles, according to the configuration; missing if layers differ"),
    "parameters": ("int64", "number of parameters"),
    "licence": ("string", "licence of the model as declared, or unknown"),
    "licence_from": ("string", "who declares it: the list, the model's card or its GGUF file"),
    "level": (
        "string",
        "keys: contents swapped inside each head; prompt: swapped in the prompt, and the model run again",
    ),
    "tau": ("float64", "temperature of the weights over swaps"),
    "dtype": ("string", "dtype of the model when measured"),
    "seed": ("int64", "seed of prompts and intervals"),
    "task": ("string", "what the model reads"),
    "pairs": ("Int64", "statements per prompt, for the binding task"),
    "prompts": ("int64", "number of prompts"),
    "tokens": ("int64", "tokens of the longest prompt"),
    "right": ("Int64", "prompts that the model answers correctly"),
    "deviation": ("float64", "largest deviation of the capture from the model's own attention, in the self-check"),
    "r": ("float64", "correlation of the two scores over heads; near -1, they exclude each other"),
    "r_low": ("float64", "lower end of its 95 % interval, bootstrap over prompts"),
    "r_high": ("float64", "upper end"),
    "positional": ("float64", "median positional score of all heads, 0 to 1"),
    "symbolic": ("float64", "median symbolic score of all heads, 0 to 1"),
    "positional_early": ("float64", "the same in the first half of the layers"),
    "positional_late": ("float64", "in the second half"),
    "symbolic_early": ("float64", "in the first half"),
    "symbolic_late": ("float64", "in the second half"),
    **{kind: ("float64", f"share of heads that are {kind}, 0 to 1") for kind in KINDS},
    "little": ("float64", f"share of heads that put less than {LITTLE:.0%} of their attention on the blocks, 0 to 1"),
    "r_resting": ("float64", "r over all other heads, whose scores rest on attention"),
    **{name: ("string", f"version of {name}") for name in VERSIONS},
}


def model_row(entry: Entry, profile: Profile) -> dict[str, Any]:
    """The row of a model in the table of models."""
    heads: Any = profile.heads
    about, kinds = profile.about, Counter(profile.heads["kind"])
    settings, declared = about["settings"], about["atlas"]
    licence, source = (entry.licence, "the list") if entry.licence else declared["licence"] or ("unknown", "")
    medians = {
        f"{axis}_{half}": about["medians"][axis][at]["median"]
        for axis in AXES
        for at, half in enumerate(("early", "late"))
    }
    return (
        {"model": entry.name, "source": entry.cell.model, "revision": entry.cell.revision}
        | {name: declared[name] for name in ("commit", "head_size", "rope_base", "parameters")}
        | {"family": entry.family or about["architecture"], "model_type": about["architecture"]}
        | {"weights": settings["weights"], "licence": licence, "licence_from": source}
        | {"layers": heads["layer"].nunique(), "heads": len(heads)}
        | {"heads_per_layer": heads["head"].max() + 1, "kv_heads": heads["kv_head"].max() + 1}
        | {name: settings[name] for name in ("level", "dtype", "seed")}
        | {"tau": float(settings["tau"]), "task": Path(settings["task"]).name, "pairs": settings.get("pairs")}
        | {"prompts": len(about["prompts"]), "tokens": max(len(prompt["ids"]) for prompt in about["prompts"])}
        | {"right": about["accuracy"]["right"] if about["accuracy"] else None}
        | {"deviation": max(about["self_check"].values())}
        | {name: about["correlation"][name] for name in ("r", "r_low", "r_high")}
        | {axis: heads[axis].median() for axis in AXES}
        | medians
        | {kind: kinds[kind] / len(heads) for kind in KINDS}
        | {"little": rests_on_little(heads).mean(), "r_resting": about["little"]["correlation"]["r"]}
        | {name: about["versions"][name] for name in VERSIONS}
    )


def atlas_tables(measured: Mapping[Entry, Profile]) -> dict[str, pd.DataFrame]:
    """One row per model, per head, and per head and frequency; models sorted by name."""
    found = sorted(measured.items(), key=lambda item: item[0].name)
    models = pd.DataFrame([model_row(entry, profile) for entry, profile in found], columns=list(MODELS))
    tables = {"models": models.astype({name: kind for name, (kind, _) in MODELS.items()})}
    for name in ("heads", "frequencies"):
        parts = [(entry.name, getattr(profile, name)) for entry, profile in found]
        parts = [part for part in parts if len(part[1])] or parts[:1]  # level prompt has no frequencies
        joined = pd.concat([table for _, table in parts], ignore_index=True)
        joined.insert(0, "model", np.repeat([model for model, _ in parts], [len(table) for _, table in parts]))
        tables[name] = joined.astype({"model": "string"})
    return tables


def rows_of(heads: pd.DataFrame) -> Int[np.ndarray, " heads"]:
    """The row of layers of every head of one model, from 0; a layer that runs several times has several rows.

    >>> rows_of(pd.DataFrame({"layer": [0, 0, 3, 3], "head": [0, 1, 0, 0]})).tolist()
    [0, 0, 1, 2]
    """
    run = heads.groupby(["layer", "head"]).cumcount()
    return pd.MultiIndex.from_arrays([heads["layer"], run]).factorize()[0]


def by_depth(heads: pd.DataFrame) -> pd.DataFrame:
    """Medians of both scores and their r in every fifth of each model's depth; NaN if there are too few heads.

    Layer i of n is at depth (i + 1/2) / n.
    """
    found = []
    for model, own in heads.groupby("model", sort=True):
        row = rows_of(own)
        fifth = (2 * row + 1) * FIFTHS // (2 * (row.max() + 1))
        for part in range(FIFTHS):
            inside: Any = own.iloc[np.flatnonzero(fifth == part)].dropna(subset=list(AXES))
            scores = [torch.from_numpy(inside[axis].to_numpy(copy=True)) for axis in AXES]
            found.append(
                {"model": model, "fifth": part, "heads": len(inside), "r": pearson(*scores)[0]}
                | {axis: inside[axis].median() for axis in AXES}
            )
    return pd.DataFrame(found)


def by_family(table: pd.DataFrame, models: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """The median over the models of each family of r and both scores, for each value of the keys."""
    families = table.drop(columns="family", errors="ignore").merge(models[["model", "family"]], on="model")
    grouped: Any = families.groupby(["family", *keys], sort=True)
    return grouped[["r", *AXES]].median().assign(models=grouped.size()).reset_index()
