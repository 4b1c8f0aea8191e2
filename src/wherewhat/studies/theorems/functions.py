"""Checks of the multi-hop paper's basic functions: at every position, composed to hops, without rotation, with ties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...core.discrepancy import discrepancy, temperature
from ...tasks import Letter, Number
from ...theory.constructions import Construction, letters_of
from ...theory.maps import hop_map, index_map, retrieval_map
from .checks import PROMPTS, ROUNDING, CheckOutcome, last_logits, lead

KEYS, WIDTH, ANSWERS = 12, 6, 5  # sizes of the random heads with ties


def equals_function(made: Sequence[Construction], seed: int) -> CheckOutcome:
    """T(sigma) = Index(sigma) or Retrieval(sigma) at every position where the function is defined."""
    margins, count, places = [], 0, 0
    for one in made:
        tokens = one.task.sample(PROMPTS, seed).tokens
        task = one.task
        assert isinstance(task, (Number, Letter))
        mapped, defined = index_map(task, tokens) if isinstance(task, Number) else retrieval_map(task, tokens)
        with torch.no_grad():
            outputs = one.transformer(tokens)[..., : task.vocabulary]
        margins.append(lead(outputs[defined], mapped[defined]).min().item())
        count += int(defined.sum())
        places += defined.numel()
    return CheckOutcome(
        f"the token at every position after one pass, where the function is defined: {count:,} of {places:,} positions",
        count,
        min(margins),
        min(margins) > 0,
    )


def hops_answer(tasks: Sequence[Number | Letter], seed: int) -> CheckOutcome:
    """f_NUM and f_LET give the answer of every sequence."""
    right, count = 0, 0
    for task in tasks:
        drawn = task.sample(8 * PROMPTS, seed)
        right += int((hop_map(task, drawn.tokens) == drawn.answers).sum())
        count += len(drawn.answers)
    return CheckOutcome(
        "the functions composed, on random sequences of 1 to 4 hops", count, right / count - 1, right == count
    )


def constant_without_rotation(made: Sequence[Construction], seed: int) -> CheckOutcome:
    """With theta = 0 the worst discrepancy of Retrieval is 1 - cos omega at every length; that of Index is 0."""
    apart, count = [], 0
    for one in made:
        task = one.task
        tokens = task.sample(PROMPTS, seed).tokens
        found = []
        for length in range(3, tokens.shape[1] + 1):
            seen = tokens[:, -length:]
            if isinstance(task, Letter):
                left, right = letters_of(task)
                wanted = right[seen[:, -1]]
                seen = seen.clone()  # the requested letter and its neighbour are always there
                seen[:, 0] = 1 + task.digits * wanted
                seen[:, 1] = 1 + task.digits * ((wanted + 1) % task.letters)
                seen = seen[left[seen[:, -1]] != wanted]
                logits = last_logits(one.head.transformer(), seen)
                found.append(discrepancy(logits, left[seen]).min().item())
            else:
                found.append(discrepancy(last_logits(one.head.transformer(), seen)).max().item())
            count += len(seen)
        constant = 1 - math.cos(2 * math.pi / task.letters) if isinstance(task, Letter) else 0.0
        apart.append(max(abs(value - constant) for value in found))
    return CheckOutcome(
        f"random inputs of 3 to {max(one.tokens for one in made)} tokens; within {max(apart):.0e} of the constant",
        count,
        ROUNDING - max(apart),
        max(apart) <= ROUNDING,
    )


def softmax_as_hard_attention(seeds: Sequence[int], seed: int) -> CheckOutcome:
    """Lemma F.1 in general: several keys tie for the largest logit, and F is any Lipschitz map of the attended value.

    Hard attention is the mean over tied keys. If F changes by at most the decoding margin over the distance between
    the two outputs, both decode alike; beta follows from the gap, the margin, the values and the Lipschitz constant.
    """
    margins, count = [], 0
    for one in seeds:
        draw = torch.Generator().manual_seed(10_000 * seed + one)
        ties = int(torch.randint(1, KEYS, (1,), generator=draw))
        logits = torch.rand(KEYS, generator=draw, dtype=torch.float64)
        order = torch.randperm(KEYS, generator=draw)
        gap = 0.05 + float(torch.rand(1, generator=draw))
        logits[order[:ties]] = logits.max() + gap
        values = torch.randn(KEYS, WIDTH, generator=draw, dtype=torch.float64)
        matrix = torch.randn(WIDTH, ANSWERS, generator=draw, dtype=torch.float64)

        def decode(attended: torch.Tensor, matrix: torch.Tensor = matrix) -> torch.Tensor:
            return (attended @ matrix).tanh()  # not linear; at most the norm of the matrix times the distance

        hard = decode(values[order[:ties]].mean(0))
        answer = hard.argmax()
        margin = lead(hard[None], answer[None]).item()
        reach = 2 * math.sqrt(2) * values.norm(dim=-1).max().item() * torch.linalg.matrix_norm(matrix, 2).item()
        weight = max(0.75, 1 - 0.5 * margin / reach)  # the share that the tied keys need
        soft = (temperature(gap, KEYS, weight) * logits).softmax(-1)
        margins.append(lead(decode(soft @ values)[None], answer[None]).item())
        count += 1
    return CheckOutcome(
        f"random heads of {KEYS} keys, 1 to {KEYS - 1} of them tied, F = tanh of a random linear map",
        count,
        min(margins),
        min(margins) > 0,
    )
