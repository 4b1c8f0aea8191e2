"""Profile a model: positional and symbolic scores of every head and frequency, on meaningful prompts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ...cells.cells import kept, run_cells
from ...cells.executors import LocalOnly
from ...core.kinds import HIGH, LITTLE, LOW
from ...core.scores import check_tau
from ...errors import BadInput
from ...files import plain
from ...lab import Transformer
from ...lab.gptj import to_gptj
from ...prompts import Prompt, PromptRequest, make_prompts
from ...prompts.multihop import multihop
from ...prompts.request import longest, request_prompts
from ...results import Progress, Say, check_count, check_seed, ignore_progress, ignore_sentence, versions
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import AnyModel, Loading, check_dtype, is_lab_model, open_model
from ...tracing.self_check import stated_context
from .attention import SHOWN_PROMPTS
from .cell import (
    CHECKS,
    VERSION,
    PromptCell,
    Within,
    blocks_merged,
    measure_keys,
    measure_signature,
    measure_whole,
    signature_cell,
)
from .result import Profile, is_saved
from .roles import ROLE
from .summary import summarise
from .tables import AXES, Measured, frequency_table, head_table, stacked
from .tasks import TaskResult, task_tables

__all__ = ["LEVELS", "Profile", "profile"]

Measure = Callable[[PreTrainedModel, PromptCell, Within], dict[str, Tensor]]
LEVELS: dict[str, Measure] = {"keys": measure_keys, "prompt": measure_whole}
SWAPS = 128  # per prompt at level prompt, if more are possible
LAB_SAMPLES = 32  # prompts for a model of the lab


def profile(
    model: AnyModel,
    prompts: Sequence[Prompt] | None = None,
    *,
    folder: str | Path | None = None,
    task: str | Sequence[str] | None = None,
    kind: str | None = None,
    template: str | None = None,
    pairs: int | None = None,
    group: int | None = None,
    samples: int | None = None,
    chat: bool | None = None,
    width: int | None = None,
    stretch: int | None = None,
    level: str = "keys",
    swaps: int | None = None,
    tau: float = 1e-4,
    overwrite: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    settings: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Profile:
    """Positional and symbolic score of every head and frequency of a model.

    `model` is a model, anything that `ww.load` takes (then `dtype`, `device`, `device_map`, `revision` and
    `trust_remote_code` apply), "number", "letter" or the folder of a training run.

    `prompts` are given, or made for `task`: "binding" (the default, with `kind`, `template`, `pairs`, `group`
    statements per block, `samples`, `chat`), "repeats" (`samples`), "prose", a .txt file (`samples`, `width` tokens per
    block, `stretch` tokens per prompt) or a .jsonl file of prompts. A model that is not given by name needs its
    `tokenizer` for that. A model of the lab reads `samples` sequences of the task that it was trained on, and is
    measured as the equivalent GPT-J.

    With several tasks, the profile is that of the first, and its `tasks` holds the heads on each of the others. An
    option applies to the tasks that have it.

    With a `folder`, the profile is saved there, along with the numbers of each prompt as soon as they are measured, so
    that an interrupted profile resumes. An existing profile is reused; one with other settings, or of another model, is
    replaced only with `overwrite`.

    Level "keys" swaps contents inside each head. Level "prompt" swaps blocks of the prompt and reruns the whole model
    for each of `swaps` swaps (128): slower, without frequencies, and the only level for models that add positions to
    their embeddings.

    `settings` describe prompts that are given, `about` adds to the provenance.

    >>> profile = ww.profile("number", samples=2)
    >>> profile.heads.query("layer == 1")[["layer", "head", "kind"]].to_dict("records")
    [{'layer': 1, 'head': 0, 'kind': 'where'}]
    """
    swaps = check_level(level, swaps)
    check_tau(tau)
    check_seed(seed)
    folder = None if folder is None else Path(folder)
    name = str(model) if isinstance(model, (str, Path)) else None
    lab = isinstance(model, Transformer) or (name is not None and is_lab_model(name))
    options = {"kind": kind, "template": template, "pairs": pairs, "group": group, "samples": samples, "chat": chat}
    options |= {"width": width, "stretch": stretch}
    requests: list[PromptRequest] = []
    if prompts is not None or lab:
        _check_options(prompts, options | {"task": task})
    else:
        requests = request_prompts([task] if isinstance(task, str) else task or ["binding"], options)
        if folder is not None and name is not None:  # refuse a wrong folder before the model is loaded
            dtype = str(check_dtype(loading.get("dtype", "float32"))).removeprefix("torch.")
            chosen = {option: value for option, value in _described(requests).items() if value is not None}
            is_saved(folder, chosen | measure_settings(level, swaps, tau, seed, dtype), overwrite)
    if name is not None:
        progress(f"loading {name}", 0, 1)
        about = {"model": name, "revision": loading.get("revision")} | dict(about or {})
    opened = open_model(model, tokenizer, **loading)
    further: list[list[Prompt]] = []
    if prompts is None and requests:
        context = stated_context(opened.model) or 2048
        made = [make_prompts(request, opened.tokenizer, context, seed) for request in requests]
        prompts, *further = (some for some, _ in made)
        requests = [request for _, request in made]
        settings = _described(requests) | dict(settings or {})
    elif prompts is None:
        prompts = multihop(opened.task or "", samples or LAB_SAMPLES, seed)
        settings = {"task": opened.task, "samples": samples or LAB_SAMPLES} | dict(settings or {})
    measured = to_gptj(opened.model) if isinstance(opened.model, Transformer) else opened.model

    weights, dtype = model_hash(measured), dtype_name(measured)
    known = {"weights": weights, **measure_settings(level, swaps, tau, seed, dtype), **(settings or {})}
    known["prompts"] = prompts_hash([prompt for some in (prompts, *further) for prompt in some])
    if folder is not None and is_saved(folder, known, overwrite):
        found = Profile.load(folder)
        say(f"Reusing the profile in {folder}")
        return found
    keep = None if folder is None else folder / "cells"

    def measure(some: Sequence[Prompt], what: str, first: bool) -> list[dict[str, Tensor]]:
        cells = [
            PromptCell(
                weights, dtype, prompt.ids, prompt.blocks, prompt.answer, prompt.target, prompt.answer_at, tau,
                table=first and number == 0 and swaps is None, shown=first and number < SHOWN_PROMPTS,
                every_query=first and number == 0, level=level, swaps=swaps,
                seed=None if swaps is None else seed + number,
            )
            for number, prompt in enumerate(some)
        ]  # fmt: skip
        say(f"{what}: {len(some)}, of up to {longest(some)} tokens and {max(len(p.blocks) for p in some)} blocks")
        if reused := kept(keep, cells):
            say(f"Resuming: {reused} of {len(cells)} prompts were measured before")
        return _measure_prompts(measured, cells, keep, progress)

    results = measure(prompts, "Prompts", first=True)
    (signature,) = run_cells(
        keep, [signature_cell(measured, weights, seed)], lambda cell: measure_signature(measured, cell)
    )
    heads = head_table(results, signature, seed)
    others = [
        TaskResult(request.settings(), some, measure(some, f"Prompts of {request.name}", first=False))
        for request, some in zip(requests[1:], further, strict=True)
    ]
    tasks, compared = task_tables(heads, others, signature, tau, seed, dtype)
    more = ({"tasks": compared} if compared else {}) | dict(about or {})
    finished = make_profile(measured, prompts, results, heads, known, more, tasks)
    if folder is not None:
        finished.save(folder)
    return finished


def make_profile(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    results: Measured,
    heads: pd.DataFrame,
    settings: Mapping[str, Any],
    about: Mapping[str, Any],
    tasks: pd.DataFrame | None = None,
) -> Profile:
    """The profile of prompts that were measured, with everything needed to repeat it; `about` adds to that."""
    tau, seed, dtype = float(settings["tau"]), settings["seed"], settings["dtype"]
    described = {
        "model": model.config.name_or_path,
        "architecture": model.config.model_type,
        "level": settings["level"],
        "tau": settings["tau"],
        "settings": dict(settings),
        "thresholds": {"high": HIGH, "low": LOW, "on_blocks": LITTLE, "role": ROLE},
        **summarise(results, prompts, tau, seed, dtype),
        "self_check": {
            check: value
            for check, value in zip(CHECKS, results[0]["check"].tolist(), strict=True)
            if not math.isnan(value)  # a check that this level or model does not have
        },
        "table": table_rows(prompts[0]),
        "prompts": json.loads(json.dumps([vars(prompt) for prompt in prompts])),  # tuples become lists, as on disk
        "versions": versions("transformers"),
    }
    return Profile(heads, frequency_table(results), described | dict(about), _tensors(results), tasks)


def _described(requests: Sequence[PromptRequest]) -> dict[str, Any]:
    """The settings of the prompts: those of the first task, and those of all others under `tasks`."""
    first, *others = (request.settings() for request in requests)
    return first | ({"tasks": others} if others else {})


def _check_options(prompts: Sequence[Prompt] | None, options: Mapping[str, Any]) -> None:
    """Refuse options of prompts that are given, or that a model of the lab does not have."""
    if prompts is not None and not prompts:
        raise BadInput("a profile needs at least one prompt")
    for option, value in options.items():
        if value is not None and (prompts is not None or option != "samples"):
            which = "prompts that are given" if prompts is not None else "a model of the lab, which reads its own task"
            raise BadInput(f"--{option} does not apply to {which}")
    if options["samples"] is not None:
        check_count(options["samples"], "samples")


def _measure_prompts(
    model: PreTrainedModel, cells: Sequence[PromptCell], keep: Path | None, progress: Progress
) -> list[dict[str, Tensor]]:
    """The numbers of every prompt, one cell each."""
    results: list[dict[str, Tensor]] = []
    show = LocalOnly(lambda done, total: progress("prompts", len(results) + done / total, len(cells)))
    for result in run_cells(keep, cells, lambda cell: LEVELS[cell.level](model, cell, show), "prompts"):
        results.append(result)
        progress("prompts", len(results), len(cells))
    return results


def check_level(level: str, swaps: int | None = None) -> int | None:
    """The number of swaps to run per prompt; None at level keys, which needs no extra runs."""
    if level not in LEVELS:
        raise BadInput(f"level is {' or '.join(LEVELS)}, got {level}")
    if level == "keys":
        if swaps is not None:
            raise BadInput("--swaps belongs to level prompt; level keys covers all swaps in a single run")
        return None
    if swaps is not None and swaps < 1:
        raise BadInput(f"swaps must be at least 1, got {swaps}")
    return swaps or SWAPS


def measure_settings(level: str, swaps: int | None, tau: float, seed: int, dtype: str) -> dict[str, Any]:
    """The settings of a measurement, without those of its prompts."""
    return {"level": level, "swaps": swaps, "tau": plain(tau), "seed": seed, "dtype": dtype, "version": VERSION}


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """A hash of everything in the prompts that affects the measurement; text for display does not count."""
    measured = [
        {
            "left_out" if name == "skipped" else name: value  # the name under which it was hashed at first
            for name, value in vars(prompt).items()
            if name not in ("tokens", "says")
        }
        for prompt in prompts
    ]
    return hashlib.sha256(json.dumps(measured).encode()).hexdigest()


def table_rows(prompt: Prompt) -> list[dict[str, Any]]:
    """The blocks that each row and column of the stored table stands for, from `first` to `last`, and their text."""
    merged = blocks_merged(len(prompt.blocks))
    rows = []
    for first in range(0, len(prompt.blocks), merged):
        last = min(first + merged, len(prompt.blocks)) - 1
        texts = prompt.labels[first : last + 1]
        label = texts[0] if len(texts) == 1 else f"{texts[0]} ... {texts[-1]}" if texts else ""
        rows.append({"first": first, "last": last, "label": label})
    return rows


def _tensors(results: Measured) -> dict[str, Tensor]:
    blocks = max(one["block_attention"].shape[-1] for one in results)
    attention = [
        pad(one["block_attention"], (0, blocks - one["block_attention"].shape[-1]), value=torch.nan) for one in results
    ]
    tensors = {"block_attention": torch.stack(attention)} | {axis: stacked(results, axis) for axis in AXES}
    shown = [one["token_attention"] for one in results[:SHOWN_PROMPTS]]
    longest = max(one.shape[-1] for one in shown)
    tensors["token_attention"] = torch.stack([pad(one, (0, longest - one.shape[-1])) for one in shown])
    first = ("strongest_attention", "strongest_keys", "log_mass")
    return tensors | {name: results[0][name] for name in first if name in results[0]}
