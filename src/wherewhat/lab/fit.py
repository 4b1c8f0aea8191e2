"""Training a classifier: the result depends on the task, the recipe and its seed only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.memory import keep_freed_memory
from ..errors import BadInput
from .classifier import PAD, Classifier
from .ensemble import CHUNK
from .train import Dropout, Prompts, Recipe

# Sequences in one forward pass, grouped by length: this needs less padding, and the tensors fit in the processor's
# cache. Long sequences form smaller pieces, of about PIECE_TOKENS tokens.
PIECE, SMALLEST_PIECE, PIECE_TOKENS = 32, 8, 960
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # the state of AdamW
TRAINING = 0.7  # share of a data set; the rest is for testing


@runtime_checkable
class LabelTask(Protocol):
    """Sequences of at most `tokens` tokens, each in one of `classes` classes; `samples` None means unlimited."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def classes(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def samples(self) -> int | None: ...

    def sample(self, count: int, seed: int = 0) -> Prompts: ...


class Step(NamedTuple):
    """Measurements of one training step, taken before the weights are updated.

    With fresh sequences, the accuracy is that on unseen sequences. `heads` is the squared norm of the gradient of the
    weights of each head's queries and keys, `norm` the norm of the whole gradient.
    """

    loss: Float[Tensor, ""]
    accuracy: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    heads: Float[Tensor, "L H"]


class Fit:
    """A classifier in training. Its `state` can be saved and restored; the remaining steps are then the same."""

    def __init__(self, model: Classifier, task: LabelTask, recipe: Recipe) -> None:
        keep_freed_memory()
        self.model, self.task, self.recipe = model, task, recipe
        self.number = 0  # steps taken
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.decay, fused=True
        )

    def steps(self) -> Iterator[Step]:
        """Take the remaining steps, one at a time."""
        numbers = range(self.number, self.recipe.steps)
        for step, (tokens, answers) in zip(numbers, batches(self.task, self.recipe, self.number), strict=False):
            self.optimizer.param_groups[0]["lr"] = self.recipe.rate_at(step)
            self.optimizer.zero_grad()
            device = self.model.device
            taken = learn(self.model, tokens.to(device), answers.to(device), self.recipe, step, self.optimizer)
            self.number = step + 1
            yield taken

    def state(self) -> dict[str, Tensor]:
        """Weights and optimizer state after the steps taken so far."""
        state = {"number": torch.tensor(self.number)}
        for name, value in self.model.named_parameters():
            state[f"weights.{name}"] = value.detach()
            state |= {f"{moment}.{name}": self.optimizer.state[value][moment] for moment in MOMENTS if self.number}
        return state

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of an earlier fit of the same model, task and recipe."""
        self.number = int(state["number"])
        for name, value in self.model.named_parameters():
            value.copy_(state[f"weights.{name}"])
            if self.number:
                moments = {moment: state[f"{moment}.{name}"].to(value.device) for moment in MOMENTS}
                self.optimizer.state[value] = moments


def fit(
    model: Classifier, task: LabelTask, recipe: Recipe, watch: Callable[[int, Step], None] = lambda number, step: None
) -> Classifier:
    """Train a model by the recipe; `watch` is called after every step.

    >>> model = fit(Classifier(design), Distance.small(), Recipe(steps=1500, batch=128))        # doctest: +SKIP
    """
    for number, step in enumerate(Fit(model, task, recipe).steps()):
        watch(number, step)
    if not all(value.isfinite().all() for value in model.parameters()):
        raise BadInput(f"training diverged at rate {recipe.rate:g}; try a lower one")
    return model


def learn(
    model: Classifier,
    tokens: Int[Tensor, "B T"],
    answers: Int[Tensor, " B"],
    recipe: Recipe,
    step: int,
    optimizer: torch.optim.Optimizer,
) -> Step:
    """One step on the mean loss of a batch; its gradient is accumulated over pieces of the batch."""
    drop = Dropout(recipe.dropout, recipe.seed, step)
    loss, right = torch.zeros(2, device=model.device).unbind()
    for some, labels in pieces(tokens, answers, whole=model.design.unmasked):
        logits = model(some, drop=drop)
        part = F.cross_entropy(logits, labels, reduction="sum") / len(tokens)
        part.backward()
        loss, right = loss + part.detach(), right + (logits.detach().argmax(-1) == labels).sum()
    norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    heads = torch.stack([_head_gradients(model, layer) for layer in range(model.design.layers)])
    optimizer.step()
    return Step(loss, right / len(tokens), norm, heads)


def pieces(
    tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"], whole: bool = False, size: int | None = None
) -> Iterator[tuple[Int[Tensor, "P S"], Int[Tensor, " P"]]]:
    """Sequences sorted by length, in pieces, each trimmed to its longest sequence unless `whole`."""
    size = size or min(PIECE, max(SMALLEST_PIECE, PIECE_TOKENS // tokens.shape[1]))
    lengths = (tokens != PAD).sum(1)
    order = lengths.argsort(stable=True)
    for rows in order.split(size):
        longest = tokens.shape[1] if whole else int(lengths[rows[-1]])
        yield tokens[rows, :longest], answers[rows]


def batches(task: LabelTask, recipe: Recipe, start: int = 0) -> Iterator[tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]]:
    """An endless stream of batches, from batch `start` on: fresh ones, or those of the training part of a data set,
    epoch after epoch."""
    train = 0 if task.samples is None else round(TRAINING * task.samples)
    data = None if task.samples is None else task.sample(task.samples, recipe.seed)
    drawn_at_once = CHUNK if data is None else train // recipe.batch
    if not drawn_at_once:
        raise BadInput(f"batch must be at most the {train} training sequences, got {recipe.batch}")
    first, skip = divmod(start, drawn_at_once)
    for number in count(first):
        seed = int(np.random.SeedSequence([recipe.seed, number]).generate_state(1)[0])
        if data is None:
            drawn = task.sample(CHUNK * recipe.batch, seed)
            tokens, answers = drawn.tokens, drawn.answers
        else:
            order = torch.randperm(train, generator=torch.Generator().manual_seed(seed))
            tokens, answers = data.tokens[order], data.answers[order]
        full = drawn_at_once * recipe.batch
        every = zip(tokens[:full].split(recipe.batch), answers[:full].split(recipe.batch), strict=True)
        yield from islice(every, skip, None)
        skip = 0


def held_out(task: LabelTask, recipe: Recipe, fresh: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """Sequences not trained on: the rest of the data set, or this many `fresh` ones, the same for all seeds."""
    if task.samples is None:
        drawn = task.sample(fresh, seed=2**40)
        return drawn.tokens, drawn.answers
    drawn, train = task.sample(task.samples, recipe.seed), round(TRAINING * task.samples)
    return drawn.tokens[train:], drawn.answers[train:]


def _head_gradients(model: Classifier, layer: int) -> Float[Tensor, " H"]:
    gradients = model.block(layer).attention.head_gradients()
    return torch.stack([gradient.square().sum((1, 2)) for gradient in gradients]).sum(0)
