"""Four heads built by hand, measured through a real forward pass, beside the scores that theory gives them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..capture import capture
from ..core.kinds import kind
from ..core.measure import entropy, exclusion, score
from ..theory import handmade

# Theory and measurement are both exact; what separates them is the rounding of a float32 forward pass.
AGREEMENT = 1e-4


@dataclass(frozen=True)
class DemoHead:
    built_as: str
    kind: str
    positional: float
    symbolic: float
    theory_positional: float
    theory_symbolic: float
    entropy: float
    variance: float
    exclusion_bound: float

    @property
    def difference(self) -> float:
        return max(abs(self.positional - self.theory_positional), abs(self.symbolic - self.theory_symbolic))

    @property
    def as_theory_says(self) -> bool:
        return self.difference <= AGREEMENT and self.variance <= self.exclusion_bound * (1 + 1e-5)


def demo(prompts: int = 8, seed: int = 0) -> tuple[list[DemoHead], dict[str, float]]:
    """Every head of the handmade model, and the deviations that the self-check found."""
    made = handmade.build(seed)
    ids = handmade.prompts(prompts, seed)
    trace = capture(made.model, ids)
    scores, bounds = score(trace), exclusion(trace)
    theory = torch.stack([made.theory(prompt) for prompt in ids]).mean(0)
    measured = torch.stack([scores.positional, scores.symbolic, entropy(trace), bounds.variance, bounds.bound])
    heads = []
    for head, name in enumerate(handmade.HEADS):
        positional, symbolic, spread, variance, bound = measured[:, :, 0, head].mean(1).tolist()
        heads.append(
            DemoHead(
                built_as=name,
                kind=kind(positional, symbolic),
                positional=positional,
                symbolic=symbolic,
                theory_positional=theory[head, 0].item(),
                theory_symbolic=theory[head, 1].item(),
                entropy=spread,
                variance=variance,
                exclusion_bound=bound,
            )
        )
    return heads, dict(trace.check)
