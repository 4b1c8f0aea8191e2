"""Profile a model: for every head and frequency, where or what, on prompts that mean something."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..capture import load
from ..core.kinds import HIGH, LOW
from ..core.measure import check_tau
from ..errors import BadInput
from ..prompts import Prompt
from ..prompts.task import longest
from .cells import kept, run_cells
from .headlines import headlines
from .measurements import (
    CHECKS,
    VERSION,
    PromptCell,
    blocks_merged,
    dtype_name,
    measure_prompt,
    measure_signature,
    signature_cell,
)
from .profile_file import Profile, already_there, plain
from .tables import AXES, Measured, frequency_table, head_table, stacked

__all__ = ["LEVELS", "Profile", "profile"]

LEVELS: dict[str, Callable[[PreTrainedModel, PromptCell], dict[str, Tensor]]] = {"keys": measure_prompt}


def profile(
    model: PreTrainedModel | str | Path,
    prompts: Sequence[Prompt],
    *,
    level: str = "keys",
    tau: float = 1e-4,
    seed: int = 0,
    folder: str | Path | None = None,
    overwrite: bool = False,
    settings: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Profile:
    """Measure every head and frequency of a model on these prompts.

    With a `folder`, each prompt's numbers are kept there as they come, so that an interrupted profile goes on with
    the next prompt; the finished profile is saved beside them. A profile that is there already is read, not made
    again; one with other settings, or of another model, is only replaced with `overwrite`.

    `settings` say how the prompts were made, `about` whatever else should be kept with the profile.

    >>> prompts = binding(tokenizer, pairs=64, samples=8)              # doctest: +SKIP
    >>> ww.profile(model, prompts).heads                               # doctest: +SKIP
    """
    check_level(level)
    check_tau(tau)
    if not prompts:
        raise BadInput("a profile needs at least one prompt")
    if not isinstance(model, PreTrainedModel):
        model = load(model)
    weights, dtype = weights_hash(model), dtype_name(model)
    known = {"weights": weights, **measure_settings(level, tau, seed, dtype), **(settings or {})}
    known["prompts"] = hashlib.sha256(json.dumps([asdict(prompt) for prompt in prompts]).encode()).hexdigest()
    if folder is not None and already_there(Path(folder), known, overwrite):
        there = Profile.load(folder)
        say(f"The profile is already there, in {folder}")
        return there

    cells = [
        PromptCell(weights, dtype, prompt.ids, prompt.blocks, prompt.answer, tau, table=number == 0, level=level)
        for number, prompt in enumerate(prompts)
    ]
    keep = None if folder is None else Path(folder) / "cells"
    say(f"Prompts: {len(prompts)}, of up to {longest(prompts)} tokens and {max(len(p.blocks) for p in prompts)} blocks")
    if before := kept(keep, cells):
        say(f"{before} of {len(cells)} prompts were there")
    results = []
    for done, result in enumerate(run_cells(keep, cells, lambda cell: LEVELS[level](model, cell), "prompts"), 1):
        progress("prompts", done, len(cells))
        results.append(result)
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
        "self_check": dict(zip(CHECKS, results[0]["check"].tolist(), strict=True)),
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


def check_level(level: str) -> None:
    if level not in LEVELS:
        raise BadInput(f"level is {' or '.join(LEVELS)}, got {level}")


def measure_settings(level: str, tau: float, seed: int, dtype: str) -> dict[str, Any]:
    """How a profile is measured, whatever its prompts."""
    return {"level": level, "tau": plain(tau), "seed": seed, "dtype": dtype, "version": VERSION}


def weights_hash(model: torch.nn.Module) -> str:
    """A hash of every parameter, by name: the same weights, the same hash."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
