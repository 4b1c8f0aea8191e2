"""Confirm at every capture that the certificate of the self-check still describes the model, at a small cost.

1. `structure`: the model has the same modules in the same order, and they run the same code.
2. `Probe`: before an attention call runs, a few tokens of the prompt exchange their places and the call is repeated on
   them, as far as its keys. These must be the captured keys, rotated as the certificate states.

The self-check itself decides which calls can be probed: those where the probe agrees with a measurement just made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .certificate import Certificate, Position
from .hook import KeysReached, Record, Recorder, gates
from .modules import modules_of
from .offload import kept_on

# Tolerated differences of keys, relative to the largest.
PROBE_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
# The axis of the tokens in the arguments of an attention module.
TOKEN_AXIS = {"hidden_states": -2, "position_embeddings": -2, "position_ids": -1, "cache_position": -1}
CACHES = ("past_key_values", "past_key_value", "layer_past")


def structure(model: nn.Module) -> tuple[object, ...]:
    """The modules of a model in order and the code that each of them runs, held weakly."""
    return tuple((ref(module), *_code(module)) for module in modules_of(model))


def _code(module: nn.Module) -> tuple[object, object]:
    """The code of `forward`: of the class, and of the module if it was given its own (as accelerate does)."""
    shared, own = type(module).forward, vars(module).get("forward")
    return getattr(shared, "__code__", shared), own if own is None else ref(own)


@dataclass
class Probe:
    """The keys of a few tokens whose places are exchanged, for each attention call of one forward pass."""

    rows: list[int]  # among the tokens that are run; row k holds the content of row k - 1
    past: int
    keys: dict[int, Tensor] = field(default_factory=dict)  # by the number of the call; B K R D

    def contradicts(self, certificate: Certificate, records: Sequence[Record]) -> bool:
        """Whether position no longer acts on these calls as the certificate states."""
        if not certificate.probed or len(self.rows) < 2:
            return False
        found = self.deviations(records, certificate.positions)
        return not all(
            found.get(call, torch.inf) <= PROBE_TOLERANCE[records[call].keys.dtype] for call in certificate.probed
        )

    def deviations(self, records: Sequence[Record], positions: Sequence[Position]) -> dict[int, float]:
        """For each probed call, the largest deviation from the rotated captured keys, relative to the largest key."""
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        found: dict[int, float] = {}
        for call, keys in self.keys.items():
            if call >= len(records):
                continue  # the call did not reach its keys
            rotation = positions[call].rotation
            if keys.shape == (*records[call].keys.shape[:2], len(self.rows), rotation.head_dim):
                alike[id(rotation), keys.shape, keys.device].append(call)
            else:
                found[call] = torch.inf
        for calls in alike.values():
            rotation = positions[calls[0]].rotation
            places = torch.tensor(self.rows, device=records[calls[0]].keys.device) + self.past
            captured, moved = (
                torch.stack([positions[call].unscaled(keys) for call, keys in zip(calls, some, strict=True)])
                for some in ([records[call].keys[:, :, places] for call in calls], [self.keys[call] for call in calls])
            )
            contents = rotation.rotate(captured, places, back=True)
            off = (rotation.rotate(contents.roll(1, dims=-2), places) - moved).abs().flatten(1).amax(1)
            found |= dict(zip(calls, (off / captured.abs().flatten(1).amax(1).clamp(min=1e-30)).tolist(), strict=True))
        return found


@contextmanager
def probing(model: PreTrainedModel, modules: Iterable[nn.Module], recorder: Recorder, tokens: int) -> Iterator[Probe]:
    """Probe every call of these attention modules during a forward pass of this many tokens into the recorder.

    A call that cannot be repeated on a few tokens is left out of the probe.
    """
    last = max(recorder.positions) - recorder.past
    rows = sorted({0, min(1, last), last // 2, last})  # neighbours resolve fast planes, distant tokens slow ones
    probe, gate = Probe(rows, recorder.past), gates.get(model)
    few: dict[str, tuple[Any, Any]] = {}  # the last value of each argument, and its part

    def part(name: str, value: Any) -> Any:
        if name not in few or few[name][0] is not value:  # most layers receive the same position embeddings and mask
            few[name] = value, _at_rows(name, value, rows, tokens)
        return few[name][1]

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = None if gate is None else gate.positions
        recorder.stop_at_keys = True
        try:
            if gate is not None:
                gate.positions = torch.tensor([rows], device=model.device) + probe.past
            states = [part("hidden_states", first) for first in args[:1]]
            module.forward(*states, *args[1:], **{name: part(name, value) for name, value in kwargs.items()})
        except KeysReached as reached:
            # The last keys: those of a cache come first.
            probe.keys[len(recorder.records)] = reached.keys[:, :, -len(rows) :].to(kept_on(reached.keys.device))
        except Exception:  # a module's own code may reject such a call in any way
            pass
        finally:
            recorder.stop_at_keys = False
            if gate is not None:
                gate.positions = positions

    with ExitStack() as stack:
        for module in dict.fromkeys(modules) if len(rows) > 1 else ():
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        yield probe


def _at_rows(name: str, value: Any, rows: list[int], tokens: int) -> Any:
    """An argument of an attention module for a few of its tokens, whose contents are exchanged."""
    if name in CACHES:
        return None
    if isinstance(value, (tuple, list)):
        return tuple(_at_rows(name, part, rows, tokens) for part in value)
    if not isinstance(value, Tensor):
        return value
    if name == "attention_mask" and value.dim() == 4:  # read after the keys, if at all: only its shape matters
        few = value[..., : len(rows)]
        return few[:, :, rows] if few.shape[2] == tokens else few
    if name not in TOKEN_AXIS:
        return value
    order = [rows[-1], *rows[:-1]] if name == "hidden_states" else rows
    return value.index_select(TOKEN_AXIS[name], torch.tensor(order, device=value.device))
