"""The data of the explorer: profiles, series, lengths and atlases as JSON, with arrays in base64."""

from __future__ import annotations

import base64
import shlex
import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..core.kinds import HIGH, LITTLE, LOW
from ..studies.ablation.ablate import Ablation
from ..studies.atlas.atlas import Atlas
from ..studies.dynamics.dynamics import GAMMA, Dynamics
from ..studies.lengths.lengths import Lengths
from ..studies.lengths.paper import published_accuracy
from ..studies.profile.attention import DRAWN, SINK_HEADS
from ..studies.profile.result import Profile, dense_frequencies, head_labels, numbered_heads
from ..studies.profile.roles import ROLE, ROLES, in_role, rests_on_little
from ..studies.rotations.plan import RotationPlan
from ..tasks.hops import PLACES
from .data_ablation import effects_data
from .data_atlas import atlas_data
from .data_rotations import plan_data
from .data_tokens import token_data
from .load import Source
from .sentences import length_sentences, profile_sentences, series_sentences

FREQUENCIES = ("positional", "symbolic", "use_norm", "use_max")
SERIES = ("positional", "symbolic", "entropy", "mean_frequency")
NAMES = ["layer", "head", "nth", "kv_head", "kind"]  # columns that are not measured numbers
REPEATED = ("model", "revision", "architecture", "level", "tau", "settings", "thresholds", "correlation", "medians",
            "accuracy", "sinks", "skipped", "swaps", "sensitivity", "self_check", "versions")  # fmt: skip
OPTIONS = (
    "kind",
    "template",
    "pairs",
    "group",
    "samples",
    "width",
    "stretch",
    "level",
    "swaps",
    "tau",
    "dtype",
    "seed",
)


def source_data(
    source: Source, name: str, ablation: Ablation | None = None, plan: RotationPlan | None = None
) -> dict[str, Any]:
    """Everything that the page shows of a result.

    >>> source_data(Profile.load("profiles/smollm2"), "SmolLM2")["type"]             # doctest: +SKIP
    'profile'
    """
    if isinstance(source, Profile):
        return profile_data(source, name, ablation, plan)
    if isinstance(source, Atlas):
        described, arrays = atlas_data(source, name)
        return described | {"arrays": {key: encoded(values) for key, values in arrays.items()}}
    return series_data(source, name) if isinstance(source, Dynamics) else lengths_data(source, name)


def profile_data(
    profile: Profile, name: str, ablation: Ablation | None = None, plan: RotationPlan | None = None
) -> dict[str, Any]:
    """Heads, frequencies, the table of swaps and the prompts of a profile, effects of ablation, and a plan."""
    about, tensors = profile.about, profile.tensors
    heads = numbered_heads(profile)
    there = ~tensors["block_attention"][0].isnan().all(-1)  # some layers have fewer heads than others
    blocks = len(about["prompts"][0]["blocks"])
    arrays: dict[str, Any] = {column: heads[column].to_numpy("f8") for column in heads.columns.drop(NAMES)}
    arrays |= {"row": there.nonzero()[:, 0].numpy().astype("i4"), "head": heads["head"].to_numpy("i4")}
    frequencies, dense = dense_frequencies(heads, profile.frequencies)
    tokens, stored = token_data(profile, there.numpy())
    if "log_mass" in tensors:
        stored["mass"] = tensors["log_mass"][there].half().numpy()
    effects, changes = effects_data(heads, ablation) if ablation else (None, {})
    planned, rotations = plan_data(heads, frequencies, plan) if plan and frequencies else (None, {})
    tasks = [] if profile.tasks is None else list(profile.tasks.groupby("task", sort=False))
    for (number, (_, table)), axis in product(enumerate(tasks), ("positional", "symbolic")):
        arrays[f"task_{number}_{axis}"] = table[axis].to_numpy("f8")
    rows = heads.assign(row=arrays["row"]).drop_duplicates("row")
    return {
        "type": "profile",
        "name": name,
        "sentences": profile_sentences(profile),
        "warnings": about["warnings"],
        "labels": head_labels(heads),
        "layers": rows["layer"].tolist(),
        "kv_heads": heads["kv_head"].tolist(),
        "thresholds": about["thresholds"],
        "roles": head_roles(heads),
        "criteria": {"role": ROLE, "little": LITTLE, "drawn": DRAWN, "sink_heads": SINK_HEADS},
        "frequencies": frequencies,
        "arrays": {key: encoded(values) for key, values in (arrays | dense | changes | rotations).items()}
        | {key: compressed(values) for key, values in stored.items()},
        "tokens": tokens,
        "tasks": [Path(str(name)).name for name, _ in tasks],
        "effects": effects,
        "plan": planned,
        "blocks": blocks,
        "table": about["table"],
        "prompts": len(about["prompts"]),
        "command": profile_command(about),
        "about": {key: about[key] for key in REPEATED if key in about},
    }


def head_roles(heads: Any) -> dict[str, list[int]]:
    """The heads in every role that some head has, as places in the table; profiles of earlier versions have none."""
    if "on_blocks" not in heads:
        return {}
    found = {role: in_role(heads, role) for role in ("retrieving", *ROLES)} | {
        "rests on little": rests_on_little(heads)
    }
    return {role: np.flatnonzero(there).tolist() for role, there in found.items() if there.any()}


