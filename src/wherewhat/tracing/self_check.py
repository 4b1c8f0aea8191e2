"""The self-check: before any score, verify on the model itself that the capture describes what the model does.

1. Every attention layer of the model's own eager pass was captured, and the model's logits are unchanged.
2. The attention rows rebuilt from captured queries and keys equal the model's own.
3. Keys captured at position p, rotated to p + s, equal the keys captured at p + s.
4. Exchanging contents by hand before a layer and rerunning it gives the logits that the placement table predicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer
from ..errors import NotMeasurable
from .certificate import Certificate, Position
from .check_prompt import TOKENS as TOKENS
from .check_prompt import CheckPrompt, angles_in_force, make_prompt, stated_context
from .check_prompt import angles_depend_on_length as angles_depend_on_length
from .confirm import PROBE_TOLERANCE, Probe, probing, structure
from .hook import Record, Recorder, gates, implementation, quiet_evaluation, recording
from .offload import kept_on
from .rotation_probe import ShiftedKeys, fit_rotation, hypotheses_of, shifts_within, stretches_of

# Tolerated differences: attention logits relative to their spread, keys relative to the largest, the model's logits
# relative to their norm.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# Lower limit of that spread: smaller variations of attention logits are rounding noise of the dtype.
FLATTEST = {torch.float64: 3e-2, torch.float32: 3e-2, torch.float16: 2e-1, torch.bfloat16: 5e-1}
# Attention below this is treated as equal: half precision has no digits left there.
FAINTEST = {torch.float64: 1e-12, torch.float32: 1e-12, torch.float16: 1e-4, torch.bfloat16: 1e-12}


_certificates: WeakKeyDictionary[nn.Module, tuple[object, dict[tuple[object, ...], Certificate]]] = WeakKeyDictionary()


def certify(model: PreTrainedModel, length: int, again: bool = False) -> Certificate:
    """The certificate of a model, cached as long as its modules, their code, implementation, dtype, device, angles and
    gates are unchanged.

    Angles that depend on the prompt length are those in force at `length`.
    """
    frozen = gates[model].frozen_by if model in gates else ()
    key = (model.config._attn_implementation, model.dtype, model.device, frozen, *angles_in_force(model, length))
    modules = structure(model)
    if model not in _certificates or _certificates[model][0] != modules:
        _certificates[model] = modules, {}
    known = _certificates[model][1]
    if again or key not in known:
        known[key] = examine(model, length)
    return known[key]


def confirmed(model: PreTrainedModel, length: int) -> Certificate:
    """The certificate of a model, confirmed by a probe of the self-check's own prompt; if that fails, a new one."""
    certificate, prompt = certify(model, length), make_prompt(model, length)
    recorder, modules = Recorder([prompt.tokens - 1]), [module for module, _, _ in certificate.calls]
    with recording(model, recorder), probing(model, modules, recorder, prompt.ids.shape[1]) as probe:
        prompt.run(model)
    return certify(model, length, again=True) if probe.contradicts(certificate, recorder.records) else certificate


