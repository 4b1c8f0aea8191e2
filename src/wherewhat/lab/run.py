"""A training run as a result: its settings, accuracy, loss and checkpoints, in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import BadInput
from ..files import read_table, write_atomically
from ..results import Result
from .checkpoint import is_run, load_checkpoint, read_run, steps_of
from .transformer import Transformer


@dataclass(frozen=True)
class Run(Result, file="run.json", kind="training run"):
    """A training run. `accuracy` has one row per checkpoint and number of hops, `loss` one row per step.

    `about` holds task, shape and recipe. The checkpoints stay in `folder`, which `run.json` marks as a run: it has a
    format of its own, and was written before training began.

    >>> run = Run.load("runs/number-0")                                # doctest: +SKIP
    >>> run.steps[-1], run.model().shape.layers                        # doctest: +SKIP
    (6750, 12)
    """

    accuracy: pd.DataFrame
    loss: pd.DataFrame
    about: dict[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.about.get('task', 'run')}, seed {self.about['recipe']['seed']}"

    @property
    def steps(self) -> list[int]:
        """The steps at which there are checkpoints."""
        return steps_of(self.folder)

    def model(self, step: int | None = None) -> Transformer:
        """The model at a step, by default the last one."""
        return load_checkpoint(self.folder, step)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run, finished or interrupted."""
        about = read_run(folder)
        paths = {name: Path(folder) / file for name, file in cls._paths().items()}
        if missing := [path for path in paths.values() if not path.is_file()]:
            raise BadInput(f"{missing[0]}: missing; {cls.REMEDY}")
        tables = {name: read_table(path) for name, path in paths.items()}
        return cls(**tables, about=about, folder=Path(folder))

    def save(self, folder: str | Path) -> None:
        """Copy the run, with its checkpoints and the state from which it can resume, into another folder."""
        target = Path(folder)
        checkpoints = sorted(self.folder.glob("checkpoints/*.safetensors"))
        files = [self.folder / name for name in ("state.safetensors", *self.files())]
        for path in (*checkpoints, *files):
            write_atomically(target / path.relative_to(self.folder), path.read_bytes())

    @classmethod
    def read_about(cls, folder: str | Path) -> dict[str, Any] | None:
        """The contents of run.json; None if there is no such file."""
        return read_run(folder) if is_run(folder) else None

    @classmethod
    def _paths(cls) -> dict[str, str]:
        return {name: f"{name}.parquet" for name in ("accuracy", "loss")}
