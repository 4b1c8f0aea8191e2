"""Why a pure head must fail: two inputs that it cannot tell apart, with different answers.

A head that looks at what says the same when two contents change places (P1, Theorem 2). A head that looks at where,
and says the attribute of what it finds there, says the same when two symbols change places and their attributes stay
(P1, Theorem 4). So each exchange that changes the answer makes the head wrong at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..lab import Transformer
from ..tasks import Letter, LookupTask, Retrieval
from .constructions import Task, projection
from .head import Head

Kind = Literal["where", "what"]
ALIKE = 1e-9  # outputs no further apart differ by rounding only


class Pairs(NamedTuple):
    """Inputs, then their partners: the same but for an exchange, with another answer."""

    tokens: Int[Tensor, "2 B T"]
    answers: Int[Tensor, "2 B"]


@dataclass(frozen=True)
class Witness:
    """Two inputs, what should be said, what is said; `apart` is the largest difference between the outputs."""

    kind: Kind
    inputs: tuple[str, ...]
    answers: tuple[str, ...]
    said: tuple[str, ...]
    apart: float

    def __str__(self) -> str:
        verdicts = [
            "right" if said == answer else "wrong" for said, answer in zip(self.said, self.answers, strict=True)
        ]
        lines = map("{}  answer {}, it says {}: {}".format, self.inputs, self.answers, self.said, verdicts)
        return "\n".join(
            [f"To a head that looks at {self.kind} these are one (outputs {self.apart:.0e} apart):", *lines]
        )


def find_witness(model: Transformer, task: Task, kind: Kind, seed: int = 0) -> Witness | None:
    """A pair of inputs on which the head must be wrong; none if it tells all that were tried apart.

    >>> task = Retrieval(length=4, symbols=4, attributes=4)
    >>> print(find_witness(pure_head(task, "where").transformer(), task, "where"))
    To a head that looks at where these are one (outputs ... apart):
    d2 b1 a1 c4 b  answer 1, it says 1: right
    d2 c1 a1 b4 b  answer 4, it says 1: wrong
    """
    pairs = exchanged(task, kind, 64, seed)
    outputs = say(model, pairs)
    apart = outputs.diff(dim=0).abs().amax((0, 2))
    said, names = outputs.argmax(-1), answer_names(task)
    best = ((said == pairs.answers).sum(0) + 1) * (apart <= ALIKE)  # right once is more telling than never
    if not best.any():
        return None
    row = int(best.argmax())
    return Witness(
        kind=kind,
        inputs=tuple(map(task.decode, pairs.tokens[:, row])),
        answers=tuple(names[answer] for answer in pairs.answers[:, row]),
        said=tuple(names[answer] for answer in said[:, row]),
        apart=apart[row].item(),
    )


def exchanged(task: Task, kind: Kind, count: int, seed: int = 0) -> Pairs:
    """Inputs of one hop, and partners in which the answer's place and a random other have been exchanged.

    For heads that look at what: two contents of one symbol (any, where contents are all that counts). For heads that
    look at where: the symbols of two contents, whose attributes stay; the later one then answers. Of `count` inputs
    those remain whose answer changes.
    """
    if isinstance(task, LookupTask):
        drawn = task.sample(count, seed)
        tokens, places, width = drawn.tokens, drawn.places, task.length
    else:
        drawn = task.sample(count * task.most_hops, seed)
        drawn = drawn[drawn.hops == 1]
        tokens, places, width = drawn.tokens, drawn.path[:, 1], task.targets
    others = torch.randint(width, places.shape, generator=torch.Generator().manual_seed(seed))
    carried = projection(task).argmax(1)
    at = torch.stack([places, others], 1)
    here = tokens.gather(1, at)
    answers = carried[here]
    symbols = here - answers  # ids count the attributes of one symbol before those of the next
    if kind == "what":
        moved, keeps_rule = here.flip(1), symbols[:, 0] == symbols[:, 1]
    else:
        moved, keeps_rule = symbols.flip(1) + answers, others > places
    partners = tokens.scatter(1, at, moved)
    kept = keeps_rule & (answers[:, 0] != answers[:, 1])
    return Pairs(torch.stack([tokens, partners])[:, kept], answers[kept].T)


def say(model: Transformer, pairs: Pairs) -> Float[Tensor, "2 B V"]:
    """What the model says of every answer, after each input."""
    with torch.no_grad():
        return model(pairs.tokens.flatten(0, 1), last=True)[:, 0].unflatten(0, (2, -1))


def pure_head(task: Task, kind: Kind, seed: int = 0, planes: int = 4) -> Head:
    """A random head of one kind: without positions, or with one key for all tokens.

    One that looks at what may say anything; one that looks at where says the attribute (identity values and the
    projection F of Theorem 4, without which it could look up pairs in what it says).
    """
    draw = torch.Generator().manual_seed(seed)
    said = projection(task)
    queries, keys = torch.randn(2, len(said), 2 * planes, generator=draw)
    if kind == "what":
        return Head((), queries, keys, torch.randn(said.shape, generator=draw))
    angles = torch.rand(planes, generator=draw).tolist()
    return Head(tuple(angles), queries, keys[:1].expand_as(keys), said)


def answer_names(task: Task) -> list[str]:
    """What each answer reads as: an attribute is a number, all else a word."""
    if isinstance(task, (Retrieval, Letter)):
        return [str(number) for number in range(1, projection(task).shape[1] + 1)]
    return task.words if isinstance(task, LookupTask) else task.symbols