def series_data(watched: Dynamics, name: str) -> dict[str, Any]:
    """Every head at every step, accuracy by hops, and the step at which each head became pure."""
    last = watched.heads.query("query == 0").sort_values(["step", "layer", "head"])
    steps = np.unique(last["step"])
    first: Any = last[last["step"] == steps[0]].assign(nth=0)
    arrays: dict[str, Any] = {column: last[column].to_numpy("f4") for column in SERIES}
    arrays |= {"row": first["layer"].rank(method="dense").to_numpy("i4") - 1, "head": first["head"].to_numpy("i4")}
    hops = sorted(set(watched.accuracy["hops"]))
    shares: Any = watched.accuracy.sort_values(["step", "hops"])["accuracy"]
    arrays["accuracy"] = shares.to_numpy("f4")
    pure: Any = watched.purity[watched.purity["gamma"] == GAMMA]
    return {
        "type": "series",
        "name": name,
        "sentences": series_sentences(watched, GAMMA),
        "warnings": [
            f"checkpoint {one} was not measured: {why}" for one, why in watched.about.get("failed", {}).items()
        ],
        "labels": head_labels(first),
        "layers": sorted(set(first["layer"].tolist())),
        "thresholds": {"high": HIGH, "low": LOW},
        "steps": steps.tolist(),
        "hops": hops,
        "pure": {f"{row['layer']}.{row['head']}": row["step"] for row in pure.to_dict("records")},
        "gamma": GAMMA,
        "arrays": {key: encoded(values) for key, values in arrays.items()},
        "command": series_command(watched.about),
        "about": watched.about,
    }


def lengths_data(found: Lengths, name: str) -> dict[str, Any]:
    """Right answers by length and hops, published values, and the attention of every head at every length."""
    heads: Any = found.heads.sort_values(["length", "layer", "head"])
    loss: Any = found.loss.sort_values(["layer", "head"]).assign(nth=0)
    shares = found.accuracy.sort_values(["length", "hops"])
    arrays = {f"accuracy{end}": shares[end.strip("_") or "accuracy"].to_numpy("f4") for end in ("", "_low", "_high")}
    arrays |= {place: heads[place].to_numpy("f4") for place in PLACES}
    arrays |= {column: loss[column].to_numpy("f8") for column in ("measured", "predicted")}
    arrays |= {"row": loss["layer"].rank(method="dense").to_numpy("i4") - 1, "head": loss["head"].to_numpy("i4")}
    grid, about = sorted(set(shares["length"])), found.about
    words = ["wherewhat", "lengths", about.get("model", about["task"]), "--prompts", str(about["prompts"])]
    words += ["--longest", str(grid[-1]), "--seed", str(about["seed"])]
    words += ["--sharpen"] * bool(about.get("sharpened"))
    return {
        "type": "lengths",
        "name": name,
        "sentences": length_sentences(found),
        "warnings": [],
        "labels": head_labels(loss),
        "layers": sorted(set(loss["layer"].tolist())),
        "lengths": grid,
        "hops": sorted(set(shares["hops"])),
        "asked": shares["asked"].max().item(),
        "published": [[at, share] for at, share in published_accuracy(about["task"], grid).items()],
        "arrays": {key: encoded(values) for key, values in arrays.items()},
        "command": shlex.join(words),
        "about": about,
    }


def profile_command(about: dict[str, Any]) -> str:
    """The command that repeats this profile."""
    settings = about["settings"]
    if "command" in about:
        return about["command"]
    if "task" not in settings:
        return "ww.profile(model, prompts), called from Python with its own prompts"
    words = ["wherewhat", "profile", about["model"]]
    if about.get("revision"):
        words += ["--revision", about["revision"]]
    tasks = [settings, *settings.get("tasks", ())]
    for task in tasks:
        words += ["--task", str(task["task"])]
    for option in OPTIONS:
        given = [task[option] for task in tasks if task.get(option) is not None]
        words += [f"--{option}", str(given[0])] if given else []
    return shlex.join(words + (["--chat"] if settings.get("chat") else []))


def series_command(about: dict[str, Any]) -> str:
    """The command that repeats this series; a series without a run or models is part of a reproduction."""
    models = about.get("models")
    if not models and "run" not in about:
        return "wherewhat reproduce dynamics -o runs"
    words = ["wherewhat", "dynamics", *(models or [about["run"]])]
    words += ["--revisions", about["revisions"]] if "revisions" in about else []
    words += ["--dtype", about["dtype"]] if about.get("dtype", "float32") != "float32" else []
    words += ["--prompts", str(about["prompts"]), "--tau", str(about["tau"])]
    return shlex.join(words + (["--pairs", str(about["pairs"]), "--seed", str(about["seed"])] if models else []))


def encoded(values: np.ndarray) -> dict[str, str]:
    """An array as the page reads it: its type, and its little-endian bytes in base64."""
    kind = values.dtype.newbyteorder("<")
    return {"type": kind.str[1:], "base64": base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()}


def compressed(values: np.ndarray) -> dict[str, str]:
    """An array of two-byte numbers, compressed: all low bytes before all high bytes, which makes it smaller."""
    kind = values.dtype.newbyteorder("<")
    planes = np.frombuffer(np.ascontiguousarray(values, kind).tobytes(), "u1").reshape(-1, 2).T
    return {"type": kind.str[1:], "deflate": base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()}


def names_of(sources: Sequence[Source], folders: Sequence[Path | None] | None = None) -> list[str]:
    """One name per result; results of the same model are distinguished by their folders, or numbered."""
    names = [source.name for source in sources]
    marks = [str(number) for number in range(1, len(names) + 1)]
    for at, folder in enumerate(folders or ()):
        if folder is not None:
            marks[at] = folder.parent.name if folder.name == "dynamics" else folder.name
    return [f"{name} ({mark})" if names.count(name) > 1 else name for name, mark in zip(names, marks, strict=True)]
