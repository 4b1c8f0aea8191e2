"""Watch heads become pure: a training run on its own task, or a series of models on binding prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.scores import check_tau
from ...errors import BadInput
from ...lab import Run
from ...lab.checkpoint import is_run, read_run
from ...prompts import Prompt, binding
from ...results import Progress, Say, check_seed, ignore_progress, ignore_sentence
from ...tasks import TASKS
from ...tracing import load_tokenizer
from ...tracing.load import check_devices, check_dtype
from .measure import measure_series, refuse_repeats, views_of_prompts, views_of_sequences
from .result import GAMMA, Dynamics
from .series import series_of_models, series_of_revisions, series_of_run, source_of, tokenizer_of_revision

__all__ = ["GAMMA", "Dynamics", "dynamics"]

SEQUENCES, PROMPTS = 2400, 8  # measured for a training run, and for models


def dynamics(
    sources: str | Path | Run | Sequence[str | Path],
    *,
    folder: str | Path | None = None,
    prompts: int | Sequence[Prompt] | None = None,
    hop_positions: bool = False,
    pairs: int = 32,
    tau: float = 1e-4,
    revisions: str | None = None,
    allow_repeated: bool = False,
    evict: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Dynamics:
    """Scores of every head at every checkpoint of a series, on the same prompts, and the step at which it became pure.

    `sources` is a training run, or models in order: folders, .gguf files, or hub ids as owner/name@revision. With
    `revisions`, a shell pattern, they are the revisions of one model: folders in it, or branches and tags in git or on
    the hub, sorted by step.

    A run is measured on the first `prompts` (2,400) validation sequences of its task, with `hop_positions` also from
    the positions hopped to. Models are measured on `prompts` (8) binding prompts of `pairs` statements, made with the
    tokenizer of the first model. `prompts` may also be a list of prompts.

    With a `folder`, the result is saved there, and the numbers of each checkpoint as they come: existing ones are
    reused, and the other checkpoints are still measured if one fails (`about["failed"]`). Checkpoints with the same
    weights are refused unless `allow_repeated`; with `evict`, downloads from the hub are removed after measuring.

    >>> ww.dynamics("runs/number-0", prompts=400).purity                               # doctest: +SKIP
    >>> ww.dynamics("EleutherAI/pythia-70m", revisions="step*", evict=True)            # doctest: +SKIP
    """
    check_tau(tau)
    check_seed(seed)
    check_dtype(dtype)
    check_devices(device, device_map)
    if isinstance(prompts, int) and prompts < 1:
        raise BadInput(f"prompts must be at least 1, got {prompts}")
    if prompts is not None and not isinstance(prompts, int) and not prompts:
        raise BadInput("a series needs at least one prompt")
    names = _names(sources)
    settings: dict[str, Any] = {"tau": tau, "allow_repeated": allow_repeated, "progress": progress, "say": say}
    if len(names) == 1 and is_run(names[0]):
        if revisions is not None:
            raise BadInput(f"revisions are for models; {names[0]} is a training run, of which all checkpoints are used")
        series, task = series_of_run(names[0]), _task_of(names[0])
        about = {"task": task, "seed": read_run(names[0])["recipe"]["seed"], "run": names[0]}
        if prompts is None or isinstance(prompts, int):
            validation, count = TASKS[task]().splits()[1], prompts or SEQUENCES
            if count > len(validation):
                raise BadInput(f"prompts: at most the {len(validation)} validation sequences, got {count}")
            views = views_of_sequences(validation[:count], hop_positions)
        else:
            views = views_of_prompts(prompts)
        return measure_series(series, views, folder, about=about, **settings)

    if hop_positions:
        raise BadInput(f"hop_positions applies only to a training run; {', '.join(names)} is not one")
    options = {"trust_remote_code": trust_remote_code, "dtype": dtype, "device": device, "device_map": device_map}
    about = {"task": "binding", "seed": seed, "pairs": pairs, "models": names, "dtype": dtype}
    cache = f"{Path(folder or '.').absolute()}" if evict else None
    if revisions is None:
        series = series_of_models(names, evict=cache, **options)
    else:
        if len(names) > 1:
            raise BadInput(f"revisions are those of one model, got {len(names)} models")
        series = series_of_revisions(names[0], revisions, evict=cache, **options)
        about["revisions"] = revisions
        if not allow_repeated:
            refuse_repeats(series)  # before anything is downloaded
    if prompts is None or isinstance(prompts, int):
        if revisions is None:
            source, revision = source_of(names[0])
            tokenizer = load_tokenizer(source, revision=revision, trust_remote_code=trust_remote_code)
        else:
            tokenizer = tokenizer_of_revision(names[0], series[0], trust_remote_code)
        prompts = binding(tokenizer, pairs, prompts or PROMPTS, seed)
    else:
        about["task"] = "prompts"
        del about["pairs"]
    return measure_series(series, views_of_prompts(prompts), folder, about=about, **settings)


def _names(sources: str | Path | Run | Sequence[str | Path]) -> list[str]:
    if isinstance(sources, Run):
        return [str(sources.folder)]
    if isinstance(sources, (str, Path)):
        return [str(sources)]
    if not sources:
        raise BadInput("a series needs at least one model")
    return [str(source) for source in sources]


def _task_of(run: str) -> str:
    task = read_run(run).get("task")
    if task not in TASKS:
        raise BadInput(f"{run}: trained on an unknown task, {task}")
    return task
