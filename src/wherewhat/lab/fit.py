"""Training a classifier: what it learns follows from the task, the recipe and its seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .classifier import PAD, Classifier
from .ensemble import CHUNK, Prompts
from .train import Dropout, Recipe

# Sequences that are worked through at a time, those of like length together: less padding, and what they need stays
# in the processor's cache.
PIECE = 32
TRAINING = 0.7  # of a data set; the rest is for testing


@runtime_checkable
class LabelTask(Protocol):
    """Sequences of so many tokens at most, one of so many classes each; `samples` of them, or without end."""

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
    """What one step of training was like, taken before it changed the weights.

    With fresh sequences the accuracy is that on sequences never seen. `heads` is the squared norm of the gradient of
    the weights that make each head's queries and keys, `norm` the norm of the whole gradient.
    """

    loss: Float[Tensor, ""]
    accuracy: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    heads: Float[Tensor, "L H"]


def fit(
    model: Classifier, task: LabelTask, recipe: Recipe, watch: Callable[[int, Step], None] = lambda step, told: None
) -> Classifier:
    """Train a model by the recipe; `watch` hears of every step after it was taken.

    >>> model = fit(Classifier(design), Distance.small(), Recipe(steps=1500, batch=128))        # doctest: +SKIP
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.decay, fused=True
    )
    for step, (tokens, answers) in zip(range(recipe.steps), batches(task, recipe), strict=False):
        optimizer.param_groups[0]["lr"] = recipe.rate_at(step)
        optimizer.zero_grad()
        watch(step, learn(model, tokens.to(model.device), answers.to(model.device), recipe, step, optimizer))
    return model


def learn(
    model: Classifier,
    tokens: Int[Tensor, "B T"],
    answers: Int[Tensor, " B"],
    recipe: Recipe,
    step: int,
    optimizer: torch.optim.Optimizer,
) -> Step:
    """One step on the mean loss of a batch, whose gradient is the sum of those of its pieces."""
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
    tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"], whole: bool = False, size: int = PIECE
) -> Iterator[tuple[Int[Tensor, "P S"], Int[Tensor, " P"]]]:
    """Sequences of like length together, cut to the longest of them unless all are to stay `whole`."""
    lengths = (tokens != PAD).sum(1)
    order = lengths.argsort(stable=True)
    for rows in order.split(size):
        longest = tokens.shape[1] if whole else int(lengths[rows[-1]])
        yield tokens[rows, :longest], answers[rows]


def batches(task: LabelTask, recipe: Recipe) -> Iterator[tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]]:
    """Batches without end: fresh ones, or those of the training part of a data set, epoch after epoch."""
    for number in count():
        seed = int(np.random.SeedSequence([recipe.seed, number]).generate_state(1)[0])
        if task.samples is None:
            drawn = task.sample(CHUNK * recipe.batch, seed)
            tokens, answers = drawn.tokens, drawn.answers
        else:
            drawn, train = task.sample(task.samples, recipe.seed), round(TRAINING * task.samples)
            order = torch.randperm(train, generator=torch.Generator().manual_seed(seed))
            tokens, answers = drawn.tokens[order], drawn.answers[order]
        full = len(tokens) // recipe.batch * recipe.batch
        yield from zip(tokens[:full].split(recipe.batch), answers[:full].split(recipe.batch), strict=True)


def held_out(task: LabelTask, recipe: Recipe, fresh: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """Sequences that were not trained on: the rest of the data set, or so many fresh ones, the same for all seeds."""
    if task.samples is None:
        drawn = task.sample(fresh, seed=2**40)
        return drawn.tokens, drawn.answers
    drawn, train = task.sample(task.samples, recipe.seed), round(TRAINING * task.samples)
    return drawn.tokens[train:], drawn.answers[train:]


def _head_gradients(model: Classifier, layer: int) -> Float[Tensor, " H"]:
    gradients = model.block(layer).attention.head_gradients()
    return torch.stack([gradient.square().sum((1, 2)) for gradient in gradients]).sum(0)
