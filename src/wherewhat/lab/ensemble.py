"""All heads of a sweep trained at once: one batched model with one member per row of angles and seed.

Each member is one layer with one head. Its keys and queries are learnt lookup tables in the rotation planes, and so is
the logit that each token gives to each answer. Members share nothing but the prompts of their seed, so each learns what
it would have learnt alone.

Axes, besides those of the whole package: S seeds, A rows of angles (E = S * A members), V tokens, P planes of a
member, C = 2P coordinates, (x, y) per plane. The angles are the last axis, over which the processor vectorises; seeds
are computed one after another, which keeps the working set small enough for its caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer, Trace
from ..errors import BadInput
from .train import Prompts, Recipe

RECIPE = Recipe(
    steps=3000, batch=256, rate=3e-2, betas=(0.9, 0.999), decay=0.0, warmup=0, schedule="cosine", clip=math.inf,
    dropout=0.0,
)  # fmt: skip
SHARPNESS = 8.0  # factor on the learnt logits of the answers, which speeds up learning
# All tables start close to 0. With a spread of 1, attention is peaked from the start, and some queries stay stuck at a
# wrong position.
SPREAD = 0.3
CHUNK = 50  # batches drawn at a time


@runtime_checkable
class TrainableTask(Protocol):
    """Contents, then a question; ids of contents come first, and `carried` is the answer that each content carries."""

    name: str

    @property
    def length(self) -> int: ...

    @property
    def contents(self) -> int: ...

    @property
    def questions(self) -> int: ...

    @property
    def answers(self) -> int: ...

    @property
    def carried(self) -> Int[Tensor, " contents"]: ...

    def sample(self, count: int, seed: int = 0) -> Prompts: ...


class Ensemble:
    """Heads that learn one task, each with its own angles and seed.

    >>> from wherewhat.tasks import Index
    >>> heads = Ensemble(Index(), angles=torch.tensor([[1.0], [0.1], [0.01]]), seeds=range(5))
    >>> heads
    Ensemble(index, 3 rows of 1 angle x 5 seeds)
    >>> heads.accuracy(Index().sample(512)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        task: TrainableTask,
        angles: Float[Tensor, "A P"],
        seeds: Sequence[int],
        *,
        spread: float = SPREAD,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if not angles.numel() or not len(seeds):
            raise BadInput("an ensemble needs at least one angle and one seed")
        self.task, self.angles, self.seeds = task, angles.double(), tuple(seeds)
        rows, planes = angles.shape
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]

        def start(*shape: int) -> Float[Tensor, "S _ _ A"]:
            """The initial values of a member depend on its seed only."""
            drawn = [torch.randn(shape, generator=draw, dtype=torch.float64) for draw in draws]
            spreads = (spread * torch.stack(drawn)).to(device, dtype)
            return spreads[..., None].repeat(1, 1, 1, rows).requires_grad_()

        tokens = task.contents + task.questions
        self.keys, self.queries = start(tokens, 2 * planes), start(task.questions, 2 * planes)
        self.values = start(tokens, task.answers)
        # Only relative rotation matters: instead of every key, the query is rotated, by its distance to the key.
        distances = torch.arange(task.length, -1, -1, dtype=torch.float64)
        phases = distances[:, None, None] * self.angles.T
        self.cos, self.sin = phases.cos().to(device, dtype), phases.sin().to(device, dtype)  # T P A

    def __repr__(self) -> str:
        rows, planes = self.angles.shape
        each = "1 angle" if planes == 1 else f"{planes} angles"
        return f"Ensemble({self.task.name}, {rows} rows of {each} x {len(self.seeds)} seeds)"

    @property
    def tables(self) -> list[Float[Tensor, "S _ _ A"]]:
        """All learnt parameters."""
        return [self.keys, self.queries, self.values]

    def attention(self, tokens: Int[Tensor, "S B T"]) -> Float[Tensor, "S B T A"]:
        """The attention of every member on each token of the prompts of its seed, the question itself included."""
        return torch.stack([self._attention(*of) for of in zip(tokens, self.keys, self.queries, strict=True)])

    def _attention(
        self, tokens: Int[Tensor, "B T"], keys: Float[Tensor, "V C A"], queries: Float[Tensor, "Q C A"]
    ) -> Float[Tensor, "B T A"]:
        x, y = queries[:, None, 0::2], queries[:, None, 1::2]  # Q 1 P A
        rotated = torch.stack([x * self.cos - y * self.sin, x * self.sin + y * self.cos], 3).flatten(1)  # Q TCA
        products = F.embedding(tokens, keys.flatten(1)).flatten(1) * F.embedding(
            tokens[:, -1] - self.task.contents, rotated
        )
        return products.unflatten(1, (tokens.shape[1], *keys.shape[1:])).sum(2).softmax(1)

    def __call__(self, tokens: Int[Tensor, "S B T"]) -> Float[Tensor, "S B answers A"]:
        """The logits of the answers: the mean, weighted by attention, of the logits that each token gives."""

        def answer(tokens: Int[Tensor, "B T"], values: Float[Tensor, "V answers A"], *table: Tensor) -> Tensor:
            given = F.embedding(tokens, values.flatten(1)).unflatten(2, values.shape[1:])
            return (given * self._attention(tokens, *table)[:, :, None]).sum(1)

        tables = zip(tokens, self.values, self.keys, self.queries, strict=True)
        return SHARPNESS * torch.stack([answer(*of) for of in tables])

    @torch.no_grad()
    def right(self, prompts: Prompts, batch: int = 256) -> Float[Tensor, "S B A"]:
        """1 where a member answers a prompt correctly; all members get the same prompts."""
        given = torch.cat([
            self(tokens.expand(len(self.seeds), -1, -1)).argmax(2)
            for tokens in prompts.tokens.to(self.keys.device).split(batch)
        ], 1)  # fmt: skip
        return (given == prompts.answers.to(given.device)[:, None]).float()

    def accuracy(self, prompts: Prompts) -> Float[Tensor, "S A"]:
        return self.right(prompts).mean(1)

    @torch.no_grad()
    def trace(self, tokens: Int[Tensor, "B T"]) -> Trace:
        """All members as one captured model: one layer per row of angles, one head per seed."""
        places = torch.arange(tokens.shape[1])
        keys = self.keys[:, tokens].movedim(0, 1).float()  # B S T C A
        queries = self.queries[:, tokens[:, -1:] - self.task.contents].movedim(0, 1).float()
        layers = []
        for row, angles in enumerate(self.angles.float()):
            rotation = Rotation.interleaved(angles, head_dim=keys.shape[3])
            rotated = rotation.rotate(queries[..., row], places[-1:]), rotation.rotate(keys[..., row], places)
            layers.append(AttentionLayer(row, *rotated, rotation, scaling=1.0))
        last = tokens.shape[1] - 1
        return Trace(tuple(layers), positions=(last,), query=last)


