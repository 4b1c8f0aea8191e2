"""Train a small GPT-J on a multi-hop task, as in the paper on learning dynamics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ...errors import BadInput
from ...lab import Recipe, Run, Shape, Transformer, train_model
from ...lab.train import processor_threads
from ...results import Progress, Say, ignore_progress, ignore_sentence
from ...tasks import TASKS

EVERY = 50  # steps between checkpoints
WATCHED = 400  # validation sequences evaluated during training


def train(
    task: str,
    *,
    folder: str | Path | None = None,
    steps: int = 6750,
    batch: int = 64,
    rate: float = 1e-4,
    warmup: int = 750,
    schedule: str = "linear",
    dropout: float = 0.1,
    embedding_dropout: float | None = None,
    exact_gelu: bool = False,
    half: bool = False,
    bfloat16: bool = False,
    every: int = EVERY,
    threads: int | None = None,
    seed: int = 0,
    data_seed: int | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Run:
    """A small GPT-J, 12 layers with one head each, trained on a multi-hop task: "number" or "letter".

    The defaults are the paper's: one epoch of 432,000 sequences. `warmup` is the number of steps until the learning
    rate reaches `rate`, from which it decays to 0 by `schedule`, "linear" or "cosine". `embedding_dropout` None is the
    same as `dropout`; `exact_gelu` replaces the tanh approximation; `half` is mixed precision in float16, emulated;
    `bfloat16` is matrix products in bfloat16, about 1.4 times as fast on processors that have it. `every` is the number
    of steps between checkpoints. `data_seed` is the seed of the order of the sequences, None the same as `seed`. The
    authors' scripts train with exact GELU and no embedding dropout.

    The run is saved in `folder`, by default runs/TASK-SEED. An interrupted run resumes, and ends with the same weights.

    >>> run = ww.train("number", steps=200, warmup=20)                 # doctest: +SKIP
    >>> run.accuracy, run.model()                                      # doctest: +SKIP
    """
    folder = Path("runs") / f"{task}-{seed}" if folder is None else Path(folder)
    recipe = Recipe(
        steps, batch, rate, warmup=warmup, schedule=schedule, dropout=dropout, embedding_dropout=embedding_dropout,
        seed=seed, data_seed=data_seed, half=half, bfloat16=bfloat16,
    )  # fmt: skip
    with processor_threads(threads):
        train_task(
            task, folder, recipe, every=every, exact_gelu=exact_gelu, say=say,
            progress=lambda what, done, total: progress(f"{task}: {what}", done, total),
        )  # fmt: skip
    return Run.load(folder)


def train_task(
    name: str,
    folder: str | Path,
    recipe: Recipe | None = None,
    *,
    every: int = EVERY,
    exact_gelu: bool = False,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Transformer:
    """The paper's model and data, trained by a recipe; resumes an interrupted run.

    >>> model = train_task("number", "runs/number")                    # doctest: +SKIP
    """
    if name not in TASKS:
        raise BadInput(f"no task {name!r}: {', '.join(TASKS)}")
    if every < 1:
        raise BadInput(f"every must be at least 1, got {every}")
    recipe = recipe or Recipe()
    task = TASKS[name]()
    examples, validation, _ = task.splits()
    shape = Shape(task.vocabulary, gelu="none" if exact_gelu else "tanh")
    return train_model(
        shape, examples, validation[:WATCHED], recipe, folder, save_at=range(0, recipe.steps + 1, every),
        about={"task": name} | asdict(task), progress=progress, say=say,
    )  # fmt: skip
