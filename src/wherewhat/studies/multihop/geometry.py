"""How a trained head arranges keys and queries: which planes it uses, and their directions on the most used one.

A positional head has the same key for all tokens, and a query that rotates with the requested distance: its keys are
aligned, and its queries form a fan with one direction per distance, spaced by the angle of the plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from ...core.frequency import mean_frequency, pair_use, softmax_mean_frequency
from ...core.scores import frequency_use
from ...core.trace import AttentionLayer
from ...lab import Transformer
from ...results import Result
from ...tasks import Sequences
from ...tracing import capture
from ...tracing.fingerprint import weights_hash

BATCH = 64  # sequences traced at a time
SLOPES = 2048  # tried in each of the two rounds of the search


@dataclass(frozen=True)
class Geometry(Result, file="geometry.json", kind="geometry of heads"):
    """`heads`: one row per head, with the mean frequency ID that it uses, weighted linearly (`mean_frequency`) and as
    in table 1 of the paper (`softmax_mean_frequency`), and, for the plane that it uses most,

    - `concentration`: how far its keys point in one direction (1: all of them do, 0: they are spread evenly),
    - `slope`: the rotation of its queries per step of requested distance, in units of the angle of the plane (a fan
      that looks up distances has 1), and `fan`: how closely the queries follow that slope (1: all of them do).

    `use`: one row per head and frequency, the mean over prompts of the largest logit and of the norm, and as in
    figure 8 the largest product over all pairs of a query and an earlier key (`pairs`, not scaled). `points`: the
    queries and keys, before rotation, on the most used plane.
    """

    heads: pd.DataFrame
    use: pd.DataFrame
    points: pd.DataFrame
    about: dict[str, Any]


def geometry(model: Transformer, sequences: Sequences) -> Geometry:
    """Queries and keys of every head for the last token of sequences, whose paths give the distance it should look.

    >>> sequences = Number().sample(64)                                                # doctest: +SKIP
    >>> geometry(ww.embedded("number"), sequences).heads.query("layer == 1")           # doctest: +SKIP
    """
    trace = capture(model, sequences.tokens)
    used = frequency_use(trace)
    pairs = mean_pair_use(model, sequences)
    largest, norm = used.maximum.mean(0), used.norm.mean(0)  # L H F
    steps = sequences.path[:, 0] - sequences.path[:, 1]
    heads, points = [], []
    for number, layer in enumerate(trace.attention):
        angles = layer.rotation.all_angles()
        queries, keys = contents_on_planes(layer)
        planes = queries.shape[-1]
        most = largest[number, :, :planes].argmax(-1)  # H
        used_queries = queries[:, torch.arange(len(most)), most]  # B H
        used_keys = keys[:, torch.arange(len(most)) * keys.shape[1] // len(most), :-1, most]  # H B T
        slope, fan = slope_of_phases(used_queries, steps)
        mean = mean_frequency(largest[number, :, :planes])
        published = softmax_mean_frequency(pairs[number, :, :planes])
        for head, plane in enumerate(most.tolist()):
            angle = float(angles[plane])
            heads.append(
                {"layer": layer.index, "head": head, "mean_frequency": int(mean[head]), "frequency": plane + 1}
                | {"softmax_mean_frequency": float(published[head])}
                | {"mean_angle": float(angles[int(mean[head]) - 1]), "angle": angle}
                | {"concentration": resultant(used_keys[head].flatten()), "fan": float(fan[head])}
                | {"slope": float(-slope[head]) / angle}
            )
            place, its_keys = {"layer": layer.index, "head": head}, used_keys[head].flatten()
            points.append(_points(used_queries[:, head], "query", steps).assign(**place))
            points.append(_points(its_keys, "key", torch.zeros(len(its_keys))).assign(**place))
    index = np.indices(largest.shape).reshape(3, -1)
    use = {"layer": np.asarray(trace.layers)[index[0]], "head": index[1], "frequency": index[2] + 1}
    use |= {"angle": trace.angles.numpy()[index[0], index[2]]}
    use |= {"largest": largest.flatten().numpy(), "norm": norm.flatten().numpy()}
    use |= {"pairs": pairs.flatten().numpy()}
    about = {"weights": weights_hash(model), "prompts": len(sequences)}
    return Geometry(pd.DataFrame(heads), pd.DataFrame(use), pd.concat(points, ignore_index=True), about)


def mean_pair_use(model: Transformer, sequences: Sequences) -> Float[Tensor, "L H F"]:
    """The curve of figure 8: the mean over sequences of the largest product of any query with an earlier key."""
    total, places = torch.zeros(()), range(sequences.tokens.shape[1])
    for tokens in sequences.tokens.split(BATCH):
        total = total + pair_use(model.trace(tokens, places)).sum(0)
    return total / len(sequences)


def contents_on_planes(layer: AttentionLayer) -> tuple[Complex[Tensor, "B H P"], Complex[Tensor, "B K T P"]]:
    """The last query and all keys before rotation, as one complex number per rotary plane, fastest first."""
    rotation, places = layer.rotation, torch.arange(layer.keys.shape[2], device=layer.keys.device)

    def planes(vectors: Float[Tensor, "B H N D"], at: Int[Tensor, " N"]) -> Complex[Tensor, "B H N P"]:
        back = rotation.rotate(vectors.float(), at, back=True)
        return torch.complex(back[..., rotation.first], back[..., rotation.second])[..., rotation.rotating]

    return planes(layer.queries[:, :, -1:], places[-1:])[:, :, 0], planes(layer.keys, places)


def resultant(points: Complex[Tensor, " N"]) -> float:
    """How far points share one direction, weighted by length: 1 if all do, 0 if they cancel out.

    >>> resultant(torch.tensor([1 + 1j, 2 + 2j])), resultant(torch.tensor([1 + 0j, 0 + 1j, -1 + 0j, 0 - 1j]))
    (1.0, 0.0)
    """
    return float(points.sum().abs() / points.abs().sum())


def slope_of_phases(
    points: Complex[Tensor, "B H"], steps: Int[Tensor, " B"]
) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
    """The rotation per step, between -pi and pi, whose removal best aligns the points of each column, and how well:
    the resultant of the points after rotating them back.

    >>> points = torch.polar(torch.ones(4), -0.3 * torch.tensor([1.0, 2, 5, 9]))
    >>> slope_of_phases(points[:, None], torch.tensor([1, 2, 5, 9]))
    (tensor([-0.3000]...), tensor([1.0000]...))
    """
    points = points.to(torch.complex128)
    centre, reach = torch.zeros(points.shape[1], dtype=torch.float64), torch.pi
    close = torch.zeros(SLOPES, points.shape[1])
    for _ in range(2):
        tried = centre + reach * torch.linspace(-1, 1, SLOPES, dtype=torch.float64)[:, None]  # S H
        back = torch.polar(torch.ones((), dtype=torch.float64), -tried[:, None] * steps[:, None])  # S B H
        close = (points * back).sum(1).abs() / points.abs().sum(0)
        centre, reach = tried.gather(0, close.argmax(0)[None])[0], 2 * reach / SLOPES
    return centre, close.amax(0)


def _points(points: Complex[Tensor, " N"], what: str, steps: Tensor) -> pd.DataFrame:
    return pd.DataFrame({"what": what, "x": points.real, "y": points.imag, "steps": steps.long()})
