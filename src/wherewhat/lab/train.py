"""The trainer. Everything random in step s depends on the seed and s only, so an interrupted run resumes exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from ..core.memory import keep_freed_memory
from ..errors import BadInput, Damaged
from ..files import read_tensors, sealed_tensors, set_aside, write_atomically, write_sealed_table
from ..remote import clear_unfinished
from ..results import Progress, Say, check_seed, ignore_progress, ignore_sentence
from .checkpoint import checkpoint_path, read_run, run_digest, steps_of, weights_about
from .dropout import Dropout
from .fused import bfloat16_product, float32_product
from .half import float16_products
from .halves import Halves
from .transformer import Shape, Transformer

# Far beyond what a machine can do; larger numbers are mistakes, refused before any work.
MOST_STEPS, MOST_BATCH, MOST_THREADS = 10**8, 2**16, 1024
LARGEST_BATCH = 2**13  # sequences per step of the Transformer: about 20 GB of memory


@runtime_checkable
class Prompts(Protocol):
    """Prompts of one length and the class of each answer."""

    @property
    def tokens(self) -> Int[Tensor, "B T"]: ...

    @property
    def answers(self) -> Int[Tensor, " B"]: ...


@runtime_checkable
class Examples(Prompts, Protocol):
    """Also the number of hops that lead to the answer, which is a token."""

    @property
    def hops(self) -> Int[Tensor, " B"]: ...


LATER_DEFAULTS = (("data_seed", None), ("half", False), ("bfloat16", False))


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults are those of the multi-hop tasks.

    >>> Recipe(steps=200, warmup=20).rate_at(10)
    5e-05
    """

    steps: int = 6750
    batch: int = 64
    rate: float = 1e-4
    betas: tuple[float, float] = (0.95, 0.999)
    decay: float = 1e-4
    warmup: int = 750
    schedule: str = "linear"
    clip: float = 1.0
    dropout: float = 0.1
    embedding_dropout: float | None = None  # None: same as `dropout`
    seed: int = 0
    data_seed: int | None = None  # of the order of the examples; None: same as `seed`
    half: bool = False  # mixed precision: matrix products in float16, emulated
    bfloat16: bool = False  # matrix products in bfloat16, which is faster where the processor has it

    def __post_init__(self) -> None:
        if self.schedule not in ("linear", "cosine"):
            raise BadInput(f"schedule is linear or cosine, got {self.schedule}")
        if not 0 < self.rate < math.inf or self.steps < 1 or self.batch < 1:
            raise BadInput(f"rate, steps and batch must be positive, got {self.rate}, {self.steps}, {self.batch}")
        if self.half and self.bfloat16:
            raise BadInput("half and bfloat16 exclude each other")
        if self.warmup < 0:
            raise BadInput(f"warmup must not be negative, got {self.warmup}")
        check_seed(self.seed)
        check_seed(self.data_seed or 0)
        if self.steps > MOST_STEPS or self.batch > MOST_BATCH:
            raise BadInput(f"at most {MOST_STEPS:,} steps of {MOST_BATCH:,}, got {self.steps} and {self.batch}")
        for dropout in (self.dropout, self.embedding_dropout or 0.0):
            if not 0 <= dropout < 1:
                raise BadInput(f"dropout must be at least 0 and below 1, got {dropout}")

    @property
    def order_seed(self) -> int:
        return self.seed if self.data_seed is None else self.data_seed

    def settings(self) -> dict[str, Any]:
        """All fields; those that older runs do not have are left out where they change nothing."""
        return {name: value for name, value in asdict(self).items() if (name, value) not in LATER_DEFAULTS}

    def rate_at(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then linear or cosine decay to 0."""
        if step < self.warmup:
            return self.rate * step / self.warmup
        left = (self.steps - step) / max(1, self.steps - self.warmup)
        return self.rate * (left if self.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)


def train_model(
    shape: Shape,
    examples: Examples,
    validation: Examples,
    recipe: Recipe,
    folder: str | Path,
    *,
    save_at: Sequence[int] = (),
    about: dict[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> Transformer:
    """Train a model, or resume an interrupted run in this folder: the final weights are the same.

    The folder gets `run.json`, `checkpoints/step-*.safetensors` at the steps `save_at` and at the end, `loss.parquet`
    with loss and learning rate of every step, and `accuracy.parquet` on the validation examples at every checkpoint.

    >>> train_model(Shape(137), sequences, validation, Recipe(steps=100), "runs/number")     # doctest: +SKIP
    """
    if recipe.batch > min(len(examples.tokens), LARGEST_BATCH):
        raise BadInput(f"batch must be at most {min(len(examples.tokens), LARGEST_BATCH)}, got {recipe.batch}")
    run = Trainer(Transformer(shape, recipe.seed), recipe, Path(folder))
    run.open(asdict(shape), about or {})
    if run.step:
        say(f"{folder}: resuming at step {run.step} of {recipe.steps}")
    steps = {*save_at, recipe.steps}
    steps_per_epoch = len(examples.tokens) // recipe.batch
    while True:
        if run.step in steps:
            run.keep(validation)
        if run.step == recipe.steps:
            return run.model
        epoch, at = divmod(run.step, steps_per_epoch)
        rows = _order(len(examples.tokens), recipe.order_seed, epoch)[at * recipe.batch : (at + 1) * recipe.batch]
        loss = run.learn(examples.tokens[rows], examples.answers[rows])
        if not math.isfinite(loss):
            raise BadInput(f"{folder}: training diverged, the loss of step {run.step} is {loss}; try a lower rate")
        progress(f"loss {loss:.3f}, accuracy {run.accuracy:.1%}", run.step, recipe.steps)


class Trainer:
    """A model in training: one step of its recipe, and its folder."""

    def __init__(self, model: Transformer, recipe: Recipe, folder: Path) -> None:
        keep_freed_memory()
        self.model, self.recipe, self.folder, self.halves = model, recipe, folder, Halves(model)
        self.step = 0
        self.losses = torch.full((recipe.steps,), math.nan)
        self.validated: dict[int, list[float]] = {}
        self.parameters = dict(model.named_parameters())
        matrices = [value for value in self.parameters.values() if value.dim() > 1]
        others = [value for value in self.parameters.values() if value.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.rate, betas=recipe.betas, fused=True,
        )  # fmt: skip

    @property
    def accuracy(self) -> float:
        """On the validation examples, at the last checkpoint."""
        return float(np.mean(self.validated[max(self.validated)])) if self.validated else math.nan

    def learn(self, tokens: Tensor, answers: Tensor) -> float:
        """One step of the recipe; the loss is that of the token after the last one only."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate_at(self.step)
        product = None if recipe.half else bfloat16_product if recipe.bfloat16 else float32_product

        def loss_of(model: Transformer, rows: slice) -> Tensor:
            drop, drop_embedding = (
                None if rate is None else Dropout(rate, recipe.seed, self.step, rows, len(tokens))
                for rate in (recipe.dropout, recipe.embedding_dropout)
            )
            assert drop is not None
            with float16_products() if recipe.half else nullcontext():
                logits = model(tokens[rows], last=True, drop=drop, drop_embedding=drop_embedding, product=product)
            return F.cross_entropy(logits[:, 0], answers[rows], reduction="sum") / len(tokens)

        self.optimizer.zero_grad()
        loss = self.halves.gradients(loss_of, len(tokens))
        with processor_threads(1):  # many small tensors, for which a second thread does not pay
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        if norm.isfinite():  # a step whose scaled gradients overflow float16 is skipped, as a loss scaler does
            self.optimizer.step()
        self.losses[self.step] = loss
        self.step += 1
        return loss

    def keep(self, validation: Examples) -> None:
        """Save a checkpoint, then the state from which the run can resume."""
        if not (self.folder / "run.json").exists():
            raise BadInput(f"{self.folder}: was removed during training")
        self.validated[self.step] = accuracy_by_hops(self.model, validation)
        weights = {name: value.detach() for name, value in self.parameters.items()}
        about = weights_about(self.about, self.step)
        write_atomically(checkpoint_path(self.folder, self.step), sealed_tensors(weights, about))
        rows = [
            {"step": step, "hops": hops, "accuracy": accuracy}
            for step, by_hops in self.validated.items()
            for hops, accuracy in enumerate(by_hops, 1)
        ]
        steps = range(self.step)
        rates = [self.recipe.rate_at(step) for step in steps]
        losses = {"step": steps, "loss": self.losses[: self.step].numpy(), "rate": rates}
        for name, table in {"accuracy": pd.DataFrame(rows), "loss": pd.DataFrame(losses)}.items():
            write_sealed_table(self.folder / f"{name}.parquet", table)
        moments = {
            f"{moment}.{name}": self.optimizer.state[value][moment]
            for name, value in self.parameters.items()
            for moment in (("exp_avg", "exp_avg_sq", "step") if self.step else ())
        }
        state = (
            weights
            | moments
            | {"step": torch.tensor(self.step), "losses": self.losses}
            | {f"validated.{step}": torch.tensor(by_hops) for step, by_hops in self.validated.items()}
        )
        write_atomically(self.folder / "state.safetensors", sealed_tensors(state, run_digest(self.about)))

    def open(self, shape: dict[str, Any], about: dict[str, Any]) -> None:
        """Start in an empty folder, or resume the same run. Damaged files are set aside; the run then starts again."""
        described = {"shape": shape, "recipe": self.recipe.settings()} | about
        self.about = json.loads(json.dumps(described))  # tuples become lists, as on disk
        path = self.folder / "run.json"
        try:
            if path.exists() and read_run(self.folder) != self.about:
                raise BadInput(f"{self.folder}: holds a run with other settings; choose another folder")
        except Damaged as error:
            set_aside(path, error)
        clear_unfinished(self.folder)
        clear_unfinished(self.folder / "checkpoints")
        sealed = self.about | {"sha256": run_digest(self.about)}
        write_atomically(path, json.dumps(sealed, indent=1) + "\n")
        state = self._state()
        if state is None:
            return
        self.step, self.losses = int(state["step"]), state["losses"]
        validated = {name: value.tolist() for name, value in state.items() if name.startswith("validated.")}
        self.validated = dict(sorted((int(name.partition(".")[2]), by_hops) for name, by_hops in validated.items()))
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(state[name])
                if self.step:
                    self.optimizer.state[value] = {
                        moment: state[f"{moment}.{name}"] for moment in ("step", "exp_avg", "exp_avg_sq")
                    }

    def _state(self) -> dict[str, Tensor] | None:
        """The state from which to resume; None if there is none, or a file of the run is damaged."""
        path = self.folder / "state.safetensors"
        if not path.exists():
            return None
        holds = True
        for step in steps_of(self.folder):
            checkpoint = checkpoint_path(self.folder, step)
            holds &= _read_or_set_aside(checkpoint, weights_about(self.about, step)) is not None
        state = _read_or_set_aside(path, run_digest(self.about))
        return state if holds else None


def _read_or_set_aside(path: Path, about: str) -> dict[str, Tensor] | None:
    try:
        return read_tensors(path, about, unsealed=True)
    except Damaged as error:
        set_aside(path, error)
        return None


@torch.no_grad()
def accuracy_by_hops(model: Transformer, examples: Examples, batch: int = 400) -> list[float]:
    """Accuracy for 1, 2, ... hops."""
    right = torch.cat([
        model(tokens, last=True)[:, 0].argmax(-1) == answers
        for tokens, answers in zip(examples.tokens.split(batch), examples.answers.split(batch), strict=True)
    ])  # fmt: skip
    return [float(right[examples.hops == hops].float().mean()) for hops in range(1, int(examples.hops.max()) + 1)]


@contextmanager
def processor_threads(number: int | None) -> Iterator[None]:
    """Within this context torch uses this many processor threads; None changes nothing."""
    if number is not None and not 1 <= number <= MOST_THREADS:
        raise BadInput(f"threads must be 1 to {MOST_THREADS}, got {number}")
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _order(examples: int, seed: int, epoch: int) -> Int[Tensor, " N"]:
    """The order of the examples in an epoch."""
    return torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(examples))
