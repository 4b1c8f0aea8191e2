"""How position rotates a head's queries and keys: which dimensions form a plane, and the angle of each plane."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .compiled import compiled, run_in_threads


@dataclass(frozen=True)
class Rotation:
    """Pairs of head dimensions (planes) that rotate together, one angle per pair; all other dimensions are non-rotary.

    Convention, fixed here: the plane (x[first], x[second]) of a key at position p is the content's plane rotated
    counter-clockwise by angle * p. Planes that rotate the other way have negative angles.

    >>> Rotation.half_split(torch.tensor([1.0, 0.01]), head_dim=6)    # GPT-NeoX style; 4 and 5 are non-rotary
    Rotation(half-split, 2 planes over dimensions 0-3 of 6)
    """

    angles: Float[Tensor, " F"]
    head_dim: int
    start: int = 0
    layout: str = "half-split"

    @staticmethod
    def half_split(angles: Float[Tensor, " F"], head_dim: int, start: int = 0) -> Rotation:
        """Dimension start + k is paired with dimension start + k + F (Llama, GPT-NeoX)."""
        return Rotation(angles, head_dim, start, "half-split")

    @staticmethod
    def interleaved(angles: Float[Tensor, " F"], head_dim: int, start: int = 0) -> Rotation:
        """Dimension start + 2k is paired with its neighbour start + 2k + 1 (GPT-J, Cohere)."""
        return Rotation(angles, head_dim, start, "interleaved")

    @staticmethod
    def none(head_dim: int, device: torch.device | str = "cpu") -> Rotation:
        """No rotation: NoPE, ALiBi."""
        return Rotation(torch.empty(0, device=device), head_dim, 0, "none")

    @property
    def planes(self) -> int:
        return len(self.angles)

    @property
    def stop(self) -> int:
        """One past the last rotary dimension."""
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
    def non_rotary(self) -> list[int]:
        """The dimensions that belong to no plane."""
        return [*range(self.start), *range(self.stop, self.head_dim)]

    @cached_property
    def rotating(self) -> list[int]:
        """The planes with a non-zero angle, fastest first: frequency ID 1 is the first of them."""
        speed = self.angles.abs().tolist()
        return sorted((plane for plane in range(self.planes) if speed[plane] > 0), key=lambda plane: -speed[plane])

    @property
    def has_non_rotary(self) -> bool:
        """Whether there are non-rotary dimensions: outside all planes, or in a plane of angle 0."""
        return self.head_dim > 2 * len(self.rotating)

    @property
    def frequencies(self) -> int:
        """Entries on the F axis: one per rotating plane, and one for all non-rotary dimensions, if there are any."""
        return len(self.rotating) + self.has_non_rotary

    def all_angles(self) -> Float[Tensor, " G"]:
        """The angle of every entry of the F axis; 0 for the non-rotary dimensions."""
        moving = self.angles[self.rotating].float()
        return torch.cat([moving, moving.new_zeros(self.frequencies - len(moving))])

    def same_as(self, other: Rotation) -> bool:
        """Whether both rotate the same dimensions by the same angles."""
        return (self.head_dim, self.start, self.layout) == (other.head_dim, other.start, other.layout) and (
            self.angles is other.angles or torch.equal(self.angles, other.angles)
        )

    def phases(self, positions: Int[Tensor, " N"]) -> Float[Tensor, "N F"]:
        """The phase of every plane at every position, rounded as in the models: a float32 product."""
        return positions.float()[:, None] * self.angles.float().to(positions.device)

    def wave(self, positions: Int[Tensor, " N"]) -> Float[Tensor, "N G 2"]:
        """(cos, sin) of each entry of the F axis at each position: the position's half of the placement table."""
        phases = self.phases(positions)
        phases = phases if self._in_order else phases[:, self.rotating]
        wave = torch.stack([phases.cos(), phases.sin()], dim=-1)
        resting = wave.new_tensor([1.0, 0.0]).expand(len(positions), int(self.has_non_rotary), 2)
        return torch.cat([wave, resting], dim=1)

    def rotate(
        self, vectors: Float[Tensor, "... N D"], positions: Int[Tensor, " N"], back: bool = False
    ) -> Float[Tensor, "... N D"]:
        """Rotate contents to their positions, or, with `back`, rotate keys back into contents.

        >>> rotation = Rotation.interleaved(torch.tensor([0.5]), head_dim=2)
        >>> rotation.rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([2]))      # by 1 radian
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
        """The coupling of content a with the query on each plane: c with logit(a at b) = Re c[a] * exp(-i * angle * b).

        `query` and `keys` are as captured, already rotated. With each plane written as a complex number,
        c[a] = conj(key[a]) * exp(i * angle * a) * query. With grouped keys, each serves H / K query heads.
        """
        phases = self.phases(positions)
        cos, sin = phases.cos(), phases.sin()
        grouped = query.unflatten(1, (keys.shape[1], -1))[:, :, :, None]  # B K G 1 D
        shape = (*grouped.shape[:3], len(positions), self.frequencies, 2)
        if self._in_order and (kernels := compiled(keys)) is not None:
            coupling = query.new_empty(shape) if self.planes == self.frequencies else query.new_zeros(shape)
            step = 2 if self.layout == "interleaved" else 1
            rows = (keys.flatten(0, 1), grouped.flatten(0, 1).squeeze(2), cos, sin, self.start, step)
            work = coupling.numel() // 16  # much less per element than for a pair
            run_in_threads(kernels.couple, work, *rows, coupling.flatten(0, 1).flatten(-2))
        else:
            coupling = query.new_zeros(shape)
            x, y = keys[..., self.first], keys[..., self.second]
            x, y = x * cos + y * sin, y * cos - x * sin  # the contents, rotated back
            x, y = x[:, :, None], y[:, :, None]  # B K 1 N F
            u, v = grouped[..., self.first], grouped[..., self.second]
            re, im = (x * u).addcmul_(y, v), (x * v).addcmul_(y, u, value=-1)
            moving = coupling[..., : len(self.rotating), :]
            moving[..., 0], moving[..., 1] = re[..., self.rotating], im[..., self.rotating]
            resting = [plane for plane in range(self.planes) if plane not in set(self.rotating)]
            coupling[..., -1, 0] += re[..., resting].sum(-1) if resting else 0
        for rest in (slice(0, self.start), slice(self.stop, self.head_dim)):
            if rest.start < rest.stop:
                coupling[..., -1, 0] += (grouped[..., rest] @ keys[:, :, None, :, rest].mT).squeeze(-2)
        return coupling.flatten(1, 2)

    @cached_property
    def _in_order(self) -> bool:
        return self.rotating == list(range(self.planes))

    def __repr__(self) -> str:
        if not self.planes:
            return "Rotation(none)"
        span = f"dimensions {self.start}-{self.stop - 1} of {self.head_dim}"
        return f"Rotation({self.layout}, {self.planes} planes over {span})"
