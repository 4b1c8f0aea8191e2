"""All heads of a sweep trained at once: one batched model with one member per row of angles and seed.

Each member is one layer with one head. Its keys and queries are learnt lookup tables in the rotation planes, and so is
the logit that each token gives to each answer. `TransformerEnsemble` has these from token embeddings and projections
instead, as a one-layer attention-only Transformer. Members share nothing but the prompts of their seed, so each learns
what it would have learnt alone.

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

    @property
    def name(self) -> str: ...

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

    SHARPNESS = SHARPNESS

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

        def start(*shape: int, spread: float = spread) -> Tensor:
            """The initial values of a member depend on its seed only."""
            drawn = [torch.randn(shape, generator=draw, dtype=torch.float64) for draw in draws]
            return (spread * torch.stack(drawn)).to(device, dtype)

        self._initialise(start, rows, 2 * planes)
        # Only relative rotation matters: instead of every key, the query is rotated, by its distance to the key.
        distances = torch.arange(task.length, -1, -1, dtype=torch.float64)
        phases = distances[:, None, None] * self.angles.T
        self.cos, self.sin = phases.cos().to(device, dtype), phases.sin().to(device, dtype)  # T P A

    def _initialise(self, start: Callable[..., Tensor], rows: int, coordinates: int) -> None:
        task = self.task
        tokens = task.contents + task.questions
        shapes = ((tokens, coordinates), (task.questions, coordinates), (tokens, task.answers))
        self.keys, self.queries, self.values = (
            start(*shape)[..., None].repeat(1, 1, 1, rows).requires_grad_() for shape in shapes
        )

    def __repr__(self) -> str:
        rows, planes = self.angles.shape
        each = "1 angle" if planes == 1 else f"{planes} angles"
        return f"{type(self).__name__}({self.task.name}, {rows} rows of {each} x {len(self.seeds)} seeds)"

    @property
    def parameters(self) -> list[Tensor]:
        """Everything that is learnt."""
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
        return self.SHARPNESS * torch.stack([answer(*of) for of in tables])

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


class TransformerEnsemble(Ensemble):
    """One-layer attention-only Transformers with token embeddings, a residual stream and an unembedding.

    One head: queries and keys are linear in the embedding and have one plane per angle; values have the width of the
    embedding, through which the attribute of a pair can pass. There is no MLP, no norm and no bias.

    >>> from wherewhat.tasks import Index
    >>> TransformerEnsemble(Index(), torch.tensor([[1.0], [0.1]]), seeds=range(3), width=16)
    TransformerEnsemble(index, 2 rows of 1 angle x 3 seeds)
    """

    SHARPNESS = 1.0

    def __init__(
        self,
        task: TrainableTask,
        angles: Float[Tensor, "A P"],
        seeds: Sequence[int],
        *,
        width: int = 64,
        spread: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.width = width
        super().__init__(task, angles, seeds, spread=spread, dtype=dtype, device=device)

    def _initialise(self, start: Callable[..., Tensor], rows: int, coordinates: int) -> None:
        width, task = self.width, self.task
        shapes = ((width, coordinates), (width, coordinates), (width, width), (width, task.answers))
        drawn = [start(task.contents + task.questions, width)]
        drawn += [start(*shape) * width**-0.5 for shape in shapes]
        # (S, A, ...): matrix products are batched over members.
        self._parameters = [one[:, None].repeat(1, rows, 1, 1).requires_grad_() for one in drawn]

    @property
    def parameters(self) -> list[Tensor]:
        return self._parameters

    @property
    def keys(self) -> Float[Tensor, "S V C A"]:  # pyright: ignore[reportIncompatibleVariableOverride] - computed here
        embedding, _, to_key, *_ = self._parameters
        return (embedding @ to_key).permute(0, 2, 3, 1)

    @property
    def queries(self) -> Float[Tensor, "S Q C A"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        embedding, to_query, *_ = self._parameters
        return (embedding[:, :, self.task.contents :] @ to_query).permute(0, 2, 3, 1)

    @property
    def values(self) -> Float[Tensor, "S V answers A"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        embedding, _, _, to_value, unembedding = self._parameters
        return (embedding @ (to_value @ unembedding)).permute(0, 2, 3, 1)

    def __call__(self, tokens: Int[Tensor, "S B T"]) -> Float[Tensor, "S B answers A"]:
        """The logits of the answers: of the attended values, and of the question in the residual stream."""
        embedding, *_, unembedding = self._parameters
        own = (embedding[:, :, self.task.contents :] @ unembedding).permute(0, 2, 3, 1)  # S Q answers A
        asked = tokens[:, :, -1] - self.task.contents
        return super().__call__(tokens) + torch.stack([of[those] for of, those in zip(own, asked, strict=True)])


def train_ensemble(
    ensemble: Ensemble, recipe: Recipe = RECIPE, watch: Callable[[int], None] = lambda step: None
) -> Ensemble:
    """Train all members by the recipe; `watch` is called before the first step and after each one.

    >>> heads = train_ensemble(Ensemble(Index(), angles, seeds=range(5)))           # doctest: +SKIP
    """
    optimizer = torch.optim.Adam(ensemble.parameters, lr=recipe.rate, betas=recipe.betas, fused=True)
    watch(0)
    for step, (tokens, answers) in zip(range(recipe.steps), _stream(ensemble, recipe.batch), strict=False):
        optimizer.param_groups[0]["lr"] = recipe.rate_at(step)
        logits = ensemble(tokens)
        chosen = logits.log_softmax(2).gather(2, answers[..., None, None].expand(-1, -1, 1, logits.shape[3]))
        optimizer.zero_grad()
        (-chosen.sum() / recipe.batch).backward()  # the sum of the losses of the members, which do not interact
        optimizer.step()
        watch(step + 1)
    if not all(table.isfinite().all() for table in ensemble.parameters):
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
