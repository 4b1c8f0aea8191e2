"""`ww.HeadCallback`: scores of all heads while transformers' Trainer trains, logged with its loss."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from ...cells.cells import check_writable
from ...core.kinds import kind
from ...core.scores import check_tau
from ...errors import BadInput
from ...files import plain
from ...prompts import Prompt
from ...results import versions
from ...tracing.unwrap import unwrap
from .measure import accuracy_table, head_table, measure_checkpoint, purity_table, views_of_prompts
from .result import Dynamics


class HeadCallback(TrainerCallback):
    """Scores every head on the same prompts during training, logs a summary through the Trainer, and keeps the series.

    Attach it to transformers' Trainer, or to one that inherits it, such as those of TRL. It measures before the first
    step, at every evaluation, every `every` steps, and after the last step. Between the first and the last, a
    measurement is skipped if all of them would then take more than `share` of the time of training. The model, its
    gradients and all random generators are left as they are.

    `series` is the result; with a `folder` it is saved there after each measurement, and `wherewhat report FOLDER`
    shows it as a film. Logged are the shares of the four kinds of heads, the median scores, and the right answers.

    >>> callback = ww.HeadCallback(ww.binding(tokenizer, pairs=8, samples=4), every=500)       # doctest: +SKIP
    >>> callback.attach(trainer)                                                       # doctest: +SKIP
    >>> trainer.train()                                                                # doctest: +SKIP
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        every: int | None = None,
        share: float = 0.02,
        tau: float = 1e-4,
        folder: str | Path | None = None,
    ) -> None:
        if not prompts:
            raise BadInput("give at least one prompt to measure on")
        if every is not None and every < 1:
            raise BadInput(f"every must be at least 1, got {every}")
        if share <= 0:
            raise BadInput(f"share is the part of the training time that measuring may take, above 0; got {share:g}")
        check_tau(tau)
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            check_writable(self.folder)
            if (self.folder / Dynamics.FILE).exists():
                raise BadInput(f"{folder}: holds a series already; choose another folder")
        self.views, self.every, self.share, self.tau = views_of_prompts(prompts), every, share, tau
        self.measured: dict[int, dict[str, Tensor]] = {}
        self.seconds: list[float] = []  # of each measurement
        self.skipped: list[int] = []  # steps
        self.trainer: Any = None
        self.started = 0.0

    def attach(self, trainer: Any) -> HeadCallback:
        """Add the callback to a Trainer, through which it logs."""
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    @property
    def series(self) -> Dynamics:
        """What was measured so far."""
        if not self.measured:
            raise BadInput("nothing is measured before training starts")
        steps, results = [*self.measured], [*self.measured.values()]
        heads = head_table(steps, results)
        about = {"prompts": len(self.views), "tau": plain(self.tau), "checkpoints": len(steps), "skipped": self.skipped}
        about |= {"versions": versions("transformers")}
        return Dynamics(heads, accuracy_table(steps, results), purity_table(heads), about)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self.trainer is None:
            raise BadInput("a HeadCallback logs through its Trainer: add it with callback.attach(trainer)")
        if self.started:
            raise BadInput("a HeadCallback keeps the series of one training: make another one for this training")
        self._measure(model, state)
        self.started = time.perf_counter()

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._measure_if_cheap(model, state)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            self._measure(model, state)
        elif self.every is not None and state.global_step % self.every == 0:
            self._measure_if_cheap(model, state)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if not args.load_best_model_at_end:  # otherwise this is the model of an earlier step
            self._measure(model, state)

    def _measure_if_cheap(self, model: Any, state: Any) -> None:
        if not self.seconds or not self.started or state.global_step in self.measured:  # no seconds: another process
            return
        during = sum(self.seconds[1:])  # the first lies before training, and tells what the next will cost
        if during + self.seconds[-1] > self.share * (time.perf_counter() - self.started - during):
            if state.global_step not in self.skipped:
                self.skipped.append(state.global_step)
            return
        self._measure(model, state)

    def _measure(self, model: Any, state: Any) -> None:
        if not state.is_world_process_zero or state.global_step in self.measured:
            return
        before = time.perf_counter()
        with same_randomness():
            found = self.measured[state.global_step] = measure_checkpoint(unwrap(model), self.views, self.tau)
            if self.folder is not None:
                self.series.save(self.folder)
            due = self.trainer.control.should_log
            self.trainer.log(summary(found))
            self.trainer.control.should_log = due  # a log clears it, and the loss of this step would not be logged
        self.seconds.append(time.perf_counter() - before)


def summary(found: dict[str, Tensor]) -> dict[str, float]:
    """The numbers that are logged: shares of kinds, medians of the scores, right answers."""
    positional, symbolic = (found[name][0].flatten() for name in ("positional", "symbolic"))
    measured = ~positional.isnan()  # a layer with fewer heads than others has no score for the rest
    positional, symbolic = positional[measured], symbolic[measured]
    kinds = Counter(kind(*pair) for pair in zip(positional.tolist(), symbolic.tolist(), strict=True))
    logged = {f"heads/{name}": kinds[name] / len(positional) for name in ("where", "what", "unfocused", "mixed")}
    logged |= {"heads/positional": float(positional.nanmedian()), "heads/symbolic": float(symbolic.nanmedian())}
    return logged | ({"heads/right_answers": float(found["accuracy"][0])} if len(found["accuracy"]) else {})


@contextmanager
def same_randomness() -> Iterator[None]:
    """Context after which every random generator is as it was before."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that Trainer's code draws from
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
