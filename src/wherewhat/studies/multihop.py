"""Train a small GPT-J on a multi-hop task, as the paper on learning dynamics does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..errors import BadInput
from ..lab import Recipe, Shape, Transformer, train
from ..tasks import TASKS

EVERY = 50  # steps between checkpoints
WATCHED = 400  # validation sequences looked at during training


def train_task(
    name: str,
    folder: str | Path,
    recipe: Recipe | None = None,
    *,
    every: int = EVERY,
    progress: Callable[[int, int, float, float], None] = lambda step, steps, loss, accuracy: None,
) -> Transformer:
    """The paper's setting: 12 layers of one head, 432,000 sequences seen once. Goes on where it was stopped.

    >>> model = train_task("number", "runs/number")                    # doctest: +SKIP
    """
    if name not in TASKS:
        raise BadInput(f"no task {name!r}: {', '.join(TASKS)}")
    if every < 1:
        raise BadInput(f"checkpoints every {every} steps: at least 1")
    recipe = recipe or Recipe()
    task = TASKS[name]()
    examples, validation, _ = task.splits()
    return train(
        Shape(task.vocabulary), examples, validation[:WATCHED], recipe, folder,
        save_at=range(0, recipe.steps + 1, every), about={"task": name} | asdict(task), progress=progress,
    )  # fmt: skip
