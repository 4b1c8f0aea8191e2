"""Training a classifier: the result depends on the task, the recipe and its seed only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import BadInput
from .classifier import PAD, Classifier
from .ensemble import CHUNK
from .train import Dropout, Prompts, Recipe

# Sequences in one forward pass, grouped by length: this needs less padding, and the tensors fit in the processor's
# cache.
PIECE = 32
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


def fit(
    model: Classifier, task: LabelTask, recipe: Recipe, watch: Callable[[int, Step], None] = lambda number, step: None
) -> Classifier:
    """Train a model by the recipe; `watch` is called after every step.

    >>> model = fit(Classifier(design), Distance.small(), Recipe(steps=1500, batch=128))        # doctest: +SKIP
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, betas=recipe.betas, weight_decay=recipe.decay, fused=True
    )
    for step, (tokens, answers) in zip(range(recipe.steps), batches(task, recipe), strict=False):
        optimizer.param_groups[0]["lr"] = recipe.rate_at(step)
        optimizer.zero_grad()
        watch(step, learn(model, tokens.to(model.device), answers.to(model.device), recipe, step, optimizer))
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
    tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"], whole: bool = False, size: int = PIECE
) -> Iterator[tuple[Int[Tensor, "P S"], Int[Tensor, " P"]]]:
    """Sequences sorted by length, in pieces, each trimmed to its longest sequence unless `whole`."""
    lengths = (tokens != PAD).sum(1)
    order = lengths.argsort(stable=True)
    for rows in order.split(size):
        longest = tokens.shape[1] if whole else int(lengths[rows[-1]])
        yield tokens[rows, :longest], answers[rows]


def batches(task: LabelTask, recipe: Recipe) -> Iterator[tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]]:
    """An endless stream of batches: fresh ones, or those of the training part of a data set, epoch after epoch."""
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
    """Sequences not trained on: the rest of the data set, or this many `fresh` ones, the same for all seeds."""
    if task.samples is None:
        drawn = task.sample(fresh, seed=2**40)
        return drawn.tokens, drawn.answers
    drawn, train = task.sample(task.samples, recipe.seed), round(TRAINING * task.samples)
    return drawn.tokens[train:], drawn.answers[train:]


def _head_gradients(model: Classifier, layer: int) -> Float[Tensor, " H"]:
    gradients = model.block(layer).attention.head_gradients()
    return torch.stack([gradient.square().sum((1, 2)) for gradient in gradients]).sum(0)
