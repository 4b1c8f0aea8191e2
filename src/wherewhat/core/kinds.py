"""The one rule that names a head, used wherever a head is named."""

from __future__ import annotations

import math

HIGH, LOW = 0.8, 0.2


def kind(positional: float, symbolic: float) -> str:
    """What a head looks at; one that gives its blocks no attention at all has no scores and is unmeasured.

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
