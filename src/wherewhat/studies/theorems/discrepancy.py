"""Figure 5A of the paper on learning dynamics: how the discrepancy of Index and Retrieval shrinks with length.

The heads of Theorem 3.1 are run in float64 at every length. The inputs include those that are worst in theory; the
measured discrepancies stand beside the bounds as printed and as corrected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ...core.discrepancy import discrepancy, index_bound, retrieval_bound
from ...lab import Transformer
from ...tasks import Letter
from ...theory.constructions import letters_of, t_retrieval, turned
from ...theory.head import Head
from ...tracing import capture

INDEX_ANGLE, RETRIEVAL_ANGLE, LETTERS = 0.8, 0.0027, 8  # the figure's
LONGEST = 5000
LENGTHS = (*range(2, 21), *range(25, 101, 5), *range(120, 201, 20), *range(300, 1001, 100), *range(1500, 5001, 500))
INPUTS = 12  # per length, including the worst ones


def discrepancy_curves(lengths: Sequence[int] = LENGTHS, inputs: int = INPUTS, seed: int = 0) -> pd.DataFrame:
    """Smallest and largest discrepancy over the inputs tried, and both bounds: one row per mechanism, angle and length.

    With the angle of the figure, Retrieval works only up to 2 n theta = omega, where its rows end. With a second
    angle, half of the limit for 5,000 tokens, they reach that length.

    >>> discrepancy_curves([9]).filter(["mechanism", "smallest", "bound"])                # doctest: +SKIP
    """
    draw = torch.Generator().manual_seed(seed)
    slow = math.pi / LETTERS / 2 / LONGEST
    rows = []
    for length in lengths:
        at = torch.tensor(length)
        found = index_at(length, INDEX_ANGLE, inputs, draw)
        bound = index_bound(at, INDEX_ANGLE).item()
        rows.append(_row("index", INDEX_ANGLE, length, found, bound, bound))
        for angle in (RETRIEVAL_ANGLE, slow):
            if length > 2 and 2 * length * angle < 2 * math.pi / LETTERS:
                found = retrieval_at(length, angle, inputs, draw)
                bound, printed = (retrieval_bound(at, angle, LETTERS, printed).item() for printed in (False, True))
                rows.append(_row("retrieval", angle, length, found, bound, printed))
    return pd.DataFrame(rows)


def index_at(length: int, angle: float, inputs: int, draw: torch.Generator) -> Float[Tensor, " B"]:
    """T_Index on letters followed by an integer, which asks for the nearest, the farthest and random letters."""
    others = torch.randint(1, length, (max(0, inputs - 2),), generator=draw)
    asked = torch.cat([torch.tensor([1, length - 1]), others])
    steps = torch.cat(
        [torch.tensor([0]), asked]
    ).double()  # token 0 is the letter, each other token asks for one distance
    head = Head((angle,), turned(-angle * steps), turned(0 * steps), torch.eye(len(steps)))
    tokens = torch.zeros(len(asked), length, dtype=torch.long)
    tokens[:, -1] = torch.arange(1, len(steps))
    return discrepancy(exact_logits(head.transformer(), tokens))


def retrieval_at(length: int, angle: float, inputs: int, draw: torch.Generator) -> Float[Tensor, " B"]:
    """T_Retrieval on random inputs and on the worst one: the letter before the requested one is farthest, the
    requested letter is one step closer.

    Needs at least 3 tokens: these two and the query.
    """
    task = Letter(targets=length - 2, pretargets=1, letters=LETTERS, digits=1, most_hops=1)
    made = t_retrieval(task, angle)
    asked = int(torch.randint(1, LETTERS, (1,), generator=draw))
    far = torch.full((length - 1,), (asked + LETTERS // 2) % LETTERS)
    far[:2] = torch.tensor([asked - 1, asked])
    drawn = torch.randint(LETTERS, (inputs - 1, length - 1), generator=draw)
    drawn[:, :2] = torch.tensor([asked, (asked + 1) % LETTERS])  # at least one match and one competitor
    first = torch.cat([far[None], drawn.gather(1, torch.rand(drawn.shape, generator=draw).argsort(1))])
    query = 1 + LETTERS + asked  # the pair of the first letter and the requested one
    tokens = torch.cat([1 + first, torch.full((len(first), 1), query)], 1)
    labels = letters_of(task)[0][tokens]
    return discrepancy(exact_logits(made.head.transformer(), tokens), labels)


def exact_logits(model: Transformer, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The logits of the last token in the model's own precision: at 5,000 tokens rotation in float32 is too coarse."""
    layer = capture(model, tokens).attention[0]
    return (layer.queries @ layer.keys.mT)[:, 0, 0] * layer.scaling


def _row(
    mechanism: str, angle: float, length: int, found: Shaped[Tensor, " B"], bound: float, printed: float
) -> dict[str, str | float | int]:
    tried = {"inputs": len(found), "smallest": found.min().item(), "largest": found.max().item()}
    return {"mechanism": mechanism, "angle": angle, "length": length} | tried | {"bound": bound, "printed": printed}
