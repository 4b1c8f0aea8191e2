"""Collect profiles and ablations of real models into the tables behind docs/results/profiles.md and ablation.md.

Usage: python tools/profile_tables.py FOLDER

FOLDER/profiles holds folders of profiles, FOLDER/ablations folders of ablations, as the commands on these pages save
them. Writes results/profiles.parquet, profiles-heads.parquet and ablation-models.parquet.

Usage: python tools/profile_tables.py FOLDER --settings

From FOLDER/profiles, profiles with default options: results/profiles-settings.parquet, how r and the medians depend on
tau and blocks, and profiles-stability.parquet, how often the kind of a head is the same on both halves of the prompts.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import wherewhat as ww
from wherewhat.core.kinds import kind

RESULTS = Path(__file__).parents[1] / "results"
MODELS = {  # as files are called: as they are named in the tables, in their order
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B",
    "SmolLM2-135M-Instruct.Q4_1": "SmolLM2-135M-Instruct",
    "gemma-3-270m": "gemma-3-270m",
    "stories15M": "stories15M",
    "stories260K": "stories260K",
}
HEADS = ["layer", "head", "kind", "positional", "symbolic", "on_blocks", "on_query", "on_first", "elsewhere"]
HEADS += ["answer", "answer_low", "answer_high", "answer_chance", "answer_token"]


def named(model: str) -> str:
    return MODELS[Path(model).name.removesuffix(".gguf")]


def correlations(summary: dict[str, Any]) -> dict[str, float]:
    """r over all heads, and over those that rest on attention, with intervals over prompts."""
    parts = {"": summary["correlation"], "resting_": summary["little"]["correlation"]}
    return {f"{prefix}{name}": one[name] for prefix, one in parts.items() for name in ("r", "r_low", "r_high")}


def of_profile(profile: ww.Profile) -> tuple[list[dict[str, Any]], list[pd.DataFrame]]:
    """One row per task, and the heads on each task."""
    about, settings = profile.about, profile.about["settings"]
    setting = {"model": named(about["model"]), "pairs": settings["pairs"], "group": settings["group"]}
    right = {"right": about["accuracy"]["right"], "prompts": about["accuracy"]["of"]}
    rows = [setting | {"task": "binding"} | right | correlations(about)]
    heads = [profile.heads[HEADS].assign(**setting, task="binding")]
    for task in about.get("tasks", ()):
        name, kept = task["settings"]["task"], task["kept"]
        row = setting | {"task": name, "prompts": task["prompts"]} | correlations(task)
        row |= {"kept": kept["all"]["same"], "kept_by_chance": kept["all"]["by_chance"]}
        row |= {"kept_resting": kept["resting_on_attention"]["same"], "resting": kept["resting_on_attention"]["of"]}
        rows.append(row)
        assert profile.tasks is not None
        heads.append(profile.tasks[profile.tasks["task"] == name][HEADS].assign(**setting, task=name))
    return rows, heads


def of_ablation(found: ww.Ablation) -> pd.DataFrame:
    """The effects, with the heads or frequencies that were chosen."""
    assert found.trials is not None
    keys = ["what", "how", "draw", "control_of"]
    chosen = found.trials[[*keys, "chosen"]]
    table = found.effects.merge(chosen, on=keys, how="left", validate="many_to_one")
    table.insert(0, "model", named(found.about["model"]))
    return table


def in_order(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Rows by model, in the order of MODELS, and then by these columns."""
    place = table["model"].map(list(MODELS.values()).index)
    ordered = table.assign(place=place).sort_values(["place", *columns], kind="stable").drop(columns="place")
    numbers = ordered.select_dtypes(np.float64).columns
    return ordered.astype(dict.fromkeys(numbers, np.float32)).reset_index(drop=True)


def of_settings(profile: ww.Profile) -> pd.DataFrame:
    """The sensitivity rows, and the token on which most attention falls as a sink."""
    table = pd.json_normalize(profile.about["sensitivity"])
    for name in ("median_positional", "median_symbolic"):
        table[[f"{name}_first", f"{name}_second"]] = table.pop(name).tolist()
    table["tau"] = table["tau"].astype(float)
    sinks = profile.about["sinks"]["tokens"]
    token, share = (sinks[0]["token"], sinks[0]["attention"]) if sinks else (None, np.nan)
    return table.assign(model=named(profile.about["model"]), sink=token, sink_attention=share)


def of_halves(profile: ww.Profile) -> pd.DataFrame:
    """One row per head: the share of splits of the prompts in which its kind is the same on both halves."""
    scores = np.stack([profile.tensors[name].double().numpy() for name in ("positional", "symbolic")])
    number = scores.shape[1]
    halves = [list(one) for one in combinations(range(number), number // 2) if 0 in one]
    same = np.mean(
        [kinds(*np.nanmean(scores[:, one], 1)) == kinds(*np.nanmean(np.delete(scores, one, 1), 1)) for one in halves],
        axis=0,
    )
    table = profile.heads[["layer", "head", "kind", "on_blocks"]].assign(same=same.ravel())
    return table.assign(model=named(profile.about["model"]))


def kinds(positional: np.ndarray, symbolic: np.ndarray) -> np.ndarray:
    pairs = zip(positional.ravel().tolist(), symbolic.ravel().tolist(), strict=True)
    return np.array([kind(*pair) for pair in pairs])


def settings(folder: Path) -> None:
    found = [ww.Profile.load(one) for one in sorted((folder / "profiles").iterdir())]
    for name, of in (("settings", of_settings), ("stability", of_halves)):
        in_order(pd.concat(map(of, found))).to_parquet(RESULTS / f"profiles-{name}.parquet", index=False)


def main(folder: Path) -> None:
    found = [of_profile(ww.Profile.load(one)) for one in sorted((folder / "profiles").iterdir())]
    by = ("pairs", "group", "task")
    rows = pd.DataFrame([row for rows, _ in found for row in rows])
    in_order(rows, *by).to_parquet(RESULTS / "profiles.parquet", index=False)
    heads = pd.concat([table for _, tables in found for table in tables])
    heads = heads[["model", *by, *HEADS]]
    in_order(heads, *by, "layer", "head").to_parquet(RESULTS / "profiles-heads.parquet", index=False)
    ablated = pd.concat([of_ablation(ww.Ablation.load(one)) for one in sorted((folder / "ablations").iterdir())])
    in_order(ablated).to_parquet(RESULTS / "ablation-models.parquet", index=False)


if __name__ == "__main__":
    (settings if "--settings" in sys.argv[2:] else main)(Path(sys.argv[1]))