def examine(model: PreTrainedModel, length: int) -> Certificate:
    """Run the whole self-check; raises NotMeasurable with one sentence at the first check that fails."""
    family = model.config.model_type
    if model.dtype not in TOLERANCE:
        raise NotMeasurable(
            f"{family}: weights of type {model.dtype} are not supported; use float32, bfloat16 or float16"
        )
    prompt = make_prompt(model, length)
    recorder = Recorder([prompt.tokens - 1])
    with recording(model, recorder):
        logits = prompt.run(model)
    records = recorder.records
    contents, probe = entering_contents(model, prompt, records)
    own_rows, own_logits = eager_pass(model, prompt, records, contents)
    _same_layers(model, own_rows, records)
    for number, record in enumerate(records):
        if not (record.queries.isfinite().all() and record.keys.isfinite().all()):
            raise NotMeasurable(f"{family}: attention layer {number} gives NaN or infinite queries or keys")

    # By their norm: in half precision, single logits of a large vocabulary deviate a lot.
    deviation = {"logits": _largest([float((logits - own_logits).norm() / own_logits.norm())])}
    calls = tuple((record.module, record.layer, record.queries.shape[1]) for record in records)
    nowhere = tuple(Position(Rotation.none(record.keys.shape[-1], record.keys.device)) for record in records)
    deviation["attention"] = _largest(
        _row_difference(where.layer(record), prompt.tokens, own, model.dtype)
        for where, record, (_, own) in zip(nowhere, records, own_rows, strict=True)
    )
    _accept(model, deviation, "attention", "attention rows rebuilt from queries and keys differ from the model's own")
    _accept(model, deviation, "logits", "the model's logits change when its attention is captured")
    if embeds_positions(model, own_rows[0][0], prompt):
        return Certificate(nowhere, deviation, absolute=True, calls=calls)

    positions, deviation["keys"] = measure_positions(model, prompt, length, records)
    _accept(model, deviation, "keys", "keys rotated by the measured angles differ from the model's own")
    deviation["swap"] = exchange_by_hand(model, prompt, records, positions)
    _accept(
        model, deviation, "swap",
        "attention logits do not depend on one query and one key alone: after exchanging contents by hand, they differ "
        "from the placement table",
    )  # fmt: skip
    confirmed = probe.deviations(records, positions).items()
    probed = frozenset(call for call, off in confirmed if off <= PROBE_TOLERANCE[model.dtype] / 2)
    return Certificate(positions, deviation, absolute=False, calls=calls, probed=probed)


def measure_positions(
    model: PreTrainedModel, prompt: CheckPrompt, length: int, records: list[Record]
) -> tuple[tuple[Position, ...], float]:
    """How position acts on every attention call, and the largest deviation of a key rotated from p to p + s.

    Every layer receives the same contents at all shifts, so earlier layers cannot disturb the measurement.
    """
    family, tokens = model.config.model_type, prompt.tokens
    context = length if prompt.positions is not None else min(stated_context(model) or length, 8192)
    shifts = shifts_within(max(context, tokens + 1), tokens)
    recorder = Recorder([tokens - 1])

    def same_contents(states: Tensor, _: int) -> Tensor:
        return states[:1].expand_as(states).contiguous()

    with recording(model, recorder), contents_changed(records, same_contents):
        try:
            prompt.run(model, len(shifts) + 1, torch.tensor([0, *shifts], device=prompt.ids.device))
        except NotMeasurable as error:
            if not isinstance(error.__cause__, (TypeError, ValueError)):
                raise
            recorder.records.clear()
            # The family takes no position_ids: a rotation missed here is caught by the exchange by hand.
            prompt.run(model, len(shifts) + 1)
    hypotheses = hypotheses_of(model)
    positions: list[Position] = []
    worst: list[float] = []
    for number, record in enumerate(recorder.records):
        keys = record.keys[:, :, :tokens].float()
        if not keys.any():
            raise NotMeasurable(f"{family}: the keys of attention layer {number} are all zero")
        shifted = ShiftedKeys(keys[0], {shift: keys[1 + at] for at, shift in enumerate(shifts)})
        rest = 0.0
        for stretch in [None, *stretches_of(record.module, keys.shape[-1])]:
            rotation, left = fit_rotation(
                shifted if stretch is None else shifted.divided_by(stretch), hypotheses, model.dtype
            )
            rest = left if stretch is None else rest
            if rotation is not None:
                rotation = next((known.rotation for known in positions if known.rotation.same_as(rotation)), rotation)
                positions.append(Position(rotation, stretch))
                worst.append((shifted if stretch is None else shifted.divided_by(stretch)).worst_key(rotation))
                break
        else:
            raise NotMeasurable(
                f"{family}: position does not act on attention layer {number} as a rotation (unexplained: {rest:.2g}), "
                'so the model cannot be measured at level "keys"'
            )
    return tuple(positions), _largest(worst)


