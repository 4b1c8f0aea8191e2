"""How each kind of theorem is checked.

A check takes its subjects (constructions, pure heads, traces) as an argument, so that a broken subject makes it fail.
A margin is positive where a theorem holds strictly, and 0 where it holds with equality.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.discrepancy import discrepancy
from ...core.scores import exclusion
from ...core.trace import Trace
from ...lab import Transformer
from ...tasks import LookupTask, Retrieval, Sequences
from ...theory.constructions import PROMISED, Construction, SolvableTask, projection
from ...theory.curves import STEP, Curve, fall_to_the_middle, positional_weight, reach, symbolic_weight
from ...theory.witness import ALIKE, Kind, exchanged, find_witness, output_logits
from ...tracing import capture

PROMPTS = 512  # per construction
ROUNDING = 4e-6  # of logits in units of the largest: traces hold phases, here of up to 33 radians, in float32
SHARPNESS = 5.0  # the inverse temperature at which the curves of Theorem 7 are measured


class CheckOutcome(NamedTuple):
    """How a theorem was checked, on how many instances, the smallest margin, and inputs to show."""

    method: str
    instances: int
    margin: float
    passed: bool
    shown: str = ""


class PureHead(NamedTuple):
    """A model with one head of one kind, and the task that it must fail."""

    model: Transformer
    task: SolvableTask
    kind: Kind


def solves(made: Sequence[Construction], seed: int) -> CheckOutcome:
    """Every answer of a real forward pass is right, and the logits equal those of the formula."""
    margins, apart = [], []
    for one in made:
        drawn = one.task.sample(PROMPTS, seed)
        logits = last_logits(one.transformer, drawn.tokens) / one.beta
        apart.append((logits - one.formula(drawn.tokens)).abs().max().item())
        margins.append(decoding_margin(one, drawn.tokens, drawn.answers))
    return CheckOutcome(
        f"all answers right, random prompts of {listed({one.tokens for one in made})} tokens; "
        f"logits within {max(apart):.0e} of the formula",
        PROMPTS * len(made),
        min(margins),
        min(margins) > 0 and max(apart) <= ROUNDING,
    )


def decoding_margin(made: Construction, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> float:
    """The smallest margin of the right answer after one pass per hop; before the last pass, of the winning token."""
    margin = torch.inf
    with torch.no_grad():
        for _ in range(made.passes - 1):
            output = made.transformer(tokens)
            tokens, margin = output.argmax(-1), min(margin, discrepancy(output[:, -1]).min().item())
        return min(margin, lead(made.transformer(tokens, last=True)[:, 0], answers).min().item())


def keeps_promise(made: Sequence[Construction], seed: int) -> CheckOutcome:
    """Lemma F.1: softmax at the temperature of the gap gives the right key the promised share of attention."""
    weights = []
    for one in made:
        drawn = one.task.sample(PROMPTS, seed)
        places = drawn.path[:, 1] if isinstance(drawn, Sequences) else drawn.places
        rows = capture(one.transformer, drawn.tokens).attention_rows(0)[:, 0]
        weights.append(rows.gather(1, places[:, None]).min().item())
    margin = min(weights) - PROMISED
    return CheckOutcome("attention of every construction", PROMPTS * len(made), margin, margin >= -ROUNDING)


def must_fail(heads: Sequence[PureHead], seed: int) -> CheckOutcome:
    """A pure head gives the same output for both inputs of every pair, and so is wrong at least once.

    This holds for every head of the family, whatever its weights: the two inputs are the same in all that such a head
    can use. That is checked for each pair; random heads of the family show it in real forward passes.
    """
    margins, apart, impure, count, alike = [], 0.0, 0.0, 0, True
    for model, task, kind in heads:
        pairs = exchanged(task, kind, PROMPTS, seed)
        outputs = output_logits(model, pairs)
        leads = lead(outputs.flatten(0, 1), pairs.answers.flatten()).unflatten(0, (2, -1))
        margins.append(-leads.amin(0).max().item())
        apart = max(apart, outputs.diff(dim=0).abs().max().item())
        sides = exclusion(capture(model, pairs.tokens[0]))
        deviation = sides.positional_deviation if kind == "where" else sides.symbolic_deviation
        alike &= bool((visible(task, kind, pairs.tokens[0]) == visible(task, kind, pairs.tokens[1])).all())
        impure = max(impure, (deviation / (1 + sides.variance)).max().item())
        count += len(pairs.answers[0])
    first = {(task, kind): PureHead(model, task, kind) for model, task, kind in reversed(heads)}
    shown = (str(find_witness(*head, seed)) for head in reversed(first.values()))
    return CheckOutcome(
        f"pairs of inputs that are the same in all that any head of the kind can use; the outputs of {len(heads)} "
        f"random ones differ by {apart:.0e}, one is wrong",
        count,
        min(margins),
        min(margins) >= -ALIKE and apart <= ALIKE and impure <= ROUNDING and alike,
        "\n\n".join(shown),
    )


def visible(task: SolvableTask, kind: Kind, tokens: Int[Tensor, "B T"]) -> Tensor:
    """All that a head of a kind can use of its inputs.

    A symbolic head ("what") uses the contents, in no order, and the query. A positional one ("where") whose output is
    the attribute uses the attribute at every position, and the query.
    """
    contents, query = tokens[:, :-1], tokens[:, -1:]
    seen = contents.sort(1).values if kind == "what" else projection(task)[contents].flatten(1)
    return torch.cat([seen, query.to(seen.dtype)], 1)


def excludes(traces: Sequence[Trace], seed: int) -> CheckOutcome:
    """Theorem 1 as stated, over all permutations of the keys, compared with the closed form."""
    margins, apart, count = [], [], 0
    for trace in traces:
        sides, table = exclusion(trace), trace.placements(0).table().double()
        logits = table.diagonal(dim1=-2, dim2=-1)
        orders = torch.tensor(list(itertools.permutations(range(trace.keys))))
        moved = table[..., orders, torch.arange(trace.keys)]  # B H orders N
        positional = (moved - logits[..., None, :]).square().mean((-1, -2))
        symbolic = (moved - logits[..., orders]).square().mean((-1, -2))
        bound = positional + symbolic
        margins.append((1 - logits.var(-1, correction=0) / bound).min().item())
        apart.append((sides.bound[:, 0] / bound - 1).abs().max().item())
        count += logits[..., 0].numel()
    return CheckOutcome(
        f"random heads, all permutations of {traces[0].keys} keys; closed form equal within {max(apart):.0e}",
        count,
        min(margins),
        min(margins) >= 0 and max(apart) <= 1e-4,
    )


def excludes_in_models(traces: Sequence[Trace], seed: int) -> CheckOutcome:
    """The closed form on every head of every trace."""
    sides = [exclusion(trace) for trace in traces]
    margin = min((1 - side.variance / side.bound).min().item() for side in sides)
    heads = sum(side.bound[0].numel() for side in sides)
    return CheckOutcome(
        f"all {heads} heads of the embedded models, {traces[0].batch} sequences each",
        sum(side.bound.numel() for side in sides),
        margin,
        margin >= -ROUNDING,
    )


def bends(made: Sequence[Construction], curve: Curve, sign: int) -> CheckOutcome:
    """The measured attention is a U (sign 1) or an inverse U (-1); the formula is one up to which n * theta."""
    margins, apart, count = [], [], 0
    for one in made:
        measured = attention_by_position(one)
        margins.append(fall_to_the_middle(sign * measured))
        apart.append((measured - curve(len(measured), one.head.angles[0], SHARPNESS)).abs().max().item())
        count += len(measured)
    far = min(reach(curve, sign, length, beta) for length in (5, 32, 128) for beta in (1.0, SHARPNESS))
    return CheckOutcome(
        f"attention by position, within {max(apart):.0e} of the formula, "
        f"which has this shape for all n theta up to {far:.2f}",
        count,
        min(margins),
        min(margins) > 0 and max(apart) <= ROUNDING * SHARPNESS and far >= 2 * torch.pi - STEP,
    )


def u_shape(made: Sequence[Construction], seed: int) -> CheckOutcome:
    return bends(made, positional_weight, 1)


def inverse_u(made: Sequence[Construction], seed: int) -> CheckOutcome:
    return bends(made, symbolic_weight, -1)


def attention_by_position(made: Construction) -> Float[Tensor, " n"]:
    """Measured attention to the right key among the keys before the question, for every position of that key."""
    task = made.task
    assert isinstance(task, LookupTask)
    places = torch.arange(task.length)
    contents = places * task.attributes if isinstance(task, Retrieval) else places * 0
    tokens = torch.cat([contents.expand(task.length, -1), task.contents + places[:, None]], 1)
    logits = last_logits(made.head.transformer(SHARPNESS), tokens)[:, :-1]
    return logits.double().softmax(-1).diagonal()


def last_logits(model: Transformer, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The captured attention logits of the last token, including that of its own key."""
    return capture(model, tokens).placements(0).logits()[:, 0]


def lead(outputs: Float[Tensor, "B V"], answers: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The logit of the right answer minus the largest other one."""
    right = outputs.gather(1, answers[:, None])
    return right.squeeze(1) - outputs.scatter(1, answers[:, None], -torch.inf).amax(1)


def listed(numbers: set[int]) -> str:
    """
    >>> listed({3, 9, 17})
    '3, 9 and 17'
    """
    *most, last = map(str, sorted(numbers))
    return f"{', '.join(most)} and {last}" if most else last
