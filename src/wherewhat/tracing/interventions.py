"""How a gate changes one call of attention: it drops or freezes frequencies before, and replaces head outputs after.

A frequency is dropped by a multiplication of the queries. It is frozen by undoing the rotation of queries and keys.
Heads stream through the mask (`windows`). The attention function in between is the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.rotation import Rotation
from ..errors import NotMeasurable
from .windows import Window


@dataclass(frozen=True)
class Site:
    """One call of attention: the layer it belongs to, and how position acts on its heads."""

    layer: int
    heads: int
    rotation: Rotation
    stretch: Tensor | None = None

    @property
    def planes(self) -> int:
        """The number of rotary planes."""
        return len(self.rotation.rotating)

    @property
    def frequency_ids(self) -> list[int]:
        """The F axis, as in a trace: 1 is the fastest, a last 0 stands for the non-rotary dimensions."""
        return [*range(1, self.planes + 1), *([0] if self.rotation.has_non_rotary else [])]

    def by_dimension(self, chosen: Bool[Tensor, "H F"]) -> Bool[Tensor, "H D"]:
        """A selection of entries of the F axis, as a selection of dimensions of the head.

        >>> site = Site(0, 1, Rotation.half_split(torch.tensor([1.0, 0.1]), head_dim=5))
        >>> site.by_dimension(torch.tensor([[True, False, False]])).long()
        tensor([[1, 0, 1, 0, 0]])
        """
        dimensions = range(self.rotation.head_dim)
        entry = torch.full((self.rotation.head_dim,), self.planes, device=chosen.device)
        for frequency, plane in enumerate(self.rotation.rotating):
            for side in (self.rotation.first, self.rotation.second):
                entry[dimensions[side][plane]] = frequency
        return chosen[:, entry]


@dataclass(frozen=True)
class Change:
    """What is selected at a site. `outputs` replace the outputs of ablated heads; zeros unless given. The heads of
    `window` stream."""

    dropped: Bool[Tensor, "H F"]
    frozen: Bool[Tensor, "H F"]
    ablated: Bool[Tensor, " H"]
    outputs: Float[Tensor, "H E"] | None = None
    window: Window | None = None


class Intervention:
    """All changes at a site combined, by dimension of its heads."""

    def __init__(self, site: Site, changes: Sequence[Change]) -> None:
        dropped, frozen, ablated = (
            torch.stack([getattr(change, name) for change in changes]).any(0)
            for name in ("dropped", "frozen", "ablated")
        )
        self.rotation, self.stretch = site.rotation, site.stretch
        self.windows = [change.window for change in changes if change.window is not None]
        self.passing = ~site.by_dimension(dropped)[:, None] if dropped.any() else None  # H 1 D
        self.frozen = site.by_dimension(frozen & ~dropped)[:, None] if (frozen & ~dropped).any() else None
        self.ablated = ablated[:, None, None] if ablated.any() else None
        self.outputs = torch.zeros(site.heads, 1, device=ablated.device)
        for change in changes:  # the last change that ablates a head determines its output
            output = self.outputs.new_zeros(1) if change.outputs is None else change.outputs.to(self.outputs)
            self.outputs = torch.where(change.ablated[:, None], output, self.outputs)

    def enter(
        self,
        query: Float[Tensor, "B H Q D"],
        key: Float[Tensor, "B K T D"],
        positions: Int[Tensor, "#B Q"] | None = None,
    ) -> tuple[Float[Tensor, "B H Q D2"], Float[Tensor, "B K T D2"]]:
        """The changed queries and keys, or the given ones if nothing changes.

        `positions` are those of the queries, if they were passed to the model.
        """
        if self.passing is not None:
            self.passing = self.passing.to(query)
            query = query * self.passing
        if self.frozen is None:
            return query, key
        return self._freeze(query, key, self.frozen.to(query.device), positions)

    def leave(self, output: Float[Tensor, "B H Q E"]) -> Float[Tensor, "B H Q E"]:
        """The outputs of the heads, replaced where a head is ablated."""
        if self.ablated is None:
            return output
        return torch.where(self.ablated.to(output.device), self.outputs[:, None].to(output), output)

    def _freeze(
        self,
        query: Float[Tensor, "B H Q D"],
        key: Float[Tensor, "B K T D"],
        frozen: Bool[Tensor, "H 1 D"],
        positions: Int[Tensor, "#B Q"] | None,
    ) -> tuple[Float[Tensor, "B H Q D2"], Float[Tensor, "B K T D2"]]:
        """Undo the rotation of the frozen planes.

        If heads share keys but differ in what is frozen, the keys hold both versions of these planes side by side, and
        the queries of each head are zero in the version that it does not use: keys are not copied for each head.
        """
        if self.stretch is not None:
            query, key = query * self.stretch.to(query), key / self.stretch.to(key)
        at, places = key_positions(query.shape[2], key.shape[2], positions, key.device)
        still_query, still_key = self._rotated_back(query, at), self._rotated_back(key, places)
        by_group = frozen.unflatten(0, (key.shape[1], -1))  # K G 1 D
        if torch.equal(by_group.any(1), by_group.all(1)):
            return torch.where(frozen, still_query, query), torch.where(by_group[:, 0], still_key, key)
        some = frozen.any(0)[0]
        query = torch.cat([query * ~frozen, (still_query * frozen)[..., some]], -1)
        return query, torch.cat([key, still_key[..., some]], -1)

    def _rotated_back(
        self, vectors: Float[Tensor, "B any N D"], positions: Int[Tensor, "R N"]
    ) -> Float[Tensor, "B any N D"]:
        parts = vectors.float().split(1 if len(positions) > 1 else len(vectors))
        rotated = [self.rotation.rotate(part, row, back=True) for part, row in zip(parts, positions, strict=True)]
        return torch.cat(rotated).to(vectors)


def key_positions(
    queries: int, keys: int, positions: Int[Tensor, "#B Q"] | None, device: torch.device
) -> tuple[Int[Tensor, "R Q"], Int[Tensor, "R T"]]:
    """Positions of queries and keys, one row per prompt, or one for all. Keys from a cache are taken as consecutive.

    Keys that were cached at other positions would be rotated back wrongly, except for padding, which is masked.
    """
    if positions is None:
        places = torch.arange(keys, device=device)[None]
        return places[:, keys - queries :], places
    positions = positions.to(device)
    positions = positions[:1] if bool((positions == positions[:1]).all()) else positions
    if keys == queries:
        return positions, positions
    if bool((positions.diff(dim=-1) != 1).any()):
        raise NotMeasurable(
            "with a cache, frequencies can be frozen only where the positions of the tokens are consecutive"
        )
    return positions, positions[:, -1:] - torch.arange(keys, device=device).flip(0)
