"""One walk over the layers of a trace for everything that is computed from its placement tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .placement import Placement
from .precision import without_autocast
from .trace import Trace, merge

# Neighbouring layers with up to this many elements of contents are processed together.
TOGETHER = 2**21
# Elements of the contents in memory at a time: 64 MB of float32. Larger layers are processed in parts.
LARGEST = 2**24


@dataclass(frozen=True)
class Measure:
    """What to compute from the placement tables of a layer: tensors (B, H, ...), or (B, H, F) if `frequencies`."""

    compute: Callable[[Placement], tuple[Tensor, ...]]
    frequencies: bool = False


@without_autocast
def every_layer(trace: Trace, *measures: Measure) -> list[list[Tensor]]:
    """The tensors of each measure for all layers, stacked along L; NaN where a layer has no such head or frequency.

    The placement tables of a layer are made once for all measures.
    """
    heads = max(layer.queries.shape[1] for layer in trace.attention)
    results: list[defaultdict[int, list[Tensor]]] = [defaultdict(list) for _ in measures]
    for run in trace.runs(TOGETHER):
        placements = (trace.placement_of(part) for part in merge(run).parts(LARGEST))
        computed = [[measure.compute(placement) for measure in measures] for placement in placements]
        for measure, layers, parts in zip(measures, results, zip(*computed, strict=True), strict=True):
            for position, values in enumerate(zip(*parts, strict=True)):
                value = torch.cat(values, dim=1).float()
                value = trace.spread(value, run[0]) if measure.frequencies else value
                padding = (0, 0) * (value.dim() - 2) + (0, heads - value.shape[1])
                value = torch.nn.functional.pad(value, padding, value=torch.nan).cpu()
                layers[position] += value.unflatten(0, (len(run), -1)).unbind(0)
    return [[torch.stack(layers, dim=1) for layers in found.values()] for found in results]
