"""Dynamics of what a user names: a run of the lab on its own task, or a series of models on binding prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..capture import load_tokenizer
from ..errors import BadInput
from ..lab.checkpoint import read_run
from ..prompts import binding
from ..tasks import TASKS
from .dynamics import Dynamics, Progress, dynamics, refuse_repeats, views_of_prompts, views_of_sequences
from .series import series_of_models, series_of_revisions, series_of_run, source_of, tokenizer_of_revision


def watch_run(
    run: str | Path, folder: Path | None, prompts: int, hop_positions: bool, tau: float, progress: Progress
) -> tuple[Dynamics, Path]:
    """Every checkpoint of a training run on the first so many validation sequences of its task."""
    described = read_run(run)
    if described.get("task") not in TASKS:
        raise BadInput(f"{run}: a run of no known task")
    validation = TASKS[described["task"]]().splits()[1]
    if prompts > len(validation):
        raise BadInput(f"prompts: at most the {len(validation)} validation sequences, got {prompts}")
    views = views_of_sequences(validation[:prompts], hop_positions)
    folder = folder or Path(run) / "dynamics"
    about = {"task": described["task"], "seed": described["recipe"]["seed"], "run": str(run)}
    return dynamics(series_of_run(run), views, folder, tau=tau, about=about, progress=progress), folder


def watch_models(
    names: Sequence[str],
    folder: Path | None,
    prompts: int,
    pairs: int,
    tau: float,
    seed: int,
    progress: Progress,
    *,
    revisions: str | None = None,
    allow_repeated: bool = False,
    evict: bool = False,
    trust_remote_code: bool = False,
    dtype: str = "float32",
    **place: Any,
) -> tuple[Dynamics, Path]:
    """Models in the order given, or the revisions of one by pattern, on binding prompts made with the tokenizer of the
    first; `place` is where `ww.load` puts them."""
    options = {"trust_remote_code": trust_remote_code, "dtype": dtype, **place}
    about = {"task": "binding", "seed": seed, "pairs": pairs, "models": list(names), "dtype": dtype}
    if revisions is None:
        folder = folder or Path("dynamics")
        series = series_of_models(names, evict=f"{folder.absolute()}" if evict else None, **options)
        source, revision = source_of(names[0])
        tokenizer = load_tokenizer(source, revision=revision, trust_remote_code=trust_remote_code)
    else:
        if len(names) > 1:
            raise BadInput(f"--revisions are those of one model, got {len(names)} models")
        folder = folder or Path("dynamics") / Path(names[0]).name
        series = series_of_revisions(names[0], revisions, evict=f"{folder.absolute()}" if evict else None, **options)
        if not allow_repeated:
            refuse_repeats(series)  # before anything is downloaded
        tokenizer = tokenizer_of_revision(names[0], series[0], trust_remote_code)
        about["revisions"] = revisions
    views = views_of_prompts(binding(tokenizer, pairs, prompts, seed))
    made = dynamics(series, views, folder, tau=tau, allow_repeated=allow_repeated, about=about, progress=progress)
    return made, folder
