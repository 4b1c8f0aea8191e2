"""The self-check: before any score, prove on this very model that what is captured is what the model does.

1. Every attention layer that shows itself in the model's own eager pass was captured, with the same logits after it.
2. The attention rows rebuilt from captured queries and keys are the model's own.
3. Keys captured at p, turned to p + s, are the keys captured at p + s.
4. A swap done by hand, contents exchanged before a layer and the layer run again, gives what the table foretells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer
from ..errors import NotMeasurable
from .hook import Record, Recorder, implementation, quiet_evaluation, recording
from .probe import UNEXPLAINED, Turn, hypotheses_of, measure, shifts_within

# What is tolerated: attention rows and swaps as a share of the row's spread, logits and keys of the largest.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# Rows flatter than this are compared as if they had this spread: below it lies the noise of the number type.
FLATTEST = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
TOKENS = 24


@dataclass(frozen=True)
class Certificate:
    """What the self-check found: the rotation of each attention call, in order, and the largest deviations."""

    rotations: tuple[Rotation, ...]
    deviation: dict[str, float]
    absolute: bool


_certificates: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Certificate]] = WeakKeyDictionary()


def certify(model: PreTrainedModel, length: int, again: bool = False) -> Certificate:
    """The certificate of a model, from memory if neither implementation, dtype nor device has changed since.

    Angles that depend on the length of the prompt are measured at the length in use.
    """
    key = (
        model.config._attn_implementation,
        model.dtype,
        model.device,
        length if _angles_depend_on_length(model) else None,
    )
    known = _certificates.setdefault(model, {})
    if again or key not in known:
        known[key] = examine(model, length)
    return known[key]


def examine(model: PreTrainedModel, length: int) -> Certificate:
    """Run the whole self-check; raises NotMeasurable with one clear sentence at the first thing that is not right."""
    family = model.config.model_type
    if model.dtype not in TOLERANCE:
        raise NotMeasurable(
            f"{family}: weights of type {model.dtype} are not supported; use float32, bfloat16, float16"
        )
    tolerance = TOLERANCE[model.dtype]
    tokens = min(TOKENS, max(length, 8))
    ids = _probe_tokens(model, tokens)
    own_rows, own_logits = eager_pass(model, ids)
    records, logits = captured_pass(model, ids)
    _same_layers(family, own_rows, records)
    _finite(family, records)

    deviation = {"logits": _worst(logits, own_logits) / max(1e-30, float(own_logits.abs().max()))}
    nothing = [Rotation.none(record.keys.shape[-1], record.keys.device) for record in records]
    rows = [attention_row(record, still) for record, still in zip(records, nothing, strict=True)]
    # Some families report their rows before the sink takes its share, so rows are compared as shares of the keys.
    deviation["attention"] = max(
        _row_deviation(_shares(row), _shares(own), model.dtype) for row, (_, own) in zip(rows, own_rows, strict=True)
    )
    for name, what in (("attention", "attention rows rebuilt from queries and keys"), ("logits", "logits")):
        if not deviation[name] <= tolerance:
            raise NotMeasurable(
                f"{family}: {what} differ from the model's own by {deviation[name]:.2g} (tolerated: {tolerance:.0e})"
            )
    if embeds_positions(model, own_rows[0][0], ids):
        return Certificate(tuple(nothing), deviation, absolute=True)

    rotations, deviation["keys"] = measure_rotations(model, ids, length)
    deviation["swap"] = swap_by_hand(model, ids, records, rotations)
    if not deviation["swap"] <= tolerance:
        raise NotMeasurable(
            f"{family}: a swap done by hand differs from the placement table by {deviation['swap']:.2g} "
            f"(tolerated: {tolerance:.0e})"
        )
    return Certificate(rotations, deviation, absolute=False)


def measure_rotations(model: PreTrainedModel, ids: Tensor, length: int) -> tuple[tuple[Rotation, ...], float]:
    """The rotation of every attention call, and the largest deviation of a key turned from p to p + s."""
    family = model.config.model_type
    depends = _angles_depend_on_length(model)
    stated = getattr(model.config.get_text_config(), "max_position_embeddings", None) or length
    tokens = ids.shape[1]
    context = length if depends else max(min(stated, 8192), tokens + 1)
    shifts = shifts_within(context, tokens)
    positions = torch.arange(tokens, device=ids.device) + torch.tensor([0, *shifts], device=ids.device)[:, None]
    probe = ids.expand(len(positions), -1)
    if depends:
        # One more token at the far end of the prompt in use, which no other token sees, sets the angles in force.
        probe = torch.cat([probe, probe[:, :1]], dim=1)
        positions = torch.cat([positions, torch.full_like(positions[:, :1], length - 1)], dim=1)
    recorder = Recorder(range(tokens))
    with recording(model, recorder):
        try:
            _forward(model, probe, position_ids=positions)
        except (TypeError, ValueError):
            recorder.records.clear()
            _forward(model, probe)  # the family takes no positions: what does not turn is then left to the swap
    hypotheses = hypotheses_of(model)
    rotations: list[Rotation] = []
    worst = 0.0
    for record in recorder.records:
        vectors = torch.cat([record.queries, record.keys[:, :, :tokens]], dim=1).float()
        turn = Turn(vectors[0], {shift: vectors[1 + at] for at, shift in enumerate(shifts)})
        known = next((one for one in rotations[::-1] if _explains(turn, one, model.dtype)), None)
        rotation, rest = (known, 0.0) if known is not None else measure(turn, hypotheses, model.dtype)
        if rotation is None:
            index = len(rotations)
            raise NotMeasurable(
                f"{family}: positions do not act on attention layer {index} as a rotation (unexplained: {rest:.2g}), "
                'so it cannot be measured at level "keys"'
            )
        rotations.append(rotation)
        worst = max(worst, turn.worst_key(rotation))
    return tuple(rotations), worst


def swap_by_hand(model: PreTrainedModel, ids: Tensor, records: list[Record], rotations: tuple[Rotation, ...]) -> float:
    """Exchange two contents before each layer, run it again, compare with the table: the largest deviation.

    One pass for all layers: the prompt is repeated once a layer, and layer l exchanges only in copy l.
    """
    here, there = ids.shape[1] // 3, ids.shape[1] - 3
    swapped = Recorder([ids.shape[1] - 1])
    with recording(model, swapped), _exchange(records, here, there):
        _forward(model, ids.expand(len(records), -1))
    worst = 0.0
    for copy, (record, again, rotation) in enumerate(zip(records, swapped.records, rotations, strict=True)):
        placement = _layer(record, rotation).placement(0, ids.shape[1] - 1)
        logits, table = placement.logits(), placement.table()
        foretold = logits.clone()
        foretold[..., here], foretold[..., there] = table[..., there, here], table[..., here, there]
        normaliser = foretold.logsumexp(-1, keepdim=True)
        if placement.sink is not None:
            normaliser = torch.logaddexp(normaliser, placement.sink.unsqueeze(-1))
        real = attention_row(again, rotation)[copy]
        worst = max(worst, _row_deviation((foretold - normaliser).exp()[0], real, model.dtype))
    return worst


@contextmanager
def _exchange(records: list[Record], here: int, there: int) -> Iterator[None]:
    """Before the n-th call of attention, exchange two contents of the n-th copy of the prompt."""
    calls = iter(range(len(records)))

    def exchange(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        copy = next(calls, None)
        states = args[0] if args else kwargs["hidden_states"]
        if copy is None or not isinstance(states, Tensor):
            return args, kwargs
        states = states.clone()
        states[copy, [here, there]] = states[copy, [there, here]]
        return ((states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": states})

    with ExitStack() as stack:
        for module in {id(record.module): record.module for record in records}.values():
            stack.callback(module.register_forward_pre_hook(exchange, with_kwargs=True).remove)
        yield


def eager_pass(model: PreTrainedModel, ids: Tensor) -> tuple[list[tuple[nn.Module, Tensor]], Tensor]:
    """The model's own eager attention: the last row of every attention call that shows one, and the logits."""
    tokens = ids.shape[1]
    seen: list[tuple[nn.Module, Tensor]] = []

    def look(module: nn.Module, _: object, output: object) -> None:
        parts = output if isinstance(output, tuple) else ()
        for part in parts[1:]:
            if isinstance(part, Tensor) and part.dim() == 4 and part.shape[-2] == tokens and part.shape[-1] >= tokens:
                seen.append((module, part[:, :, -1, :tokens].float()))
                return

    with ExitStack() as stack:
        stack.enter_context(quiet_evaluation(model))
        stack.enter_context(implementation(model, "eager"))
        for module in model.modules():
            if re.search("attention|attn", type(module).__name__, re.IGNORECASE):
                stack.callback(module.register_forward_hook(look).remove)
        logits = _forward(model, ids)
    inner = {id(part) for module, _ in seen for part in module.modules() if part is not module}
    # An outer module that hands on what an inner one returned is the same attention shown twice.
    outer = {
        id(module) for module, _ in seen if any(id(part) in {id(m) for m, _ in seen} for part in module.children())
    }
    return [(module, row) for module, row in seen if id(module) not in outer or id(module) in inner], logits


