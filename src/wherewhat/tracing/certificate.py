"""What the self-check found out about a model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer
from .hook import Record


@dataclass(frozen=True)
class Position:
    """How position acts on one attention call: a rotation, of keys divided by `stretch` where that is set.

    In some families each dimension is scaled after the rotation. Dividing keys and multiplying queries by that scale
    leaves every logit unchanged and makes the effect of position a pure rotation.
    """

    rotation: Rotation
    stretch: Tensor | None = None

    def unscaled(self, keys: Tensor) -> Tensor:
        """Keys on which position acts as a pure rotation."""
        return keys.float() if self.stretch is None else keys.float() / self.stretch.to(keys.device).float()

    def layer(self, record: Record, number: int = 0) -> AttentionLayer:
        queries, keys = record.queries, record.keys
        if self.stretch is not None:
            queries, keys = queries.float() * self.stretch.to(keys.device).float(), self.unscaled(keys)
        return AttentionLayer(
            index=number if record.layer is None else record.layer,
            queries=queries,
            keys=keys,
            rotation=self.rotation,
            scaling=record.scaling,
            softcap=record.softcap,
            bias=record.bias,
            sinks=record.sinks,
        )


@dataclass(frozen=True)
class Certificate:
    """Result of the self-check: how position acts on each attention call, in order, and the largest deviations.

    `calls` identifies each call: the module, the layer that was running, and the number of query heads. `probed` are
    the numbers of the calls that a probe can confirm at every capture.
    """

    positions: tuple[Position, ...]
    deviation: dict[str, float]
    absolute: bool
    calls: tuple[tuple[nn.Module, int | None, int], ...]
    probed: frozenset[int] = frozenset()
