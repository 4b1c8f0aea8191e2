"""The rule that classifies a head by its two scores, used everywhere."""

from __future__ import annotations

import math

HIGH, LOW = 0.8, 0.2
# A head that puts less of its attention on the blocks than this rests on little attention: its scores are exact, but
# say little about what the head does. docs/results/profiles.md states how the threshold was chosen.
LITTLE = 0.01


def kind(positional: float, symbolic: float) -> str:
    """What a head attends by: "where" (position) or "what" (symbol); one without scores is "unmeasured".

    A head has no scores (NaN) if its blocks receive no attention at all.

    >>> kind(0.97, 0.05), kind(0.1, 0.9), kind(0.99, 0.98), kind(0.6, 0.5)
    ('where', 'what', 'unfocused', 'mixed')
    >>> kind(math.nan, math.nan)
    'unmeasured'
    """
    if math.isnan(positional) or math.isnan(symbolic):
        return "unmeasured"
    if positional >= HIGH and symbolic <= LOW:
        return "where"
    if symbolic >= HIGH and positional <= LOW:
        return "what"
    if positional >= HIGH and symbolic >= HIGH:
        return "unfocused"
    return "mixed"
