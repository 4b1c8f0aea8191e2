"""Measure how position rotates the keys of a layer, instead of looking it up.

The same short prompt runs at positions p and p + s. Contents do not change, so every key rotates by s * angle. Fitting
that rotation, in both layouts, gives the layout, the rotary dimensions, every angle and the layers without rotation,
with no code per model family. What the model states (`inv_freq`) is a hypothesis, tested against the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..core.rotation import Rotation
from .modules import modules_of
from .offload import fetched, kept_on

# A rotation explains a measurement if the residual is below this share of the vectors' norm.
UNEXPLAINED = {torch.float64: 1e-3, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class ShiftedKeys:
    """The vectors of one layer at the base positions, and at the same positions plus each shift."""

    base: Tensor  # V T D
    moved: dict[int, Tensor]

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.base.shape[1], device=self.base.device)

    def divided_by(self, stretch: Tensor) -> ShiftedKeys:
        stretch = stretch.to(self.base.device).float()
        return ShiftedKeys(self.base / stretch, {shift: moved / stretch for shift, moved in self.moved.items()})

    def unexplained(self, rotation: Rotation) -> float:
        """The residual of the rotation, relative to the vectors' norm; the worst of the shifts."""
        content = rotation.rotate(self.base, self.positions, back=True)
        size = self.base.norm()
        return max(
            float((rotation.rotate(content, self.positions + shift) - moved).norm() / size)
            for shift, moved in self.moved.items()
        )

    def worst_key(self, rotation: Rotation) -> float:
        """The largest deviation of a single coordinate, relative to the largest coordinate."""
        content = rotation.rotate(self.base, self.positions, back=True)
        largest = self.base.abs().max()
        return max(
            float((rotation.rotate(content, self.positions + shift) - moved).abs().max() / largest)
            for shift, moved in self.moved.items()
        )


def shifts_within(context: int, tokens: int) -> list[int]:
    """Short shifts resolve fast planes, long shifts slow ones; each phase is unwrapped with the shift before."""
    return [shift for shift in (1, 8, 64, 512, 4096) if shift + tokens <= context]


def fit_rotation(shifted: ShiftedKeys, hypotheses: list[Tensor], dtype: torch.dtype) -> tuple[Rotation | None, float]:
    """The rotation that explains a measurement, and its residual; None if no rotation does."""
    head_dim = shifted.base.shape[-1]
    tolerance = UNEXPLAINED[dtype]
    still = Rotation.none(head_dim, shifted.base.device)
    best, rest = still, shifted.unexplained(still)
    if rest < tolerance / 10:
        return still, rest
    likely = sorted({len(angles) for angles in hypotheses if 2 * len(angles) <= head_dim})
    others = [planes for planes in range(1, head_dim // 2 + 1) if planes not in likely]
    for group in (likely, others):
        for planes in group:
            for start in {0, head_dim - 2 * planes}:
                for layout in (Rotation.half_split, Rotation.interleaved):
                    candidate = _fit(shifted, layout(torch.zeros(planes, device=shifted.base.device), head_dim, start))
                    unexplained = shifted.unexplained(candidate)
                    if unexplained < rest / 2:
                        best, rest = candidate, unexplained
        if rest < tolerance:
            return _settle(shifted, best, rest, hypotheses)
    return None, rest


def hypotheses_of(model: nn.Module) -> list[Tensor]:
    """The angles that the model's buffers state; angles that depend on the length are those in force now."""
    guesses: list[Tensor] = []
    for stated in stated_angles(model):
        stated = stated.to(kept_on(stated.device))
        if stated.dim() == 1:
            guesses.append(stated)
        else:  # the row of (sin, cos) at position 1
            half = stated.shape[1] // 2
            guesses += [torch.asin(stated[0, :half].double().clamp(-1, 1)), _geometric(2 * half, stated.device)]
    return list({(len(angles), tuple(angles.tolist())): angles for angles in guesses}.values())


def stated_angles(model: nn.Module) -> list[Tensor]:
    """Buffers that hold angles, and the second row of those that hold a table of (sin, cos), one row per position."""
    held = (vars(module)["_buffers"].items() for module in modules_of(model))
    buffers = [(name, buffer) for some in held for name, buffer in some if buffer is not None]
    angles = [buffer.flatten() for name, buffer in buffers if name.endswith("inv_freq")]
    return angles + [buffer[1:2] for name, buffer in buffers if name == "embed_positions" and buffer.dim() == 2]


def stretches_of(module: nn.Module, head_dim: int) -> list[Tensor]:
    """Candidates for a scale of each key dimension applied after the rotation: the weights of the module's norms."""
    norms = [(name, weight) for name, weight in module.named_parameters() if name.endswith("norm.weight")]
    stated = [fetched(module, name, weight).detach() for name, weight in norms if weight.shape == (head_dim,)]
    return [weight for weight in stated if weight.abs().min() > 1e-6]


def _geometric(dimensions: int, device: torch.device, base: float = 10_000.0) -> Tensor:
    return base ** (-torch.arange(0, dimensions, 2, device=device).float() / dimensions)


def _fit(shifted: ShiftedKeys, rotation: Rotation) -> Rotation:
    """The best angles: the phase of each plane at each shift, unwrapped from short shifts to long ones."""

    def plane(vectors: Tensor) -> Tensor:
        return torch.complex(vectors[..., rotation.first].double(), vectors[..., rotation.second].double())

    base = plane(shifted.base)
    angles = torch.zeros(rotation.planes, dtype=torch.float64, device=shifted.base.device)
    for shift, moved in sorted(shifted.moved.items()):
        phase = (base.conj() * plane(moved)).sum((0, 1)).angle()
        whole = torch.round((angles * shift - phase) / (2 * torch.pi))
        angles = (phase + 2 * torch.pi * whole) / shift
    return replace(rotation, angles=angles)


def _settle(shifted: ShiftedKeys, fitted: Rotation, rest: float, hypotheses: list[Tensor]) -> tuple[Rotation, float]:
    """The stated angles if the measurement confirms them (they carry more digits), else the measured ones."""
    for stated in hypotheses:
        if len(stated) != fitted.planes:
            continue
        for angles in (stated, -stated):
            candidate = replace(fitted, angles=angles.to(shifted.base.device).float().clone())
            unexplained = shifted.unexplained(candidate)
            if unexplained <= 1.5 * rest + 1e-6:
                return candidate, unexplained
    return fitted, rest
