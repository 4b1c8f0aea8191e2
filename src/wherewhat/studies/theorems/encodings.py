"""Checks of the third paper: logits as Gram terms, the contraction by a kernel, and the seed of a positional head.

Its text is known to us in part only, so the rows on its propositions are our reading of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.rotation import Rotation
from ...core.spectrum import majorised
from ...core.toeplitz import kernel, square, toeplitz_part
from ...lab.encodings import alibi
from .checks import CheckOutcome

TOKENS, DIM = 12, 8
EXACT = 1e-9


def gram_terms(seeds: Sequence[int], seed: int) -> CheckOutcome:
    """Absolute: the logits of content + position are four Gram terms, and the products of
    sinusoids are Toeplitz. RoPE: they are the real part of the Gram terms of each plane times a Toeplitz kernel."""
    apart = []
    for one in seeds:
        draw = torch.Generator().manual_seed(10_000 * seed + one)
        contents, to_query, to_key = _draws(draw, (TOKENS, DIM), (DIM, DIM), (DIM, DIM))
        phases = torch.arange(TOKENS, dtype=torch.float64)[:, None] * 100.0 ** -torch.arange(0, 1, 2 / DIM)
        places = torch.cat([phases.sin(), phases.cos()], 1)
        whole = (contents + places) @ to_query @ ((contents + places) @ to_key).T
        parts = [left @ to_query @ (right @ to_key).T for left in (contents, places) for right in (contents, places)]
        apart.append((whole - sum(parts)).abs().max().item())
        alone = places @ places.T  # of sinusoids themselves
        apart.append((alone - toeplitz_part(alone)).abs().max().item())
        apart.append(_rope_apart(contents @ to_query, contents @ to_key, draw))
    return CheckOutcome(
        f"random heads of {TOKENS} tokens: the logits equal the sum of their terms within {max(apart):.0e}",
        3 * len(apart),
        EXACT - max(apart),
        max(apart) <= EXACT,
    )


def _rope_apart(queries: Tensor, keys: Tensor, draw: torch.Generator) -> float:
    """The difference between rotated products and Re sum_k (q_k conj k_k) o e^(i angle_k (i - j))."""
    angles = torch.rand(DIM // 2, generator=draw, dtype=torch.float64)
    rotation, at = Rotation.interleaved(angles, DIM), torch.arange(TOKENS)
    whole = _turn(rotation, queries, at) @ _turn(rotation, keys, at).T
    distance = at[:, None] - at
    planes = [torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) for part in (queries, keys)]
    grams = torch.einsum("ik,jk->kij", planes[0], planes[1].conj())
    waves = torch.polar(torch.ones_like(angles), angles)[:, None, None] ** distance
    return (whole - (grams * waves).real.sum(0)).abs().max().item()


def _turn(rotation: Rotation, vectors: Tensor, at: Tensor) -> Tensor:
    phases = at.double()[:, None] * rotation.angles
    planes = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(planes * torch.polar(torch.ones_like(phases), phases)).flatten(-2)


def contracts(seeds: Sequence[int], seed: int) -> CheckOutcome:
    """For positive definite A and the kernel C of several angles: the eigenvalues of A o C lie within those of A and
    are majorised by them, and the condition number does not grow. A single complex frequency changes none of them."""
    margins, same = [], []
    for one in seeds:
        draw = torch.Generator().manual_seed(10_000 * seed + one)
        (factor,) = _draws(draw, (TOKENS, 2 * TOKENS))
        gram = factor @ factor.T
        angles = torch.rand(1 + one % 4, generator=draw, dtype=torch.float64)
        product = gram * square(kernel(angles, TOKENS))
        before, after = (torch.linalg.eigvalsh(matrix).flip(0) for matrix in (gram, product))
        margins += [(before[0] - after[0]).item(), (after[-1] - before[-1]).item()]
        margins.append((before[0] / before[-1] - after[0] / after[-1]).item())
        margins.append(0.0 if bool(majorised(after, before)) else -1.0)
        phases = torch.polar(torch.ones(TOKENS, dtype=torch.float64), angles[0] * torch.arange(TOKENS))
        turned = gram * (phases[:, None] * phases.conj())
        same.append((torch.linalg.eigvalsh(turned).flip(0) - before).abs().max().item())
    return CheckOutcome(
        f"random Gram matrices of {TOKENS} tokens, 1 to 4 angles; one complex frequency changes eigenvalues by "
        f"{max(same):.0e}",
        len(margins),
        min(margins),
        min(margins) >= -EXACT and max(same) <= EXACT * 100,
    )


def _draws(draw: torch.Generator, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def rope_seeds(seeds: Sequence[int], seed: int) -> CheckOutcome:
    """On contents without any difference, the batch mean, the gradient of a RoPE head's query weights is not 0."""
    norms = [gradient_on_equal_contents(10_000 * seed + one, rope=True) for one in seeds]
    return CheckOutcome(
        "random heads and losses by distance, all contents equal: norm of the gradient of the query weights",
        len(norms),
        min(norms),
        min(norms) > 1e-6,
    )


def alibi_cancels(seeds: Sequence[int], seed: int) -> CheckOutcome:
    """There the gradient of a head with an additive bias is 0: each row of the softmax's gradient sums to 0."""
    norms = [gradient_on_equal_contents(10_000 * seed + one, rope=False) for one in seeds]
    return CheckOutcome(
        f"the same with ALiBi instead of rotation: the gradient is at most {max(norms):.0e}",
        len(norms),
        EXACT - max(norms),
        max(norms) <= EXACT,
    )


def gradient_on_equal_contents(seed: int, rope: bool) -> float:
    """The norm of the gradient of a loss that depends on attention by distance, with one content at every position."""
    draw = torch.Generator().manual_seed(seed)
    content, to_query, to_key = _draws(draw, (1, DIM), (DIM, DIM), (DIM, DIM))
    by_distance = square(*_draws(draw, (TOKENS,), (TOKENS,)))
    to_query = (0.1 * to_query).requires_grad_()
    contents, at = content.expand(TOKENS, -1), torch.arange(TOKENS)
    queries, keys = contents @ to_query, contents @ to_key
    if rope:
        rotation = Rotation.interleaved(torch.rand(DIM // 2, generator=draw, dtype=torch.float64), DIM)
        logits = _turn(rotation, queries, at) @ _turn(rotation, keys, at).T
    else:
        logits = queries @ keys.T + alibi(8, TOKENS)[0].double()
    (logits.softmax(-1) * by_distance).sum().backward()
    assert to_query.grad is not None
    return to_query.grad.norm().item()
