"""How position turns a head's queries and keys: which dimensions form a plane, and how fast each plane turns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Pairs of head dimensions that turn together, one angle a pair, and the dimensions that do not turn.

    Convention, fixed here: the plane (x[first], x[second]) of a key at position p is the content's plane turned
    counter-clockwise by angle * p. A layout whose planes turn the other way has negative angles.

    >>> Rotation.half_split(torch.tensor([1.0, 0.01]), head_dim=6)    # GPT-NeoX style, dimensions 4 and 5 stay still
    Rotation(half-split, 2 planes over dimensions 0-3, 2 still)
    """

    first: Int[Tensor, " F"]
    second: Int[Tensor, " F"]
    still: Int[Tensor, " S"]
    angles: Float[Tensor, " F"]
    layout: str = "half-split"

    @staticmethod
    def half_split(angles: Float[Tensor, " F"], head_dim: int, start: int = 0) -> Rotation:
        """Dimension start + k turns with dimension start + k + F (Llama, GPT-NeoX)."""
        planes = torch.arange(len(angles), device=angles.device) + start
        return _rotation(planes, planes + len(angles), angles, head_dim, "half-split")

    @staticmethod
    def interleaved(angles: Float[Tensor, " F"], head_dim: int, start: int = 0) -> Rotation:
        """Dimension start + 2k turns with its neighbour start + 2k + 1 (GPT-J, Cohere)."""
        planes = 2 * torch.arange(len(angles), device=angles.device) + start
        return _rotation(planes, planes + 1, angles, head_dim, "interleaved")

    @staticmethod
    def none(head_dim: int, device: torch.device | str = "cpu") -> Rotation:
        """No dimension turns: NoPE, ALiBi."""
        empty = torch.empty(0, device=device)
        return _rotation(empty.long(), empty.long(), empty, head_dim, "none")

    @property
    def planes(self) -> int:
        return len(self.angles)

    @property
    def head_dim(self) -> int:
        return 2 * self.planes + len(self.still)

    @property
    def frequencies(self) -> int:
        """Entries on the F axis: one a plane, and one for all dimensions that do not turn, if there are any."""
        return self.planes + bool(len(self.still))

    def all_angles(self) -> Float[Tensor, " F"]:
        """The angle of every entry of the F axis; 0 for the dimensions that do not turn."""
        return torch.cat([self.angles, self.angles.new_zeros(self.frequencies - self.planes)])

    def to(self, device: torch.device | str) -> Rotation:
        moved = (tensor.to(device) for tensor in (self.first, self.second, self.still, self.angles))
        return Rotation(*moved, layout=self.layout)

    def phases(self, positions: Int[Tensor, " N"]) -> Float[Tensor, "N F"]:
        """The turn of every plane at every position, rounded like the models round it: a float32 product."""
        return positions.float()[:, None] * self.angles.float()

    def wave(self, positions: Int[Tensor, " N"]) -> Float[Tensor, "N F 2"]:
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
    ) -> Float[Tensor, "B H N F 2"]:
        """What content a offers the query on each plane: c with logit(a at b) = Re c[a] * exp(-i * angle * b).

        `query` and `keys` are as captured, already turned; with z for a plane as a complex number,
        c[a] = conj(key[a]) * exp(i * angle * a) * query. Grouped keys serve H / K query heads each.
        """
        kv_heads = keys.shape[1]
        grouped = query.unflatten(1, (kv_heads, -1))[:, :, :, None]  # B K G 1 D
        keys = keys[:, :, None]  # B K 1 N D
        q1, q2 = grouped[..., self.first], grouped[..., self.second]
        k1, k2 = keys[..., self.first], keys[..., self.second]
        phases = self.phases(positions)
        cos, sin = phases.cos(), phases.sin()
        k1, k2 = k1 * cos + k2 * sin, k2 * cos - k1 * sin  # the content, turned back
        coupling = torch.stack([k1 * q1 + k2 * q2, k1 * q2 - k2 * q1], dim=-1)
        if len(self.still):
            resting = grouped[..., self.still] @ keys[..., self.still].mT  # B K G 1 N
            resting = resting.squeeze(-2)[..., None]
            coupling = torch.cat([coupling, torch.stack([resting, torch.zeros_like(resting)], dim=-1)], dim=-2)
        return coupling.flatten(1, 2)

    def __repr__(self) -> str:
        if not self.planes:
            return "Rotation(none)"
        span = f"{int(self.first.min())}-{int(self.second.max())}"
        return f"Rotation({self.layout}, {self.planes} planes over dimensions {span}, {len(self.still)} still)"


def _rotation(first: Tensor, second: Tensor, angles: Tensor, head_dim: int, layout: str) -> Rotation:
    turning = torch.zeros(head_dim, dtype=torch.bool, device=angles.device)
    turning[first] = turning[second] = True
    return Rotation(first, second, (~turning).nonzero().flatten(), angles, layout)
