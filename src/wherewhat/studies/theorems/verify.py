"""Numerical checks of the theorems of the papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ...core.rotation import Rotation
from ...core.trace import AttentionLayer, Trace
from ...errors import BadInput
from ...lab import embedded
from ...results import Progress, Result, ignore_progress, versions
from ...tasks import TASKS, Index, Induction, Letter, Number, Retrieval
from ...theory.constructions import (
    Construction,
    SolvableTask,
    forced_angle,
    h_pos,
    h_sym,
    t_index,
    t_retrieval,
    two_angles,
)
from ...theory.witness import Kind, pure_head
from ...tracing import capture
from . import checks
from .bounds import bounds_hold, printed_bounds_fail
from .checks import CheckOutcome, PureHead
from .encodings import alibi_cancels, contracts, gram_terms, rope_seeds
from .functions import constant_without_rotation, equals_function, hops_answer, softmax_as_hard_attention

PRINTED, CORRECTED, READING = "as printed", "corrected", "our reading"


@dataclass(frozen=True)
class Theorem:
    """A theorem, its subjects, and how it is checked on them. P1, P2 and P3 are the papers.

    `form` says whether the statement is checked as printed, corrected, or as we read it where its text is not known.
    """

    name: str
    theorem: str
    statement: str
    subjects: Callable[[int], Sequence[Any]]
    check: Callable[[Sequence[Any], int], CheckOutcome]
    form: str = PRINTED

    def verify(self, seed: int = 0, subjects: Sequence[Any] | None = None) -> Row:
        """Check the theorem on its own subjects, or on others, which may violate it.

        >>> h_pos_solves = find_theorem("h-pos")
        >>> h_pos_solves.verify().passed, h_pos_solves.verify(subjects=[h_pos(Index(8), angle=2.0)]).passed
        (True, False)
        """
        outcome = self.check(self.subjects(seed) if subjects is None else subjects, seed)
        return Row(self.name, self.theorem, self.form, self.statement, *outcome)


@dataclass(frozen=True)
class Row:
    """A theorem, how it was checked, on how many instances, and the smallest margin by which it holds."""

    name: str
    theorem: str
    form: str
    statement: str
    method: str
    instances: int
    margin: float
    passed: bool
    shown: str


@dataclass(frozen=True)
class Verification(Result, file="verification.json", kind="verification"):
    """Numerical checks of theorems: `rows` has one row per theorem. Iterating gives them as `Row` objects."""

    rows: pd.DataFrame
    about: dict[str, Any]

    @property
    def passed(self) -> bool:
        """Whether every theorem that was checked holds."""
        return bool(self.rows["passed"].all())

    def __iter__(self) -> Iterator[Row]:
        return (Row(**row) for row in self.rows.to_dict("records"))  # pyright: ignore[reportCallIssue] - names of columns

    def __len__(self) -> int:
        return len(self.rows)


def verify(
    only: Sequence[str] | None = None,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Progress = ignore_progress,
) -> Verification:
    """A numerical check of every theorem, or of those named in `only`.

    With a `folder`, the result is saved there.

    >>> verification = ww.verify(only=["h-pos", "h-sym"])
    >>> verification.passed, [row.name for row in verification]
    (True, ['h-pos', 'h-sym'])
    """
    chosen = [find_theorem(name) for name in only] if only else THEOREMS
    rows = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for matrices this small
    try:
        for number, theorem in enumerate(chosen):
            progress(theorem.theorem, number, len(chosen))
            rows.append(theorem.verify(seed))
    finally:
        torch.set_num_threads(threads)
    about = {"theorems": [theorem.name for theorem in chosen], "seed": seed, "versions": versions()}
    made = Verification(pd.DataFrame(rows), about)
    if folder is not None:
        made.save(folder)
    return made


def find_theorem(name: str) -> Theorem:
    """The theorem of this name."""
    known = {theorem.name: theorem for theorem in THEOREMS}
    if name not in known:
        raise BadInput(f"no theorem {name!r}: {', '.join(known)}")
    return known[name]


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


def pure_heads(*cases: tuple[SolvableTask, Kind], number: int = 10) -> Callable[[int], list[PureHead]]:
    """Random heads of one kind, on a task that their kind cannot solve."""
    return lambda seed: [
        PureHead(pure_head(task, kind, number * seed + one).transformer(), task, kind)
        for task, kind in cases
        for one in range(number)
    ]


def random_traces(seed: int = 0, keys: int = 6) -> list[Trace]:
    """Heads with two rotary planes and two non-rotary dimensions, with small and large logits."""
    draw = torch.Generator().manual_seed(seed)
    traces = []
    for size in (0.1, 1.0, 10.0):
        queries, contents = torch.randn(64, 8, 1, 6, generator=draw), torch.randn(64, 8, keys + 1, 6, generator=draw)
        rotation = Rotation.interleaved(torch.rand(2, generator=draw), head_dim=6)
        turned = rotation.rotate(contents, torch.arange(keys + 1))
        traces.append(Trace((AttentionLayer(0, queries, turned, rotation, size),), (keys,), keys))
    return traces


def embedded_traces(seed: int = 0) -> list[Trace]:
    return [capture(embedded(name), task().sample(64, seed).tokens) for name, task in TASKS.items()]


THEOREMS = [
    Theorem(
        "exclusion", "P1 Thm 1", "positional and symbolic deviation together are at least the variance of the logits",
        random_traces, checks.excludes,
    ),
    Theorem(
        "exclusion-models", "P1 Thm 1", "the same in trained models", embedded_traces,
        checks.excludes_in_models,
    ),
    Theorem(
        "no-symbolic-index", "P1 Thm 2", "no symbolic head solves Index",
        pure_heads((Index(5, 5), "what")), checks.must_fail,
    ),
    Theorem(
        "h-pos", "P1 Thm 3", "H_POS, one angle, solves Index while n theta < 2 pi", positional_heads, checks.solves,
    ),
    Theorem(
        "no-positional-retrieval", "P1 Thm 4", "no positional head that outputs the attribute solves Retrieval",
        pure_heads((Retrieval(5, 5, 4), "where")), checks.must_fail, CORRECTED,
    ),
    Theorem("h-sym", "P1 Thm 5", "H_SYM, no angle, solves Retrieval", symbolic_heads, checks.solves),
    Theorem(
        "no-pure-induction", "P1 Cor 1", "neither kind solves partial induction",
        pure_heads((Induction(6, 3, 4), "what"), (Induction(6, 3, 4), "where")), checks.must_fail,
    ),
    Theorem(
        "two-angles", "P1 Thm 6", "one head with angles 0 and theta solves partial induction while n theta <= pi",
        two_angle_heads, checks.solves,
    ),
    Theorem(
        "u-shape", "P1 Thm 7",
        "the attention of H_POS to its target is U-shaped in the target's position while n theta < 2 pi",
        lambda _: [h_pos(Index(n), turns / n) for n in (9, 32) for turns in (0.64, 3.2, 6.0)],
        checks.u_shape, READING,
    ),
    Theorem(
        "forced-angle", "P1 Thm 7", "H_SYM with a forced angle still solves Retrieval while (n - 1) theta < pi",
        forced_heads, checks.solves, READING,
    ),
    Theorem(
        "inverse-u", "P1 Thm 7", "and its attention to the match is inverse-U-shaped while n theta < 2 pi",
        lambda _: [forced_angle(Retrieval(n, n, 1), turns / n) for n in (9, 32) for turns in (0.64, 3.0)],
        checks.inverse_u, READING,
    ),
    Theorem(
        "no-pure-hop", "P2 Rem 3.1", "no symbolic head makes a hop of Number, no positional one of Letter",
        pure_heads(
            (Number(4, 2, 1, letters=9), "what"), (Letter(4, 2, 1, letters=5, digits=5), "where"),
        ), checks.must_fail,
    ),
    Theorem("t-index", "P2 Thm 3.1", "T_Index, applied once per hop, solves Number", index_layers, checks.solves),
    Theorem(
        "t-retrieval", "P2 Thm 3.1", "T_Retrieval, applied once per hop, solves Letter", retrieval_layers,
        checks.solves,
    ),
    Theorem(
        "index-everywhere", "P2 Thm 3.1", "T_Index(sigma) = Index(sigma) at every position", index_layers,
        equals_function, CORRECTED,
    ),
    Theorem(
        "retrieval-everywhere", "P2 Thm 3.1",
        "T_Retrieval(sigma) = Retrieval(sigma) at every position where the requested token is unique",
        retrieval_layers, equals_function, CORRECTED,
    ),
    Theorem(
        "hop-maps", "P2 Sec 3", "f_NUM = Index^h and f_LET = Retrieval^h, then Reflexive, give every answer",
        lambda _: [Number(), Letter()], hops_answer,
    ),
    Theorem(
        "theta-zero", "P2 Rem 3.2",
        "with theta = 0 the discrepancy of Retrieval is 1 - cos omega at every length, and that of Index is 0",
        lambda _: [
            replace(one, head=replace(one.head, angles=(0.0,)))
            for one in (t_retrieval(Letter(digits=2)), t_index(Number(letters=20)))
        ], constant_without_rotation,
    ),
    Theorem(
        "temperature-ties", "P2 Lem F.1",
        "softmax at a high enough inverse temperature decodes like hard attention, with ties and any Lipschitz F",
        lambda _: range(400), softmax_as_hard_attention,
    ),
    Theorem(
        "temperature", "P2 Lem F.1", "beta = log(3 (n - 1)) / gap puts 3/4 of the attention on the right key",
        all_constructions, checks.keeps_promise,
    ),
    Theorem(
        "index-bound", "P2 Thm 3.2", "the worst discrepancy of Index is at most min(1 - cos theta, 2 pi^2 / n^2)",
        lambda _: [t_index(Number(targets=24, letters=1), angle) for angle in (0.8, 1.0, 0.3)], bounds_hold,
        CORRECTED,
    ),
    Theorem(
        "retrieval-bound", "P2 Thm 3.2", "and that of Retrieval at most 1 - cos(omega - (n - 1) theta)",
        lambda _: [
            t_retrieval(Letter(3, 2, 1, letters=3, digits=1), 0.05), t_retrieval(Letter(2, 1, 1, digits=1), 0.0027),
        ], bounds_hold, CORRECTED,
    ),
    Theorem(
        "printed-bounds", "P2 Thm 3.2",
        "for all inputs, as in Definition 3.1, and with n theta, both bounds are exceeded",
        lambda _: [t_index(Number(5, 3, letters=1), 0.8), t_retrieval(Letter(1, 1, 1), 0.0027)], printed_bounds_fail,
    ),
    Theorem(
        "gram-terms", "P3 Eq 1-2",
        "logits are four Gram terms of content and position (absolute), or Gram terms times Toeplitz kernels (RoPE)",
        lambda _: range(50), gram_terms,
    ),
    Theorem(
        "contraction", "P3 (v1)",
        "a Hadamard product of a positive definite matrix with the kernel of several angles contracts its spectrum",
        lambda _: range(50), contracts, CORRECTED,
    ),
    Theorem(
        "rope-seed", "P3 Prop 6.1", "a RoPE head has a positional gradient from the start, without any content",
        lambda _: range(100), rope_seeds, READING,
    ),
    Theorem(
        "alibi-cancels", "P3 Prop 6.2", "that of a head with ALiBi cancels",
        lambda _: range(100), alibi_cancels, READING,
    ),
]  # fmt: skip