def exchange_by_hand(
    model: PreTrainedModel, prompt: CheckPrompt, records: list[Record], positions: tuple[Position, ...]
) -> float:
    """Largest deviation of a logit from the table after reversing all contents before a layer and rerunning it.

    One pass serves all layers: the batch holds one copy of the prompt per layer, and layer l is changed in copy l only.
    """
    query = prompt.tokens - 1
    places = torch.arange(prompt.ids.shape[1], device=prompt.ids.device)
    order = torch.cat([places[:query].flip(0), places[query:]])
    exchanged = Recorder([query], own_copy=True)

    def reverse(states: Tensor, call: int) -> Tensor:
        states = states.clone()
        states[call] = states[call, order.to(states.device)]
        return states

    with recording(model, exchanged), contents_changed(records, reverse):
        prompt.run(model, len(records))
    worst: list[float] = []
    for call, (record, again, where) in enumerate(zip(records, exchanged.records, positions, strict=True)):
        placement = where.layer(record).placement(0, query)
        predicted, real = placement.logits(), where.layer(again).placement(0, query).logits()[0]
        predicted[..., :query] = placement.table()[..., :query, :query].flip(-2).diagonal(dim1=-2, dim2=-1)
        # A layer may reuse the keys of an earlier one: the contents were then exchanged before that layer.
        source = next((at for at in range(call) if torch.equal(records[at].keys, record.keys)), None)
        if source is not None:
            taken = replace(record, keys=exchanged.records[source].keys)
            real = where.layer(taken).placement(0, query).logits()[0]
        worst.append(_logit_difference(predicted[0], real, model.dtype))
    return _largest(worst)


