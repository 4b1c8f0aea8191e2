"""How position turns a head's queries and keys: which dimensions form a plane, and how fast each plane turns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Pairs of head dimensions that turn together, one angle a pair; all other dimensions stay still.

    Convention, fixed here: the plane (x[first], x[second]) of a key at position p is the content's plane turned
    counter-clockwise by angle * p. Planes that turn the other way have negative angles.

    >>> Rotation.half_split(torch.tensor([1.0, 0.01]), head_dim=6)    # GPT-NeoX style, dimensions 4 and 5 stay still
    Rotation(half-split, 2 planes over dimensions 0-3 of 6)
    """

    angles: Float[Tensor, " F"]
    head_dim: int
    start: int = 0
    layout: str = "half-split"

    @staticmethod
    def half_split(angles: Float[Tensor, " F"], head_dim: int, start: int = 0) -> Rotation:
        """Dimension start + k turns with dimension start + k + F (Llama, GPT-NeoX)."""
        return Rotation(angles, head_dim, start, "half-split")

    @staticmethod
    def interleaved(angles: Float[Tensor, " F"], head_dim: int, start: int = 0) -> Rotation:
        """Dimension start + 2k turns with its neighbour start + 2k + 1 (GPT-J, Cohere)."""
        return Rotation(angles, head_dim, start, "interleaved")

    @staticmethod
    def none(head_dim: int, device: torch.device | str = "cpu") -> Rotation:
        """No dimension turns: NoPE, ALiBi."""
        return Rotation(torch.empty(0, device=device), head_dim, 0, "none")

    @property
    def planes(self) -> int:
        return len(self.angles)

    @property
    def stop(self) -> int:
        """One past the last turning dimension."""
        return self.start + 2 * self.planes

    @property
    def first(self) -> slice:
        """The first dimension of every plane."""
        if self.layout == "interleaved":
            return slice(self.start, self.stop, 2)
        return slice(self.start, self.start + self.planes)

    @property
    def second(self) -> slice:
        """The second dimension of every plane."""
        if self.layout == "interleaved":
            return slice(self.start + 1, self.stop, 2)
        return slice(self.start + self.planes, self.stop)

    @property
    def still(self) -> list[int]:
        """The dimensions that do not turn."""
        return [*range(self.start), *range(self.stop, self.head_dim)]

    @property
    def frequencies(self) -> int:
        """Entries on the F axis: one a plane, and one for all dimensions that do not turn, if there are any."""
        return self.planes + bool(self.still)

    def all_angles(self) -> Float[Tensor, " G"]:
        """The angle of every entry of the F axis; 0 for the dimensions that do not turn."""
        return torch.cat([self.angles.float(), self.angles.new_zeros(self.frequencies - self.planes).float()])

    def to(self, device: torch.device | str) -> Rotation:
        return replace(self, angles=self.angles.to(device))

    def phases(self, positions: Int[Tensor, " N"]) -> Float[Tensor, "N F"]:
        """The turn of every plane at every position, rounded like the models round it: a float32 product."""
        return positions.float()[:, None] * self.angles.float()

    def wave(self, positions: Int[Tensor, " N"]) -> Float[Tensor, "N G 2"]:
        """(cos, sin) of each entry of the F axis at each position: the place's half of the placement table."""
        phases = self.phases(positions)
        wave = torch.stack([phases.cos(), phases.sin()], dim=-1)
        resting = wave.new_tensor([1.0, 0.0]).expand(len(positions), self.frequencies - self.planes, 2)
        return torch.cat([wave, resting], dim=1)

    def turn(
        self, vectors: Float[Tensor, "... N D"], positions: Int[Tensor, " N"], back: bool = False
    ) -> Float[Tensor, "... N D"]:
        """Turn contents to their positions, or turn what stands there back into contents.

        >>> rotation = Rotation.interleaved(torch.tensor([0.5]), head_dim=2)
        >>> rotation.turn(torch.tensor([[1.0, 0.0]]), torch.tensor([2]))      # by 1 radian
        tensor([[0.5403, 0.8415]])
        """
        phases = self.phases(positions)
        cos, sin = phases.cos(), -phases.sin() if back else phases.sin()
        x, y = vectors[..., self.first], vectors[..., self.second]
        turned = vectors.clone()
        turned[..., self.first] = x * cos - y * sin
        turned[..., self.second] = x * sin + y * cos
        return turned

    def couple(
        self,
        query: Float[Tensor, "B H D"],
        keys: Float[Tensor, "B K N D"],
        positions: Int[Tensor, " N"],
    ) -> Float[Tensor, "B H N G 2"]:
        """What content a offers the query on each plane: c with logit(a at b) = Re c[a] * exp(-i * angle * b).

        `query` and `keys` are as captured, already turned; with z for a plane as a complex number,
        c[a] = conj(key[a]) * exp(i * angle * a) * query. Grouped keys serve H / K query heads each.
        """
        phases = self.phases(positions)
        cos, sin = phases.cos(), phases.sin()
        x, y = keys[..., self.first], keys[..., self.second]
        x, y = x * cos + y * sin, y * cos - x * sin  # the contents, turned back
        x, y = x[:, :, None], y[:, :, None]  # B K 1 N F
        grouped = query.unflatten(1, (keys.shape[1], -1))[:, :, :, None]  # B K G 1 D
        u, v = grouped[..., self.first], grouped[..., self.second]
        coupling = query.new_zeros(*grouped.shape[:3], keys.shape[2], self.frequencies, 2)
        coupling[..., : self.planes, 0] = (x * u).addcmul_(y, v)
        coupling[..., : self.planes, 1] = (x * v).addcmul_(y, u, value=-1)
        for rest in (slice(0, self.start), slice(self.stop, self.head_dim)):
            if rest.start < rest.stop:
                coupling[..., -1, 0] += (grouped[..., rest] @ keys[:, :, None, :, rest].mT).squeeze(-2)
        return coupling.flatten(1, 2)

    def __repr__(self) -> str:
        if not self.planes:
            return "Rotation(none)"
        span = f"dimensions {self.start}-{self.stop - 1} of {self.head_dim}"
        return f"Rotation({self.layout}, {self.planes} planes over {span})"
