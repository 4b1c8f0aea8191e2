"""P2, Theorem 3.2: the discrepancy of Index and Retrieval over all inputs, compared with its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.discrepancy import discrepancy, index_bound, index_worst, retrieval_bound, retrieval_worst
from ...tasks import Letter, Number
from ...theory.constructions import Construction, letters_of
from .checks import ROUNDING, CheckOutcome, last_logits


def bounds_hold(made: Sequence[Construction], seed: int) -> CheckOutcome:
    """The discrepancy of the worst input is below the bound: measured on all inputs while they can be listed, then by
    formula."""
    margins, apart, count = [], [], 0
    for one in made:
        measured = [measured_discrepancy(one, all_inputs(one, n)) for n in range(2, one.tokens + 1)]
        worst, bound = worst_and_bound(one, torch.arange(2, max(one.tokens, farthest(one)) + 1))
        apart.append((torch.stack([found.min() for found in measured]) - worst[: len(measured)]).abs().max().item())
        margins.append((bound - worst).min().item())
        count += sum(map(len, measured)) + len(worst) - len(measured)
    return CheckOutcome(
        f"all inputs of up to {max(one.tokens for one in made)} tokens, the worst within {max(apart):.0e} "
        f"of its formula; the formula up to {max(map(farthest, made))} tokens",
        count,
        min(margins),
        min(margins) >= -1e-12 and max(apart) <= ROUNDING,  # met exactly where 1 - cos theta binds
    )


def printed_bounds_fail(made: Sequence[Construction], seed: int) -> CheckOutcome:
    """Some input exceeds the printed bound; shown is the one that exceeds it most, and the lengths at which even the
    worst input does."""
    excess, lines, count = [], [], 0
    for one in made:
        found = []
        for n in range(2, one.tokens + 1):
            tokens, printed = all_inputs(one, n), printed_bound(one, torch.tensor([n])).item()
            measured = measured_discrepancy(one, tokens)
            row = int(measured.argmax())
            found.append((measured[row].item() - printed, measured[row].item(), printed, one.task.decode(tokens[row])))
            count += len(tokens)
        over, largest, printed, text = max(found)
        excess.append(over)
        lines.append(f"{text}  discrepancy {largest:.3f}, printed bound {printed:.3f} (theta {one.head.angles[0]:g})")
        lengths = torch.arange(2, farthest(one) + 1)
        worst, printed = worst_and_bound(one, lengths)[0], printed_bound(one, lengths)
        if (over := worst - printed).max() > 0:
            n, last = int(over.argmax()), lengths[over > 0].max()
            lines.append(
                f"even the worst input of {lengths[n]} tokens: {worst[n]:.4f}, printed bound {printed[n]:.4f} "
                f"(exceeded up to {last} tokens)"
            )
    return CheckOutcome(
        "all inputs; the one with the largest discrepancy is shown",
        count,
        min(excess),
        min(excess) > ROUNDING,
        "\n".join(lines),
    )


def all_inputs(made: Construction, length: int) -> Int[Tensor, "B n"]:
    """Every input that can have a different discrepancy.

    Index: every distance that can be asked for. Retrieval: every sequence of first letters with every query, if some
    token starts with the requested letter and some does not.
    """
    task = made.task
    if isinstance(task, Number):
        letter = task.longest + 1
        tokens = torch.full((length, length), letter)
        tokens[1:, -1] = torch.arange(1, length)
        return tokens
    assert isinstance(task, Letter)
    left, right = letters_of(task)
    targets, pairs = torch.arange(1, 1 + task.letters * task.digits, task.digits), torch.arange(task.vocabulary)
    tokens = torch.cartesian_prod(*[targets] * (length - 1), pairs[1 + task.letters * task.digits :])
    match = left[tokens] == right[tokens[:, -1:]]
    return tokens[match.any(1) & ~match.all(1)]


def measured_discrepancy(made: Construction, tokens: Int[Tensor, "B n"]) -> Float[Tensor, " B"]:
    """The captured discrepancy of each input, for beta = 1."""
    labels = letters_of(made.task)[0][tokens] if isinstance(made.task, Letter) else None
    return discrepancy(last_logits(made.transformer, tokens), labels) / made.beta


def farthest(made: Construction) -> int:
    """The longest input that is checked: for Retrieval the longest with 2 n theta < omega."""
    return math.ceil(math.pi / made.task.letters / made.head.angles[0]) - 1 if isinstance(made.task, Letter) else 1000


def worst_and_bound(made: Construction, lengths: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    angle = made.head.angles[0]
    if isinstance(made.task, Letter):
        letters = made.task.letters
        return retrieval_worst(lengths, angle, letters), retrieval_bound(lengths, angle, letters)
    return index_worst(lengths, angle), index_bound(lengths, angle)


def printed_bound(made: Construction, lengths: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    angle = made.head.angles[0]
    if isinstance(made.task, Letter):
        return retrieval_bound(lengths, angle, made.task.letters, printed=True)
    return index_bound(lengths, angle)