def captured_pass(model: PreTrainedModel, ids: Tensor) -> tuple[list[Record], Tensor]:
    """The same pass through our own attention: a record a call, and the logits."""
    recorder = Recorder([ids.shape[1] - 1])
    with recording(model, recorder):
        logits = _forward(model, ids)
    return recorder.records, logits


def attention_row(record: Record, rotation: Rotation) -> Tensor:
    """The attention (B, H, T) of the last captured query, rebuilt from queries and keys."""
    return _layer(record, rotation).placement(0, record.keys.shape[2] - 1).log_attention().exp()


def embeds_positions(model: PreTrainedModel, attention: nn.Module, ids: Tensor) -> bool:
    """Whether positions are added to the embeddings: one token repeated then enters the first layer in many ways."""
    first = _first_layer(model, attention)
    entered: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs.get("hidden_states")
        if isinstance(states, Tensor) and not entered:
            entered.append(states.detach().float())

    handle = first.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with quiet_evaluation(model):
            _forward(model, ids[:, :1].expand(-1, ids.shape[1]).contiguous())
    finally:
        handle.remove()
    if not entered:
        return False
    states = entered[0]
    return _worst(states, states[..., :1, :].expand_as(states)) > 1e-3 * float(states.abs().max())


def _first_layer(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The first element of the list of layers that the attention module sits in."""
    name = next(name for name, module in model.named_modules() if module is attention)
    parts = name.split(".")
    for end in range(len(parts)):
        holder = model.get_submodule(".".join(parts[:end]))
        if isinstance(holder, nn.ModuleList):
            return holder[0]
    return attention


def _forward(model: PreTrainedModel, ids: Tensor, **inputs: Tensor) -> Tensor:
    output = model(input_ids=ids, use_cache=False, **inputs)
    return output.logits.float()


def _probe_tokens(model: PreTrainedModel, tokens: int) -> Tensor:
    """Random tokens, always the same; the lowest ids are left to padding and the like."""
    vocabulary = model.config.get_text_config().vocab_size
    low = min(10, vocabulary // 2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(low, vocabulary, (1, tokens), generator=generator)
    return ids.to(model.get_input_embeddings().weight.device)


def _layer(record: Record, rotation: Rotation) -> AttentionLayer:
    return AttentionLayer(
        0, record.queries, record.keys, rotation, record.scaling, record.softcap, record.bias, record.sinks
    )


def _same_layers(family: str, own: list[tuple[nn.Module, Tensor]], records: list[Record]) -> None:
    if not own and not records:
        raise NotMeasurable(f"{family}: the model shows no attention to measure")
    if not records:
        raise NotMeasurable(f"{family}: the family ignores the attention interface, so nothing was captured")
    if len(own) != len(records):
        raise NotMeasurable(f"{family}: {len(records)} attention calls captured, but the model shows {len(own)}")
    for (module, row), record in zip(own, records, strict=True):
        if module is not record.module or row.shape[1] != record.queries.shape[1]:
            raise NotMeasurable(f"{family}: the captured calls of attention are not those that the model shows")
        if row.shape[-1] != record.keys.shape[2]:
            raise NotMeasurable(f"{family}: keys are not one a token")


def _finite(family: str, records: list[Record]) -> None:
    for index, record in enumerate(records):
        if not (record.queries.isfinite().all() and record.keys.isfinite().all()):
            raise NotMeasurable(f"{family}: attention layer {index} gives NaN or infinite queries or keys")


def _angles_depend_on_length(model: nn.Module) -> bool:
    kinds = (getattr(module, "rope_type", None) for module in model.modules())
    return any(re.search("dynamic|longrope", str(kind)) for kind in kinds if kind is not None)


def _explains(turn: Turn, rotation: Rotation, dtype: torch.dtype) -> bool:
    if rotation.head_dim != turn.base.shape[-1]:
        return False
    return turn.unexplained(rotation) < UNEXPLAINED[dtype] / (1 if rotation.planes else 10)


def _shares(row: Tensor) -> Tensor:
    return row / row.sum(-1, keepdim=True)


def _row_deviation(row: Tensor, real: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of two attention rows, as a share of how much the real one varies."""
    spread = (real.amax(-1) - real.amin(-1)).clamp(min=FLATTEST[dtype])
    return float(((row - real).abs().amax(-1) / spread).nan_to_num(nan=torch.inf).max())


def _worst(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
