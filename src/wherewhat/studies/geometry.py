"""How a trained head holds its keys and queries: which planes it uses, and how they stand on the one it uses most.

A positional head has one key for all tokens and a query that turns with the distance asked for: its keys are aligned,
its queries a fan, one blade a distance, as far apart as the plane turns in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from ..capture import capture
from ..core.frequency import mean_frequency
from ..core.measure import frequency_use
from ..core.trace import AttentionLayer
from ..files import write_tables
from ..lab import Transformer
from ..tasks import Sequences

SLOPES = 2048  # tried in each of the two rounds of the search for the best


@dataclass(frozen=True)
class Geometry:
    """`heads`: a row a head, with the mean frequency that it uses and, of the plane that it uses most,

    - `concentration`: how far its keys point one way (1: all of them, 0: evenly all around),
    - `slope`: the turn of its queries for each further step asked for, in units of the plane's own angle (a fan that
      looks up distances has 1), and `fan`: how far the queries keep to that slope (1: all of them).

    `use`: a row a head and frequency, the mean over prompts of the largest logit and of the norm. `points`: queries
    and keys themselves, without their positions, on the plane used most.
    """

    heads: pd.DataFrame
    use: pd.DataFrame
    points: pd.DataFrame

    def save(self, folder: str | Path) -> None:
        write_tables(folder, vars(self))

    @staticmethod
    def load(folder: str | Path) -> Geometry:
        return Geometry(*(pd.read_parquet(Path(folder) / f"{name}.parquet") for name in ("heads", "use", "points")))


def geometry(model: Transformer, sequences: Sequences) -> Geometry:
    """Queries and keys of every head, seen from the last token of sequences whose paths say how far it should look.

    >>> sequences = Number().sample(64)                                                # doctest: +SKIP
    >>> geometry(ww.embedded("number"), sequences).heads.query("layer == 1")           # doctest: +SKIP
    """
    trace = capture(model, sequences.tokens)
    used = frequency_use(trace)
    largest, norm = used.maximum.mean(0), used.norm.mean(0)  # L H F
    steps = sequences.path[:, 0] - sequences.path[:, 1]
    heads, points = [], []
    for number, layer in enumerate(trace.attention):
        angles = layer.rotation.all_angles()
        queries, keys = contents_on_planes(layer)
        planes = queries.shape[-1]
        most = largest[number, :, :planes].argmax(-1)  # H
        asked = queries[:, torch.arange(len(most)), most]  # B H
        offered = keys[:, torch.arange(len(most)) * keys.shape[1] // len(most), :-1, most]  # H B T
        slope, fan = slope_of_phases(asked, steps)
        mean = mean_frequency(largest[number, :, :planes])
        for head, plane in enumerate(most.tolist()):
            angle = float(angles[plane])
            heads.append(
                {"layer": layer.index, "head": head, "mean_frequency": int(mean[head]), "frequency": plane + 1}
                | {"mean_angle": float(angles[int(mean[head]) - 1]), "angle": angle}
                | {"concentration": resultant(offered[head].flatten()), "fan": float(fan[head])}
                | {"slope": float(-slope[head]) / angle}
            )
            stands = {"layer": layer.index, "head": head}
            points.append(_points(asked[:, head], "query", steps).assign(**stands))
            points.append(_points(offered[head].flatten(), "key", torch.zeros(offered[head].numel())).assign(**stands))
    index = np.indices(largest.shape).reshape(3, -1)
    use = {"layer": np.asarray(trace.layers)[index[0]], "head": index[1], "frequency": index[2] + 1}
    use |= {"angle": trace.angles.numpy()[index[0], index[2]]}
    use |= {"largest": largest.flatten().numpy(), "norm": norm.flatten().numpy()}
    return Geometry(pd.DataFrame(heads), pd.DataFrame(use), pd.concat(points, ignore_index=True))


def contents_on_planes(layer: AttentionLayer) -> tuple[Complex[Tensor, "B H P"], Complex[Tensor, "B K T P"]]:
    """The last query and all keys without their positions, a complex number a turning plane, fastest first."""
    rotation, places = layer.rotation, torch.arange(layer.keys.shape[2], device=layer.keys.device)

    def planes(vectors: Float[Tensor, "B H N D"], at: Int[Tensor, " N"]) -> Complex[Tensor, "B H N P"]:
        back = rotation.turn(vectors.float(), at, back=True)
        return torch.complex(back[..., rotation.first], back[..., rotation.second])[..., rotation.turning]

    return planes(layer.queries[:, :, -1:], places[-1:])[:, :, 0], planes(layer.keys, places)


def resultant(points: Complex[Tensor, " N"]) -> float:
    """How far points keep to one direction, each counted by its length: 1 if all do, 0 if they cancel out.

    >>> resultant(torch.tensor([1 + 1j, 2 + 2j])), resultant(torch.tensor([1 + 0j, 0 + 1j, -1 + 0j, 0 - 1j]))
    (1.0, 0.0)
    """
    return float(points.sum().abs() / points.abs().sum())


def slope_of_phases(
    points: Complex[Tensor, "B H"], steps: Int[Tensor, " B"]
) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
    """The turn a step, between -pi and pi, that brings the points of each column closest to one direction, and how
    close: the resultant once each is turned back by it.

    >>> turned = torch.polar(torch.ones(4), -0.3 * torch.tensor([1.0, 2, 5, 9]))
    >>> slope_of_phases(turned[:, None], torch.tensor([1, 2, 5, 9]))
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
