"""Every theorem of the papers, numerically: one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture import capture
from ..core.rotation import Rotation
from ..core.trace import AttentionLayer, Trace
from ..errors import BadInput
from ..lab import embedded
from ..tasks import TASKS, Index, Induction, Letter, Number, Retrieval
from ..theory.constructions import Construction, Task, forced_angle, h_pos, h_sym, t_index, t_retrieval, two_angles
from ..theory.witness import Kind, pure_head
from . import checks
from .bounds import bounds_hold, printed_bounds_fail
from .checks import Finding, PureHead

Progress = Callable[[str, float, int], None]


@dataclass(frozen=True)
class Claim:
    """A theorem, what it speaks of, and how it is checked. P1 and P2 are the two papers."""

    name: str
    theorem: str
    statement: str
    subjects: Callable[[int], Sequence[Any]]
    check: Callable[[Sequence[Any], int], Finding]

    def verify(self, seed: int = 0, subjects: Sequence[Any] | None = None) -> Row:
        """Check it on its own subjects, or on others that may not keep to it.

        >>> claim("h-pos").verify().passed, claim("h-pos").verify(subjects=[h_pos(Index(8), angle=2.0)]).passed
        (True, False)
        """
        found = self.check(self.subjects(seed) if subjects is None else subjects, seed)
        return Row(self.name, self.theorem, self.statement, *found)


@dataclass(frozen=True)
class Row:
    """What was checked, how, on how many instances, and by how much it holds where it holds least."""

    name: str
    theorem: str
    statement: str
    method: str
    instances: int
    margin: float
    passed: bool
    shown: str

    def as_dict(self) -> dict[str, Any]:
        keys = ("theorem", "statement", "method", "instances", "margin", "passed")
        return {key: getattr(self, key) for key in keys}


def verify(only: Sequence[str] = (), seed: int = 0, progress: Progress = lambda what, done, total: None) -> list[Row]:
    """Check all claims, or only these.

    >>> [row.passed for row in verify(only=["h-pos", "h-sym"])]
    [True, True]
    """
    chosen = [claim(name) for name in only] or CLAIMS
    rows = []
    for number, one in enumerate(chosen):
        progress(one.theorem, number, len(chosen))
        rows.append(one.verify(seed))
    return rows


def claim(name: str) -> Claim:
    """The claim of this name."""
    found = {one.name: one for one in CLAIMS}
    if name not in found:
        raise BadInput(f"no theorem {name!r}: {', '.join(found)}")
    return found[name]


def positional_heads(_: int = 0) -> list[Construction]:
    return [h_pos(Index(length), turns / length) for length in (2, 8, 32) for turns in (0.5, math.pi, 6.0)]


def symbolic_heads(_: int = 0) -> list[Construction]:
    return [h_sym(Retrieval(length, length, 4)) for length in (2, 8, 32)]


def two_angle_heads(_: int = 0) -> list[Construction]:
    return [two_angles(Induction(length, 4, 4), turns / length) for length in (2, 8, 32) for turns in (0.5, math.pi)]


def forced_heads(_: int = 0) -> list[Construction]:
    return [forced_angle(Retrieval(length, length, 4), turns / length) for length in (2, 8, 16) for turns in (0.5, 3.0)]


def index_layers(_: int = 0) -> list[Construction]:
    return [t_index(Number(letters=20)), t_index(Number(targets=24, letters=20), angle=0.8)]


def retrieval_layers(_: int = 0) -> list[Construction]:
    return [t_retrieval(Letter(digits=2)), t_retrieval(Letter(targets=24, letters=6, digits=2), angle=0.0027)]


def all_constructions(_: int = 0) -> list[Construction]:
    families = (positional_heads, symbolic_heads, two_angle_heads, forced_heads, index_layers, retrieval_layers)
    return [one for family in families for one in family()]


def pure_heads(*cases: tuple[Task, Kind], number: int = 10) -> Callable[[int], list[PureHead]]:
    """Random heads of a kind, which try a task that is not theirs."""
    return lambda seed: [
        PureHead(pure_head(task, kind, number * seed + one).transformer(), task, kind)
        for task, kind in cases
        for one in range(number)
    ]


def random_traces(seed: int = 0, keys: int = 6) -> list[Trace]:
    """Heads of two planes that turn and two dimensions that do not, with small and large logits."""
    draw = torch.Generator().manual_seed(seed)
    traces = []
    for size in (0.1, 1.0, 10.0):
        queries, contents = torch.randn(64, 8, 1, 6, generator=draw), torch.randn(64, 8, keys + 1, 6, generator=draw)
        rotation = Rotation.interleaved(torch.rand(2, generator=draw), head_dim=6)
        turned = rotation.turn(contents, torch.arange(keys + 1))
        traces.append(Trace((AttentionLayer(0, queries, turned, rotation, size),), (keys,), keys))
    return traces


def embedded_traces(seed: int = 0) -> list[Trace]:
    return [capture(embedded(name), task().sample(64, seed).tokens) for name, task in TASKS.items()]


CLAIMS = [
    Claim(
        "exclusion", "P1 Thm 1", "positional and symbolic deviation together are at least the variance of the logits",
        random_traces, checks.excludes,
    ),
    Claim(
        "exclusion-models", "P1 Thm 1", "the same in models that were trained", embedded_traces,
        checks.excludes_in_models,
    ),
    Claim(
        "no-symbolic-index", "P1 Thm 2", "no symbolic head solves Index",
        pure_heads((Index(5, 5), "what")), checks.must_fail,
    ),
    Claim(
        "h-pos", "P1 Thm 3", "H_POS, one angle, solves Index while n theta < 2 pi", positional_heads, checks.solves,
    ),
    Claim(
        "no-positional-retrieval", "P1 Thm 4", "no positional head solves Retrieval",
        pure_heads((Retrieval(5, 5, 4), "where")), checks.must_fail,
    ),
    Claim("h-sym", "P1 Thm 5", "H_SYM, no angle, solves Retrieval", symbolic_heads, checks.solves),
    Claim(
        "no-pure-induction", "P1 Cor 1", "neither kind solves partial induction",
        pure_heads((Induction(6, 3, 4), "what"), (Induction(6, 3, 4), "where")), checks.must_fail,
    ),
    Claim(
        "two-angles", "P1 Thm 6", "one head with angles 0 and theta solves partial induction while n theta <= pi",
        two_angle_heads, checks.solves,
    ),
    Claim(
        "u-shape", "P1 Thm 7", "the weight of H_POS on its target is U-shaped in its place while n theta < 2 pi",
        lambda _: [h_pos(Index(n), turns / n) for n in (9, 32) for turns in (0.64, 3.2, 6.0)],
        checks.u_shape,
    ),
    Claim(
        "forced-angle", "P1 Thm 7", "H_SYM forced to turn still solves Retrieval while (n - 1) theta < pi",
        forced_heads, checks.solves,
    ),
    Claim(
        "inverse-u", "P1 Thm 7", "and its weight on the match is inverse-U-shaped while n theta < 2 pi",
        lambda _: [forced_angle(Retrieval(n, n, 1), turns / n) for n in (9, 32) for turns in (0.64, 3.0)],
        checks.inverse_u,
    ),
    Claim(
        "no-pure-hop", "P2 Rem 3.1", "no symbolic head makes a hop of Number, no positional one of Letter",
        pure_heads(
            (Number(4, 2, 1, letters=9), "what"), (Letter(4, 2, 1, letters=5, digits=5), "where"),
        ), checks.must_fail,
    ),
    Claim("t-index", "P2 Thm 3.1", "T_Index, once a hop, solves Number", index_layers, checks.solves),
    Claim("t-retrieval", "P2 Thm 3.1", "T_Retrieval, once a hop, solves Letter", retrieval_layers, checks.solves),
    Claim(
        "temperature", "P2 Lem F.1", "beta = log(3 (n - 1)) / gap puts 3/4 of the attention on the right key",
        all_constructions, checks.keeps_promise,
    ),
    Claim(
        "index-bound", "P2 Thm 3.2", "the worst discrepancy of Index is at most min(1 - cos theta, 2 pi^2 / n^2)",
        lambda _: [t_index(Number(targets=24, letters=1), angle) for angle in (0.8, 1.0, 0.3)], bounds_hold,
    ),
    Claim(
        "retrieval-bound", "P2 Thm 3.2", "and of Retrieval at most 1 - cos(omega - (n - 1) theta)",
        lambda _: [
            t_retrieval(Letter(3, 2, 1, letters=3, digits=1), 0.05), t_retrieval(Letter(2, 1, 1, digits=1), 0.0027),
        ], bounds_hold,
    ),
    Claim(
        "printed-bounds", "P2 Thm 3.2", "as printed, for all inputs and with n theta, it is false: both are exceeded",
        lambda _: [t_index(Number(5, 3, letters=1), 0.8), t_retrieval(Letter(1, 1, 1), 0.0027)], printed_bounds_fail,
    ),
]  # fmt: skip
