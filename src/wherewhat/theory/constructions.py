"""The provable heads: each solves its task with hand-set weights and a temperature that follows from its gap.

Papers: P1 is "Decoupling Positional and Symbolic Attention", P2 "Positional versus Symbolic Attention Heads".
Positions count from 0 here; the question, or the query, is the last token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..core.discrepancy import index_worst, retrieval_worst, temperature
from ..lab import Transformer
from ..tasks import Index, Induction, Letter, LookupTask, Number, Retrieval
from .head import Head

SolvableTask = LookupTask | Number | Letter
PROMISED = 0.75  # share of the attention on the right key; more than one half decides the answer


@dataclass(frozen=True)
class Construction:
    """A head, the task it solves, and what theory predicts for it.

    `formula` gives the logits of the last token in closed form, for beta = 1; `gap` is the difference between the right
    key's logit and the largest other one.

    >>> made = h_pos(Index(length=8))
    >>> prompts = made.task.sample(64)
    >>> (made.transformer(prompts.tokens)[:, -1].argmax(-1) == prompts.answers).all()
    tensor(True)
    """

    task: SolvableTask
    head: Head
    formula: Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T"]]
    gap: float

    @property
    def beta(self) -> float:
        """Lemma F.1: the inverse temperature that puts the promised share of the attention on the right key."""
        return temperature(self.gap, self.tokens, PROMISED)

    @property
    def tokens(self) -> int:
        """The input length that it is made for: the number of tokens, and of keys that the last token sees."""
        return self.task.length + 1 if isinstance(self.task, LookupTask) else self.task.tokens

    @property
    def passes(self) -> int:
        """How often it is applied, each time to its own output for every token: once per hop."""
        return 1 if isinstance(self.task, LookupTask) else self.task.most_hops

    @cached_property
    def transformer(self) -> Transformer:
        return self.head.transformer(self.beta)


def h_pos(task: Index, angle: float | None = None) -> Construction:
    """P1, Theorem 3: all tokens share one key; the query of "position p" points at p. Needs n * angle < 2 pi.

    The question stands at n, which rotates its query by n * angle; p is n - p steps back.
    """
    angle = math.pi / task.length if angle is None else angle
    tokens = torch.arange(task.vocabulary)
    steps_back = (task.length - (tokens - task.contents)).double()
    head = Head((angle,), turned(-angle * steps_back), turned(0 * tokens), projection(task))

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        asked = tokens[:, -1:] - task.contents
        return torch.cos(angle * (asked - torch.arange(tokens.shape[1])).double())

    nearest = min(
        angle, 2 * math.pi - task.length * angle
    )  # angle on the circle to the nearest token that is not the target
    return Construction(task, head, formula, 1 - math.cos(nearest))


def h_sym(task: Retrieval) -> Construction:
    """P1, Theorem 5: no positions; the query of a symbol matches the keys of that symbol."""
    keys, queries = symbol_match(task)
    head = Head((), queries, keys, projection(task))
    return Construction(task, head, lambda tokens: matches(task, tokens), gap=1.0)


def two_angles(task: Induction, angle: float | None = None) -> Construction:
    """P1, Theorem 6: a non-rotary match, and a rotary plane that prefers recent tokens. Needs n * angle <= pi."""
    angle = math.pi / task.length if angle is None else angle
    recent = torch.cos(angle * torch.arange(1, task.length + 1, dtype=torch.float64))
    gap = (recent[:-1] - recent[1:]).min().item()
    match = 2 + gap  # outweighs any difference in recency
    keys, queries = symbol_match(task)
    tokens = torch.arange(task.vocabulary)
    ahead = turned(0 * tokens)
    offered = ahead * (tokens < task.contents)[:, None]  # the key of the question is 0
    head = Head((angle,), torch.cat([ahead, match * queries], 1), torch.cat([offered, keys], 1), projection(task))

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        back = distances(tokens)
        return (match * matches(task, tokens) + torch.cos(angle * back)) * (back > 0)

    return Construction(task, head, formula, gap)


def forced_angle(task: Retrieval, angle: float | None = None) -> Construction:
    """P1, Theorem 7: H_SYM with rotation forced on it, one plane per symbol, centred on the middle position.

    A match r steps back gets the logit cos(r * angle - phase). Needs (n - 1) * angle < pi.
    """
    angle = math.pi / 2 / task.length if angle is None else angle
    phase = angle * (task.length + 1) / 2
    keys, queries = symbol_match(task)
    ahead, behind = turned(torch.tensor([0, -phase]))
    keys, queries = (keys[..., None] * ahead).flatten(1), (queries[..., None] * behind).flatten(1)
    head = Head((angle,) * task.symbols, queries, keys, projection(task))

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        back = distances(tokens)
        return matches(task, tokens) * torch.cos(angle * back - phase)

    return Construction(task, head, formula, math.cos(angle * (task.length - 1) / 2))


def t_index(task: Number, angle: float = 1.0) -> Construction:
    """P2, Theorem 3.1: an integer s copies the token s steps back if that is a letter; all other tokens stay the same.

    The nearest token is unique if angle / (2 pi) is irrational. Applied once per hop, it solves the number task.
    """
    tokens = torch.arange(task.vocabulary)
    steps = (tokens * (tokens <= task.longest)).double()
    head = Head((angle,), turned(-angle * steps), turned(0 * tokens), 2 * projection(task), residual=True)

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return torch.cos(angle * (distances(tokens) - steps[tokens[:, -1:]]))

    return Construction(task, head, formula, index_worst(torch.tensor([task.tokens]), angle).item())


def t_retrieval(task: Letter, angle: float | None = None) -> Construction:
    """P2, Theorem 3.1: xy copies the token that starts with y. Needs 2 * n * angle < omega = 2 pi / letters.

    Letters are directions in one plane, omega apart. Applied once per hop, it solves the letter task.
    """
    omega = 2 * math.pi / task.letters
    angle = omega / 4 / task.tokens if angle is None else angle
    left, right = (letters.double() for letters in letters_of(task))
    head = Head((angle,), turned(-omega * right), turned(-omega * left), torch.eye(task.vocabulary))

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        back = distances(tokens)
        return torch.cos(omega * (left[tokens] - right[tokens[:, -1:]]) + angle * back)

    return Construction(task, head, formula, retrieval_worst(torch.tensor(task.tokens), angle, task.letters).item())


def letters_of(task: Letter) -> tuple[Int[Tensor, " V"], Int[Tensor, " V"]]:
    """The first letter of every token, and the letter it asks for: its second letter, or else its first."""
    left = torch.tensor([0, *(ascii_uppercase.index(name[0]) for name in task.symbols[1:])])
    right = torch.tensor([0, *(ascii_uppercase.index(name[name[1].isalpha()]) for name in task.symbols[1:])])
    return left, right


def distances(tokens: Int[Tensor, "B T"]) -> Float[Tensor, " T"]:
    """Distance of each token from the last one."""
    return torch.arange(tokens.shape[1] - 1, -1, -1).double()


def turned(phases: Shaped[Tensor, "*any"]) -> Float[Tensor, "*any 2"]:
    """Unit vectors of a plane at these angles, counter-clockwise from the first axis."""
    phases = phases.double()
    return torch.stack([phases.cos(), phases.sin()], -1)


def projection(task: SolvableTask) -> Float[Tensor, "V A"]:
    """F: a token that carries an answer (a symbol, a letter, the attribute of a pair) maps to it, all others to 0."""
    if isinstance(task, LookupTask):
        first, carried, answers = 0, task.carried, task.answers
    elif isinstance(task, Number):
        first, carried, answers = task.longest + 1, torch.arange(task.longest + 1, task.vocabulary), task.vocabulary
    else:
        first, carried, answers = 1, torch.arange(task.letters * task.digits) % task.digits, task.digits
    values = torch.zeros(task.vocabulary, answers)
    values[torch.arange(len(carried)) + first, carried] = 1
    return values


def symbol_match(task: Retrieval) -> tuple[Float[Tensor, "V S"], Float[Tensor, "V S"]]:
    """One-hot keys for the symbols of contents, and one-hot queries for those of questions."""
    one_hot = torch.eye(task.symbols, dtype=torch.float64)
    keys = one_hot.repeat_interleave(task.attributes, 0)
    return torch.cat([keys, 0 * one_hot]), torch.cat([0 * keys, one_hot])


def matches(task: Retrieval, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """1 where a content has the requested symbol."""
    symbols = tokens // task.attributes  # questions have larger ids
    found = symbols == tokens[:, -1:] - task.contents
    return (found & (tokens < task.contents)).double()
