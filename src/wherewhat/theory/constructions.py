"""The provable heads: each solves its task, with weights set by hand and a temperature that follows from its gap.

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

Task = LookupTask | Number | Letter
PROMISED = 0.75  # of the attention on the right key; any share above one half decides the answer


@dataclass(frozen=True)
class Construction:
    """A head, the task it solves, and what theory says of it.

    `formula` gives the logits of the last token in closed form, for beta = 1; `gap` is by how much the right key's
    logit beats all others.

    >>> made = h_pos(Index(length=8))
    >>> prompts = made.task.sample(64)
    >>> (made.transformer(prompts.tokens)[:, -1].argmax(-1) == prompts.answers).all()
    tensor(True)
    """

    task: Task
    head: Head
    formula: Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T"]]
    gap: float

    @property
    def beta(self) -> float:
        """Lemma F.1: enough for the promised share of the attention on the right key."""
        return temperature(self.gap, self.tokens, PROMISED)

    @property
    def tokens(self) -> int:
        """The length that it is made for: tokens of an input, and keys that the last of them sees."""
        return self.task.length + 1 if isinstance(self.task, LookupTask) else self.task.tokens

    @property
    def passes(self) -> int:
        """How often it is applied, each time to what it said of every token: once a hop."""
        return 1 if isinstance(self.task, LookupTask) else self.task.most_hops

    @cached_property
    def transformer(self) -> Transformer:
        return self.head.transformer(self.beta)


def h_pos(task: Index, angle: float | None = None) -> Construction:
    """P1, Theorem 3: one key for all tokens, and for "position p" a query that points at p. Needs n * angle < 2 pi.

    The question stands at n, which turns its query by n * angle; p is n - p steps back.
    """
    angle = math.pi / task.length if angle is None else angle
    tokens = torch.arange(task.vocabulary)
    steps_back = (task.length - (tokens - task.contents)).double()
    head = Head((angle,), turned(-angle * steps_back), turned(0 * tokens), projection(task))

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        asked = tokens[:, -1:] - task.contents
        return torch.cos(angle * (asked - torch.arange(tokens.shape[1])).double())

    nearest = min(angle, 2 * math.pi - task.length * angle)  # on the circle, of all tokens but the one asked for
    return Construction(task, head, formula, 1 - math.cos(nearest))


def h_sym(task: Retrieval) -> Construction:
    """P1, Theorem 5: no positions; a symbol asks for itself."""
    keys, queries = symbol_match(task)
    head = Head((), queries, keys, projection(task))
    return Construction(task, head, lambda tokens: matches(task, tokens), gap=1.0)


def two_angles(task: Induction, angle: float | None = None) -> Construction:
    """P1, Theorem 6: a match that does not turn, and a plane that prefers the recent. Needs n * angle <= pi."""
    angle = math.pi / task.length if angle is None else angle
    recent = torch.cos(angle * torch.arange(1, task.length + 1, dtype=torch.float64))
    gap = (recent[:-1] - recent[1:]).min().item()
    match = 2 + gap  # no recency outweighs it
    keys, queries = symbol_match(task)
    tokens = torch.arange(task.vocabulary)
    ahead = turned(0 * tokens)
    offered = ahead * (tokens < task.contents)[:, None]  # the question offers nothing
    head = Head((angle,), torch.cat([ahead, match * queries], 1), torch.cat([offered, keys], 1), projection(task))

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        back = distances(tokens)
        return (match * matches(task, tokens) + torch.cos(angle * back)) * (back > 0)

    return Construction(task, head, formula, gap)


def forced_angle(task: Retrieval, angle: float | None = None) -> Construction:
    """P1, Theorem 7: H_SYM that must turn, each symbol on a plane of its own and centred in mid-range.

    A match r steps back gets cos(r * angle - phase). Needs (n - 1) * angle < pi.
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
    """P2, Theorem 3.1: an integer s copies the letter s steps back, if it is one; all else stays as it is.

    One letter is nearest as long as angle / (2 pi) is irrational. Applied once a hop it solves the number task.
    """
    tokens = torch.arange(task.vocabulary)
    steps = (tokens * (tokens <= task.longest)).double()
    head = Head((angle,), turned(-angle * steps), turned(0 * tokens), 2 * projection(task), residual=True)

    def formula(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return torch.cos(angle * (distances(tokens) - steps[tokens[:, -1:]]))

    return Construction(task, head, formula, index_worst(torch.tensor([task.tokens]), angle).item())


def t_retrieval(task: Letter, angle: float | None = None) -> Construction:
    """P2, Theorem 3.1: xy copies the token that starts with y. Needs 2 * n * angle < omega = 2 pi / letters.

    Letters are directions in the one plane, omega apart. Applied once a hop it solves the letter task.
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
    """The letter every token starts with, and the one it asks for: its second, or without one its own."""
    left = torch.tensor([0, *(ascii_uppercase.index(name[0]) for name in task.symbols[1:])])
    right = torch.tensor([0, *(ascii_uppercase.index(name[name[1].isalpha()]) for name in task.symbols[1:])])
    return left, right


def distances(tokens: Int[Tensor, "B T"]) -> Float[Tensor, " T"]:
    """Steps from the last token back to each."""
    return torch.arange(tokens.shape[1] - 1, -1, -1).double()


def turned(phases: Shaped[Tensor, "*any"]) -> Float[Tensor, "*any 2"]:
    """The first direction of a plane, turned counter-clockwise."""
    phases = phases.double()
    return torch.stack([phases.cos(), phases.sin()], -1)


def projection(task: Task) -> Float[Tensor, "V A"]:
    """F: what carries an answer says it (a symbol, a letter, the attribute of a pair), all else says nothing."""
    if isinstance(task, LookupTask):
        first, carried, answers = 0, task.carried, task.answers
    elif isinstance(task, Number):
        first, carried, answers = task.longest + 1, torch.arange(task.longest + 1, task.vocabulary), task.vocabulary
    else:
        first, carried, answers = 1, torch.arange(task.letters * task.digits) % task.digits, task.digits
    said = torch.zeros(task.vocabulary, answers)
    said[torch.arange(len(carried)) + first, carried] = 1
    return said


def symbol_match(task: Retrieval) -> tuple[Float[Tensor, "V S"], Float[Tensor, "V S"]]:
    """One-hot keys, the symbols of contents, and queries, those of questions."""
    one_hot = torch.eye(task.symbols, dtype=torch.float64)
    keys = one_hot.repeat_interleave(task.attributes, 0)
    return torch.cat([keys, 0 * one_hot]), torch.cat([0 * keys, one_hot])


def matches(task: Retrieval, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """1 where a content has the symbol asked for."""
    symbols = tokens // task.attributes  # those of questions lie beyond
    found = symbols == tokens[:, -1:] - task.contents
    return (found & (tokens < task.contents)).double()
