"""Why a pure head must fail: two inputs with different answers that it cannot distinguish.

A symbolic head ("what") has the same output when two contents are exchanged (P1, Theorem 2). A positional head
("where") that outputs the attribute at some position has the same output when two symbols are exchanged and their
attributes stay (P1, Theorem 4). So for each exchange that changes the answer, the head is wrong at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..lab import Transformer
from ..tasks import Letter, LookupTask, Retrieval
from .constructions import SolvableTask, projection
from .head import Head

Kind = Literal["where", "what"]
ALIKE = 1e-9  # outputs that differ by no more differ by rounding only


class Pairs(NamedTuple):
    """Inputs, and partners that differ by one exchange and have another answer."""

    tokens: Int[Tensor, "2 B T"]
    answers: Int[Tensor, "2 B"]


@dataclass(frozen=True)
class Witness:
    """Two inputs with their answers and the predictions; `apart` is the largest difference between the two outputs."""

    kind: Kind
    inputs: tuple[str, ...]
    answers: tuple[str, ...]
    predictions: tuple[str, ...]
    apart: float

    def __str__(self) -> str:
        verdicts = [
            "right" if one == answer else "wrong" for one, answer in zip(self.predictions, self.answers, strict=True)
        ]
        lines = map("{}  answer {}, predicted {}: {}".format, self.inputs, self.answers, self.predictions, verdicts)
        return "\n".join(
            [f"A head that looks at {self.kind} cannot distinguish these (outputs differ by {self.apart:.0e}):", *lines]
        )


def find_witness(model: Transformer, task: SolvableTask, kind: Kind, seed: int = 0) -> Witness | None:
    """A pair of inputs on one of which the head must be wrong; None if it distinguishes all pairs that were tried.

    >>> task = Retrieval(length=4, symbols=4, attributes=4)
    >>> print(find_witness(pure_head(task, "where").transformer(), task, "where"))
    A head that looks at where cannot distinguish these (outputs differ by ...):
    d2 b1 a1 c4 b  answer 1, predicted 1: right
    d2 c1 a1 b4 b  answer 4, predicted 1: wrong
    """
    pairs = exchanged(task, kind, 64, seed)
    outputs = output_logits(model, pairs)
    apart = outputs.diff(dim=0).abs().amax((0, 2))
    predictions, names = outputs.argmax(-1), answer_names(task)
    best = ((predictions == pairs.answers).sum(0) + 1) * (apart <= ALIKE)  # prefer pairs with one right answer
    if not best.any():
        return None
    row = int(best.argmax())
    return Witness(
        kind=kind,
        inputs=tuple(map(task.decode, pairs.tokens[:, row])),
        answers=tuple(names[answer] for answer in pairs.answers[:, row]),
        predictions=tuple(names[answer] for answer in predictions[:, row]),
        apart=apart[row].item(),
    )


def exchanged(task: SolvableTask, kind: Kind, count: int, seed: int = 0) -> Pairs:
    """Inputs of one hop, and partners in which the answer's position and another random one are exchanged.

    For symbolic heads ("what"), two contents of the same symbol are exchanged (any two, if the content itself is
    the answer). For positional heads ("where"), the symbols of two contents are exchanged and their attributes stay;
    the later one then holds the answer. Of `count` inputs, those whose answer changes are kept.
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


def output_logits(model: Transformer, pairs: Pairs) -> Float[Tensor, "2 B V"]:
    """The logits over answers after each input."""
    with torch.no_grad():
        return model(pairs.tokens.flatten(0, 1), last=True)[:, 0].unflatten(0, (2, -1))


def pure_head(task: SolvableTask, kind: Kind, seed: int = 0, planes: int = 4) -> Head:
    """A random head of one kind: without positions, or with one key for all tokens.

    A symbolic head ("what") has random values. A positional one ("where") outputs the attribute: identity values and
    the projection F of Theorem 4, without which its values could look up pairs.
    """
    draw = torch.Generator().manual_seed(seed)
    attribute = projection(task)
    queries, keys = torch.randn(2, len(attribute), 2 * planes, generator=draw)
    if kind == "what":
        return Head((), queries, keys, torch.randn(attribute.shape, generator=draw))
    angles = torch.rand(planes, generator=draw).tolist()
    return Head(tuple(angles), queries, keys[:1].expand_as(keys), attribute)


def answer_names(task: SolvableTask) -> list[str]:
    """The name of each answer: an attribute is a number, any other answer a word."""
    if isinstance(task, (Retrieval, Letter)):
        return [str(number) for number in range(1, projection(task).shape[1] + 1)]
    return task.words if isinstance(task, LookupTask) else task.symbols
