"""Profile a model: for every head and frequency, where or what, on prompts that mean something."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..capture import load
from ..capture.offload import fetched
from ..core.kinds import HIGH, LOW
from ..core.measure import check_tau
from ..errors import BadInput
from ..lab import Transformer
from ..lab.gptj import to_gptj
from ..prompts import Prompt
from ..prompts.task import longest
from .cells import kept, run_cells
from .executors import Here
from .headlines import headlines
from .measurements import (
    CHECKS,
    VERSION,
    PromptCell,
    Within,
    blocks_merged,
    dtype_name,
    measure_keys,
    measure_signature,
    measure_whole,
    signature_cell,
)
from .profile_file import Profile, already_there, plain
from .tables import AXES, Measured, frequency_table, head_table, stacked

__all__ = ["LEVELS", "Profile", "profile"]

Measure = Callable[[PreTrainedModel, PromptCell, Within], dict[str, Tensor]]
LEVELS: dict[str, Measure] = {"keys": measure_keys, "prompt": measure_whole}
SWAPS = 128  # run a prompt at level prompt, if there are more


def profile(
    model: PreTrainedModel | Transformer | str | Path,
    prompts: Sequence[Prompt],
    *,
    level: str = "keys",
    swaps: int | None = None,
    tau: float = 1e-4,
    seed: int = 0,
    folder: str | Path | None = None,
    overwrite: bool = False,
    settings: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Profile:
    """Measure every head and frequency of a model on these prompts.

    With a `folder`, each prompt's numbers are kept there as they come, so that an interrupted profile goes on with
    the next prompt; the finished profile is saved beside them. A profile that is there already is read, not made
    again; one with other settings, or of another model, is only replaced with `overwrite`.

    Level "keys" swaps contents inside each head; level "prompt" swaps blocks of the prompt, `swaps` of them (128), and
    runs the whole model again for each: slower, without frequencies, and the only level for models whose positions
    are added to their embeddings.

    A model of the lab is measured as the GPT-J that it is. `settings` say how the prompts were made, `about` whatever
    else should be kept with the profile.

    >>> prompts = binding(tokenizer, pairs=64, samples=8)              # doctest: +SKIP
    >>> ww.profile(model, prompts).heads                               # doctest: +SKIP
    """
    swaps = check_level(level, swaps)
    check_tau(tau)
    if not prompts:
        raise BadInput("a profile needs at least one prompt")
    if seed < 0:
        raise BadInput(f"seed must not be negative, got {seed}")
    if isinstance(model, Transformer):
        model = to_gptj(model)
    elif not isinstance(model, PreTrainedModel):
        model = load(model)
    weights, dtype = model_hash(model), dtype_name(model)
    known = {"weights": weights, **measure_settings(level, swaps, tau, seed, dtype), **(settings or {})}
    known["prompts"] = prompts_hash(prompts)
    if folder is not None and already_there(Path(folder), known, overwrite):
        there = Profile.load(folder)
        say(f"The profile is already there, in {folder}")
        return there

    cells = [
        PromptCell(
            weights, dtype, prompt.ids, prompt.blocks, prompt.answer, tau, table=number == 0 and swaps is None,
            level=level, swaps=swaps, seed=None if swaps is None else seed + number,
        )
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip
    keep = None if folder is None else Path(folder) / "cells"
    say(f"Prompts: {len(prompts)}, of up to {longest(prompts)} tokens and {max(len(p.blocks) for p in prompts)} blocks")
    if before := kept(keep, cells):
        say(f"{before} of {len(cells)} prompts were there")
    results: list[dict[str, Tensor]] = []
    show = Here(lambda done, total: progress("prompts", len(results) + done / total, len(cells)))

    def compute(cell: PromptCell) -> dict[str, Tensor]:
        return LEVELS[level](model, cell, show)

    for result in run_cells(keep, cells, compute, "prompts"):
        results.append(result)
        progress("prompts", len(results), len(cells))
    signature = signature_cell(model, weights, seed)
    (recognised,) = run_cells(keep, [signature], lambda cell: measure_signature(model, cell))
    described = {
        "model": model.config.name_or_path,
        "architecture": model.config.model_type,
        "level": level,
        "tau": plain(tau),
        "settings": known,
        "thresholds": {"high": HIGH, "low": LOW},
        **headlines(results, prompts, tau, seed, dtype),
        "self_check": {
            name: value
            for name, value in zip(CHECKS, results[0]["check"].tolist(), strict=True)
            if not math.isnan(value)  # a check that this level or model does not have
        },
        "table": table_rows(prompts[0]),
        "prompts": [asdict(prompt) for prompt in prompts],
        "versions": {name: version(name) for name in ("wherewhat", "torch", "transformers")}
        | {"python": platform.python_version()},
    }
    tables = head_table(results, recognised, seed), frequency_table(results)
    finished = Profile(*tables, described | (about or {}), _tensors(results))
    if folder is not None:
        finished.save(folder)
    return finished


def check_level(level: str, swaps: int | None = None) -> int | None:
    """How many swaps are run a prompt: none at level keys, which has them all without running any."""
    if level not in LEVELS:
        raise BadInput(f"level is {' or '.join(LEVELS)}, got {level}")
    if level == "keys":
        if swaps is not None:
            raise BadInput("level keys has all swaps from one run; --swaps belongs to level prompt")
        return None
    if swaps is not None and swaps < 1:
        raise BadInput(f"swaps must be at least 1, got {swaps}")
    return swaps or SWAPS


def measure_settings(level: str, swaps: int | None, tau: float, seed: int, dtype: str) -> dict[str, Any]:
    """How a profile is measured, whatever its prompts."""
    return {"level": level, "swaps": swaps, "tau": plain(tau), "seed": seed, "dtype": dtype, "version": VERSION}


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """A hash of all that is measured of the prompts, whatever else is shown of them."""
    measured = [
        {name: value for name, value in asdict(prompt).items() if name not in ("tokens", "says")} for prompt in prompts
    ]
    return hashlib.sha256(json.dumps(measured).encode()).hexdigest()


# What a configuration says of where it came from, not of what the model does.
SAID_OF_ORIGIN = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


def model_hash(model: PreTrainedModel) -> str:
    """A hash of all that the scores depend on: parameters, buffers such as the angles, and the configuration."""
    digest = hashlib.sha256(weights_hash(model).encode())
    for name, value in sorted(model.named_buffers()):
        digest.update(name.encode() + _bytes(fetched(model, name, value)).tobytes())
    stated = {name: value for name, value in model.config.to_dict().items() if name not in SAID_OF_ORIGIN}
    digest.update(json.dumps(stated, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def weights_hash(model: torch.nn.Module) -> str:
    """A hash of every parameter, by name: the same weights, the same hash, wherever they are kept."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(_bytes(fetched(model, name, value)).data)
    return digest.hexdigest()


def _bytes(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def table_rows(prompt: Prompt) -> list[dict[str, Any]]:
    """What each row and column of the stored table stands for: the blocks from `first` to `last`, and what they say."""
    merged = blocks_merged(len(prompt.blocks))
    rows = []
    for first in range(0, len(prompt.blocks), merged):
        last = min(first + merged, len(prompt.blocks)) - 1
        said = prompt.labels[first : last + 1]
        label = said[0] if len(said) == 1 else f"{said[0]} ... {said[-1]}" if said else ""
        rows.append({"first": first, "last": last, "label": label})
    return rows


def _tensors(results: Measured) -> dict[str, Tensor]:
    blocks = max(one["block_attention"].shape[-1] for one in results)
    attention = [
        pad(one["block_attention"], (0, blocks - one["block_attention"].shape[-1]), value=torch.nan) for one in results
    ]
    tensors = {"block_attention": torch.stack(attention)} | {axis: stacked(results, axis) for axis in AXES}
    return tensors | ({"log_mass": results[0]["log_mass"]} if "log_mass" in results[0] else {})