def train_ensemble(
    ensemble: Ensemble, recipe: Recipe = RECIPE, watch: Callable[[int], None] = lambda step: None
) -> Ensemble:
    """Train all members by the recipe; `watch` is called before the first step and after each one.

    >>> heads = train_ensemble(Ensemble(Index(), angles, seeds=range(5)))           # doctest: +SKIP
    """
    optimizer = torch.optim.Adam(ensemble.tables, lr=recipe.rate, betas=recipe.betas, fused=True)
    watch(0)
    for step, (tokens, answers) in zip(range(recipe.steps), _stream(ensemble, recipe.batch), strict=False):
        optimizer.param_groups[0]["lr"] = recipe.rate_at(step)
        logits = ensemble(tokens)
        chosen = logits.log_softmax(2).gather(2, answers[..., None, None].expand(-1, -1, 1, logits.shape[3]))
        optimizer.zero_grad()
        (-chosen.sum() / recipe.batch).backward()  # the sum of the losses of the members, which do not interact
        optimizer.step()
        watch(step + 1)
    if not all(table.isfinite().all() for table in ensemble.tables):
        raise BadInput(f"training diverged at rate {recipe.rate:g}; try a lower one")
    return ensemble


def _stream(ensemble: Ensemble, batch: int) -> Iterator[tuple[Int[Tensor, "S B T"], Int[Tensor, "S B"]]]:
    """An endless stream of batches, different for each seed; members of one seed see the same prompts."""
    for chunk in count():
        draws = [int(np.random.SeedSequence([seed, chunk]).generate_state(1)[0]) for seed in ensemble.seeds]
        drawn = [ensemble.task.sample(CHUNK * batch, draw) for draw in draws]
        tokens, answers = (torch.stack([getattr(one, name) for one in drawn]) for name in ("tokens", "answers"))
        parts = (part.unflatten(1, (CHUNK, batch)).to(ensemble.keys.device).unbind(1) for part in (tokens, answers))
        yield from zip(*parts, strict=True)
