"""How each kind of theorem is checked: on which instances, with what to spare.

A check takes its subjects (constructions, pure heads, traces) as an argument, so that a broken one makes it fail.
Margins are positive where a theorem holds with something to spare, and 0 where it is met exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..capture import capture
from ..core.discrepancy import discrepancy
from ..core.measure import exclusion
from ..core.trace import Trace
from ..lab import Transformer
from ..tasks import LookupTask, Retrieval, Sequences
from ..theory.constructions import PROMISED, Construction, Task
from ..theory.curves import STEP, Curve, fall_to_the_middle, positional_weight, reach, symbolic_weight
from ..theory.witness import ALIKE, Kind, exchanged, find_witness, say

PROMPTS = 512  # a construction
ROUNDING = 4e-6  # of logits in units of the largest: traces hold phases, here of up to 33 radians, in float32
SHARPNESS = 5.0  # the inverse temperature at which the curves of Theorem 7 are measured


class Finding(NamedTuple):
    method: str
    instances: int
    margin: float
    passed: bool
    shown: str = ""


class PureHead(NamedTuple):
    model: Transformer
    task: Task
    kind: Kind


def solves(made: Sequence[Construction], seed: int) -> Finding:
    """Every answer right, through a real forward pass; the logits are those of the formula."""
    margins, apart = [], []
    for one in made:
        drawn = one.task.sample(PROMPTS, seed)
        logits = last_logits(one.transformer, drawn.tokens) / one.beta
        apart.append((logits - one.formula(drawn.tokens)).abs().max().item())
        margins.append(decoding_margin(one, drawn.tokens, drawn.answers))
    return Finding(
        f"all answers right, random prompts of {listed({one.tokens for one in made})} tokens; "
        f"logits within {max(apart):.0e} of the formula",
        PROMPTS * len(made),
        min(margins),
        min(margins) > 0 and max(apart) <= ROUNDING,
    )


def decoding_margin(made: Construction, tokens: Int[Tensor, "B T"], answers: Int[Tensor, " B"]) -> float:
    """By how much the right answer beats all others, after one pass a hop; on the way, the winner any other."""
    margin = torch.inf
    with torch.no_grad():
        for _ in range(made.passes - 1):
            output = made.transformer(tokens)
            tokens, margin = output.argmax(-1), min(margin, discrepancy(output[:, -1]).min().item())
        return min(margin, lead(made.transformer(tokens, last=True)[:, 0], answers).min().item())


def keeps_promise(made: Sequence[Construction], seed: int) -> Finding:
    """Lemma F.1: softmax at the temperature of the gap gives the right key the weight promised."""
    weights = []
    for one in made:
        drawn = one.task.sample(PROMPTS, seed)
        places = drawn.path[:, 1] if isinstance(drawn, Sequences) else drawn.places
        rows = capture(one.transformer, drawn.tokens).attention_rows(0)[:, 0]
        weights.append(rows.gather(1, places[:, None]).min().item())
    margin = min(weights) - PROMISED
    return Finding("attention of every construction", PROMPTS * len(made), margin, margin >= -ROUNDING)


def must_fail(heads: Sequence[PureHead], seed: int) -> Finding:
    """A pure head says the same on both inputs of every pair, and so is wrong at least once."""
    margins, apart, impure, count = [], 0.0, 0.0, 0
    for model, task, kind in heads:
        pairs = exchanged(task, kind, PROMPTS, seed)
        outputs = say(model, pairs)
        leads = lead(outputs.flatten(0, 1), pairs.answers.flatten()).unflatten(0, (2, -1))
        margins.append(-leads.amin(0).max().item())
        apart = max(apart, outputs.diff(dim=0).abs().max().item())
        sides = exclusion(capture(model, pairs.tokens[0]))
        deviation = sides.positional_deviation if kind == "where" else sides.symbolic_deviation
        impure = max(impure, (deviation / (1 + sides.variance)).max().item())
        count += len(pairs.answers[0])
    first = {(task, kind): PureHead(model, task, kind) for model, task, kind in reversed(heads)}
    shown = (str(find_witness(*head, seed)) for head in reversed(first.values()))
    return Finding(
        f"pairs of inputs that {len(heads)} pure heads cannot tell apart: outputs {apart:.0e} apart, one wrong",
        count,
        min(margins),
        min(margins) >= -ALIKE and apart <= ALIKE and impure <= ROUNDING,
        "\n\n".join(shown),
    )


def excludes(traces: Sequence[Trace], seed: int) -> Finding:
    """Theorem 1 as stated, on all orders of the keys, beside the two sums over the placement table."""
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
    return Finding(
        f"random heads, all orders of {traces[0].keys} keys; the closed form within {max(apart):.0e}",
        count,
        min(margins),
        min(margins) >= 0 and max(apart) <= 1e-4,
    )


def excludes_in_models(traces: Sequence[Trace], seed: int) -> Finding:
    """The closed form on every head of every trace."""
    sides = [exclusion(trace) for trace in traces]
    margin = min((1 - side.variance / side.bound).min().item() for side in sides)
    heads = sum(side.bound[0].numel() for side in sides)
    return Finding(
        f"all {heads} heads of the embedded models, {traces[0].batch} sequences each",
        sum(side.bound.numel() for side in sides),
        margin,
        margin >= -ROUNDING,
    )


def bends(made: Sequence[Construction], curve: Curve, sign: int) -> Finding:
    """A U (sign 1) or an inverse U (-1) in the measured attention, and how far it reaches in the formula."""
    margins, apart, count = [], [], 0
    for one in made:
        measured = weight_by_place(one)
        margins.append(fall_to_the_middle(sign * measured))
        apart.append((measured - curve(len(measured), one.head.angles[0], SHARPNESS)).abs().max().item())
        count += len(measured)
    far = min(reach(curve, sign, length, beta) for length in (5, 32, 128) for beta in (1.0, SHARPNESS))
    return Finding(
        f"attention by place, within {max(apart):.0e} of the formula; that for all n theta up to {far:.2f}",
        count,
        min(margins),
        min(margins) > 0 and max(apart) <= ROUNDING * SHARPNESS and far >= 2 * torch.pi - STEP,
    )


def u_shape(made: Sequence[Construction], seed: int) -> Finding:
    return bends(made, positional_weight, 1)


def inverse_u(made: Sequence[Construction], seed: int) -> Finding:
    return bends(made, symbolic_weight, -1)


def weight_by_place(made: Construction) -> Float[Tensor, " n"]:
    """Measured attention on the right key among the keys before the question, for every place it may have."""
    task = made.task
    assert isinstance(task, LookupTask)
    places = torch.arange(task.length)
    contents = places * task.attributes if isinstance(task, Retrieval) else places * 0
    tokens = torch.cat([contents.expand(task.length, -1), task.contents + places[:, None]], 1)
    logits = last_logits(made.head.transformer(SHARPNESS), tokens)[:, :-1]
    return logits.double().softmax(-1).diagonal()


def last_logits(model: Transformer, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The logits of the last token, its own key among them, as a capture of the model gives them."""
    return capture(model, tokens).placements(0).logits()[:, 0]


def lead(outputs: Float[Tensor, "B V"], answers: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """By how much the right answer beats all others."""
    right = outputs.gather(1, answers[:, None])
    return right.squeeze(1) - outputs.scatter(1, answers[:, None], -torch.inf).amax(1)


def listed(numbers: set[int]) -> str:
    """
    >>> listed({3, 9, 17})
    '3, 9 and 17'
    """
    *most, last = map(str, sorted(numbers))
    return f"{', '.join(most)} and {last}" if most else last
