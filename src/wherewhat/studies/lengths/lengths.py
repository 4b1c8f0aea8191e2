"""Accuracy by length of any model: of the lab, on this machine, or behind an endpoint."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ...cells.executors import current
from ...errors import BadInput
from ...lab import Transformer
from ...results import Progress, Say, check_count, check_seed, ignore_progress, ignore_sentence, versions
from ...tracing.fingerprint import dtype_name
from ...tracing.load import AnyModel, Loading, OpenedModel, is_lab_model, open_model
from .answers import Answerer
from .figures import save_figure
from .hop_lengths import GRID, PROMPTS, Lengths, measure_lengths
from .local_model import LocalModel
from .text_lengths import PROMPTS as TEXT_PROMPTS
from .text_lengths import RUNS, WINDOWS, TextLengths, measure_text_lengths

__all__ = ["Lengths", "TextLengths", "lengths"]

API_KEY_ENV = "OPENAI_API_KEY"


def lengths(
    model: AnyModel | Answerer,
    *,
    folder: str | Path | None = None,
    prompts: int | None = None,
    longest: int = 5000,
    sharpen: bool = False,
    runs: int | None = None,
    one_message: bool = False,
    endpoint: str | None = None,
    api_key_env: str | None = None,
    per_minute: float | None = None,
    concurrency: int | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    extra: Mapping[str, Any] | None = None,
    seed: int = 0,
    task: str | None = None,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Lengths | TextLengths:
    """Accuracy of a model on sequences of growing length.

    A model of the lab ("number", "letter", the folder of a training run, or a `Transformer` with its `task`) gives
    `Lengths`: `prompts` sequences (200) per length of the paper's grid up to `longest` tokens, and the length at which
    each head loses the token it looks at, measured and predicted. `sharpen` multiplies all logits by log n / log 17 at
    n tokens, which undoes dilution.

    A language model gives `TextLengths`: windows of 12 to 300 symbols, at most `longest`, and a query that names one of
    them by its position (number) or its letter (letter); `prompts` (20) per task, window and run, `runs` (5) with seeds
    from `seed` on. In a chat every example is a turn, or, with `one_message`, everything is one message, as published.
    With `endpoint`, the URL of an OpenAI-compatible API, `model` is the name of a model there. The API
    key is read from the environment variable `api_key_env` (OPENAI_API_KEY) and never saved. `per_minute` limits
    requests, `concurrency` (4) is the number of requests at a time, `timeout` (60) is in seconds, `retries` (8) follow
    increasing pauses, `extra` holds additional fields of every request, and prices per million tokens read and written
    give the cost. Any object with the methods of `Answerer` can be asked, too.

    With a `folder`, tables and figure are saved there, as are cells or answers as they are computed, so that an
    interrupted run resumes.

    >>> ww.lengths("letter", longest=100, prompts=20).accuracy                         # doctest: +SKIP
    >>> ww.lengths("gpt-5.4", endpoint="https://api.openai.com/v1").accuracy           # doctest: +SKIP
    """
    request = {"per_minute": per_minute, "concurrency": concurrency, "timeout": timeout, "retries": retries}
    request = {name: value for name, value in (request | {"extra": extra}).items() if value is not None}
    prices = {"price_in": price_in, "price_out": price_out}
    if endpoint is None:
        for name, value in (request | {"api_key_env": api_key_env} | prices).items():
            if value is not None:
                raise BadInput(f"{name} applies only to a model behind an endpoint")
    check_seed(seed)
    for name, value in prices.items():
        if value is not None and not 0 <= value < math.inf:
            raise BadInput(f"{name} must not be negative, got {value}")
    for name, value in {"prompts": prompts, "runs": runs}.items():
        if value is not None:
            check_count(value, name)
    folder = None if folder is None else Path(folder)
    by_name = isinstance(model, (str, Path))

    if endpoint is None and (isinstance(model, Transformer) or (by_name and is_lab_model(model))):
        if runs is not None:
            raise BadInput("runs applies only to language models")
        if one_message:
            raise BadInput("one_message applies only to language models")
        return _lab_lengths(model, folder, prompts or PROMPTS, longest, sharpen, seed, task, progress)

    if sharpen:
        raise BadInput("sharpen applies only to models of the lab: number, letter and training runs")
    if task is not None:
        raise BadInput("task applies only to models of the lab; language models are asked about both tasks")
    if current()[0] is not None:
        raise BadInput("--jobs and --ray are for training runs and embedded models; an endpoint takes --concurrency")
    windows = [window for window in WINDOWS if window <= longest]
    if not windows:
        raise BadInput(f"windows start at {WINDOWS[0]} symbols, got longest {longest}")
    if endpoint is not None:
        answerer, about = _remote_model(model, endpoint, api_key_env, request)
        about |= {name: price for name, price in prices.items() if price is not None}
    elif isinstance(model, Answerer):
        answerer, about = model, {"model": type(model).__name__}
    else:
        if by_name:
            progress(f"loading {model}", 0, 1)
        answerer, about = _local_model(model, tokenizer, loading)
    found = measure_text_lengths(
        answerer, folder, windows=windows, prompts=prompts or TEXT_PROMPTS, seeds=range(seed, seed + (runs or RUNS)),
        one_message=one_message,
        about=about | {"longest": longest, "versions": versions("transformers")}, progress=progress, say=say,
    )  # fmt: skip
    return _saved(found, folder)


def _lab_lengths(
    model: Any,
    folder: Path | None,
    prompts: int,
    longest: int,
    sharpen: bool,
    seed: int,
    task: str | None,
    progress: Progress,
) -> Lengths:
    opened = open_model(model)
    task = task or opened.task
    if task is None:
        raise BadInput("a Transformer that does not know its task needs task='number' or task='letter'")
    found = measure_lengths(
        opened.model, task, None if folder is None else folder / "cells", grid=[at for at in GRID if at <= longest],
        prompts=prompts, sharpen=sharpen, seed=seed, progress=progress,
    )  # fmt: skip
    about = {"model": opened.name or task, "longest": longest, "versions": versions()}
    return _saved(replace(found, about=found.about | about), folder)


def _local_model(model: Any, tokenizer: Any, loading: Loading) -> tuple[LocalModel, dict[str, Any]]:
    if isinstance(model, (str, Path)):
        if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
            raise BadInput(f"{model}: holds neither a training run (run.json) nor a language model (config.json)")
        if tokenizer is None:  # takes less time to fail than the model
            tokenizer = OpenedModel(None, str(model), loading=loading).tokenizer
    opened = open_model(model, tokenizer, **loading)
    answerer = LocalModel(opened.model, opened.tokenizer)
    about = {"model": opened.name, "revision": loading.get("revision"), "weights": answerer.weights}
    return answerer, about | {"dtype": dtype_name(opened.model), "chat": answerer.chat}


def _remote_model(
    model: Any, endpoint: str, api_key_env: str | None, request: dict[str, Any]
) -> tuple[Answerer, dict[str, Any]]:
    if not isinstance(model, str):
        raise BadInput(f"with an endpoint, model is the name of a model there, got {type(model).__name__}")
    try:
        from .endpoint import Endpoint
    except ModuleNotFoundError as error:
        raise BadInput("an endpoint needs httpx2: pip install httpx2") from error
    key = os.environ.get(api_key_env or API_KEY_ENV, "").strip() or None
    if api_key_env is not None and key is None:
        raise BadInput(f"the environment variable {api_key_env} holds no API key")
    answerer = Endpoint(endpoint, model, key, **request)
    return answerer, {"model": model, "endpoint": answerer.url, "extra": dict(answerer.extra)}


def _saved(found: Any, folder: Path | None) -> Any:
    if folder is not None:
        found.save(folder)
        save_figure(found, folder / "lengths.pdf")
    return found