@contextmanager
def contents_changed(records: list[Record], change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Change the hidden states that enter attention; `change` receives them and the index of the attention call."""
    calls = iter(range(len(records)))

    def enter(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = next(calls, None)
        states = args[0] if args else kwargs.get("hidden_states")
        if call is None:
            return args, kwargs
        if not isinstance(states, Tensor):
            raise NotMeasurable(f"{type(module).__name__} receives no hidden states that could be exchanged")
        states = change(states, call)
        return ((states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": states})

    with ExitStack() as stack:
        for module in {id(record.module): record.module for record in records}.values():
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        yield


def entering_contents(model: PreTrainedModel, prompt: CheckPrompt, records: list[Record]) -> tuple[list[Tensor], Probe]:
    """The hidden states that enter each attention call during a capture, and a probe of these calls."""
    contents: list[Tensor] = []

    def keep(states: Tensor, _: int) -> Tensor:
        contents.append(states)
        return states

    recorder, modules = Recorder([prompt.tokens - 1]), [record.module for record in records]
    with (
        recording(model, recorder),
        contents_changed(records, keep),
        probing(model, modules, recorder, prompt.ids.shape[1]) as probe,
    ):
        prompt.run(model)
    return contents, probe


def eager_pass(
    model: PreTrainedModel, prompt: CheckPrompt, records: list[Record], contents: list[Tensor]
) -> tuple[list[tuple[nn.Module, Tensor]], Tensor]:
    """The model's own eager attention: the last row of every call that returns its attention matrix, and the logits.

    Each call receives the contents that it had during the capture, so that rounding does not accumulate over layers.
    Layers that pass on the matrix of their attention module are not counted twice: inner modules finish first.
    """
    tokens, width = prompt.tokens, prompt.ids.shape[1]
    seen: list[tuple[nn.Module, Tensor]] = []
    shown: set[nn.Module] = set()

    def look(module: nn.Module, _: object, output: object) -> None:
        for part in output[1:] if isinstance(output, tuple) else ():
            if not (isinstance(part, Tensor) and part.dim() == 4 and part.shape[-2] == width <= part.shape[-1]):
                continue
            if not any(inner is not module and inner in shown for inner in module.modules()):
                shown.add(module)
                seen.append((module, part[:, :, tokens - 1, :tokens].float().to(kept_on(part.device))))
            return

    with ExitStack() as stack:
        stack.enter_context(quiet_evaluation(model))
        stack.enter_context(implementation(model, "eager"))
        stack.enter_context(contents_changed(records, lambda _, call: contents[call]))
        for module in model.modules():
            stack.callback(module.register_forward_hook(look).remove)
        logits = prompt.run(model)
    return seen, logits


def embeds_positions(model: PreTrainedModel, attention: nn.Module, prompt: CheckPrompt) -> bool:
    """Whether positions are added to the embeddings: a repeated token then has different states at the first layer."""
    first = _first_layer(model, attention)
    entered: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs.get("hidden_states")
        if isinstance(states, Tensor) and not entered:
            entered.append(states.detach().float())

    handle = first.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with quiet_evaluation(model):
            replace(prompt, ids=prompt.ids[:, :1].expand_as(prompt.ids).contiguous()).run(model)
    finally:
        handle.remove()
    return bool(entered) and not _difference(entered[0], entered[0][..., :1, :].expand_as(entered[0])) <= 1e-3


def _same_layers(model: PreTrainedModel, own: list[tuple[nn.Module, Tensor]], records: list[Record]) -> None:
    family = model.config.model_type
    if not records:
        names = sorted({type(module).__name__ for module in model.modules()})
        attention = [name for name in names if re.search("attention|attn", name, re.IGNORECASE)]
        if not own and not attention:
            raise NotMeasurable(f"{family}: the model has no attention layers")
        raise NotMeasurable(f"{family}: its attention ({', '.join(attention)}) does not use the attention interface")
    if len(own) != len(records):
        raise NotMeasurable(
            f"{family}: {len(records)} attention calls captured, but the model returns {len(own)} attention matrices "
            "to compare them with"
        )
    for (module, row), record in zip(own, records, strict=True):
        if row.shape[-1] != record.keys.shape[2]:
            raise NotMeasurable(f"{family}: the layer does not have one key per token")
        if module is not record.module or row.shape[1] != record.queries.shape[1]:
            raise NotMeasurable(f"{family}: the captured attention calls are not those that the model returns")


def _first_layer(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The first element of the list of layers that contains the attention module."""
    name = next(name for name, module in model.named_modules() if module is attention)
    parts = name.split(".")
    for end in range(len(parts)):
        holder = model.get_submodule(".".join(parts[:end]))
        if isinstance(holder, nn.ModuleList):
            return holder[0]
    return attention


def _accept(model: PreTrainedModel, deviation: dict[str, float], name: str, otherwise: str) -> None:
    tolerance = TOLERANCE[model.dtype]
    if not deviation[name] <= tolerance:
        raise NotMeasurable(
            f"{model.config.model_type}: {otherwise} by {deviation[name]:.2g} (tolerated: {tolerance:.0e})"
        )


def _row_difference(layer: AttentionLayer, tokens: int, own: Tensor, dtype: torch.dtype) -> float:
    """Rows are renormalised over the keys and compared as logarithms: some families return them without the sink."""
    row = layer.placement(0, tokens - 1).log_attention().exp()
    row, own = (part / part.sum(-1, keepdim=True) for part in (row, own))
    return _logit_difference(row.clamp(min=FAINTEST[dtype]).log(), own.clamp(min=FAINTEST[dtype]).log(), dtype)


def _logit_difference(logits: Tensor, real: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of two rows of logits, relative to the spread of the real one."""
    if not torch.equal(logits.isneginf(), real.isneginf()):
        return torch.inf
    seen = ~real.isneginf()
    spread = real.masked_fill(~seen, -torch.inf).amax(-1) - real.masked_fill(~seen, torch.inf).amin(-1)
    difference = (logits - real).masked_fill(~seen, 0).abs().amax(-1) / spread.clamp(min=FLATTEST[dtype])
    return float(difference.nan_to_num(nan=torch.inf).max())


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


def _largest(values: Iterable[float]) -> float:
    """The maximum, with NaN counted as infinite: Python's max would ignore it."""
    return max((value if value == value else torch.inf for value in values), default=0.0)
