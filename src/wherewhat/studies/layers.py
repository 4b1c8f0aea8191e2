"""Layers as people write them."""

from __future__ import annotations

from collections.abc import Iterable


def name_layers(layers: Iterable[int]) -> str:
    """Runs of layers as people write them.

    >>> name_layers((0, 1, 2, 5)), name_layers((3,))
    ('layers 0-2, 5', 'layer 3')
    """
    distinct = sorted(set(layers))
    runs: list[list[int]] = []
    for layer in distinct:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'s' if len(distinct) > 1 else ''} {listed}"
