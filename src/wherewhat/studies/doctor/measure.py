"""What the doctor measures: rotations, windows and scale factors of every call of attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...core.rotation import Rotation
from ...core.trace import AttentionLayer
from ...errors import NotMeasurable
from ...tracing import capture
from ...tracing.declared import Declared
from ...tracing.hook import Record, Recorder, recording
from ...tracing.offload import entry_device
from ...tracing.rotation_probe import ShiftedKeys, shifts_within
from ...tracing.self_check import Certificate, CheckPrompt, contents_changed, make_prompt

# Factors on keys and logits agree within this relative deviation.
FACTOR = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# Windows are measured with a prompt that is longer than they are, within these bounds.
SHORTEST, LONGEST = 256, 4352


@dataclass(frozen=True)
class MeasuredLayer:
    """The measurements of one call of attention."""

    layer: AttentionLayer
    first_seen: tuple[int, ...]  # the first key that each of the last two queries sees
    key_scale: float | None
    query_deviation: float | None  # from the rotation of the keys


def tokens_to_probe(expected: list[Declared], context: int) -> int:
    """The length of a prompt that is longer than every window that can be measured."""
    sizes = [layer.window or layer.chunk or 0 for layer in expected]
    longest = max((size for size in sizes if size + 16 <= min(LONGEST, context)), default=0)
    return min(context, max(SHORTEST, longest + 16))


def measure_layers(model: PreTrainedModel, tokens: int, length: int, certificate: Certificate) -> list[MeasuredLayer]:
    """One forward pass over a prompt longer than the windows, and two over short ones that look inside attention."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(min(10, vocabulary // 2), vocabulary, (1, tokens), generator=draw)
    trace = capture(model, ids.to(entry_device(model)), queries=(-2, -1), level="prompt")
    prompt = make_prompt(model, length)
    records, scales = _key_scales(model, prompt, certificate)
    queries = _query_deviations(model, prompt, length, records, certificate)
    return [
        MeasuredLayer(replace(layer, rotation=where.rotation), _first_seen(layer), scale, query)
        for layer, where, scale, query in zip(trace.attention, certificate.positions, scales, queries, strict=True)
    ]


def _query_deviations(
    model: PreTrainedModel, prompt: CheckPrompt, length: int, records: list[Record], certificate: Certificate
) -> list[float | None]:
    """How far the queries of each layer, shifted by some positions, deviate from the rotation measured on its keys.

    None if positions cannot be passed to the model or are added to its embeddings, or if a norm follows the rotation.
    """
    shifts = [0, *shifts_within(length if prompt.positions is not None else min(length, 8192), prompt.tokens)]
    recorder = Recorder(range(prompt.tokens))
    with recording(model, recorder), contents_changed(records, lambda states, _: states[:1].expand_as(states).clone()):
        try:
            prompt.run(model, len(shifts), torch.tensor(shifts, device=prompt.ids.device))
        except NotMeasurable:
            return [None] * len(records)
    deviations: list[float | None] = []
    for record, where in zip(recorder.records, certificate.positions, strict=True):
        # Compare directions only: in some families the length of queries grows with position.
        queries = torch.nn.functional.normalize(record.queries.float(), dim=-1)
        shifted = ShiftedKeys(queries[0], {shift: queries[1 + at] for at, shift in enumerate(shifts[1:])})
        rigid = shifted.moved and where.stretch is None and not certificate.absolute
        deviations.append(shifted.worst_key(where.rotation) if rigid else None)
    return deviations


def _first_seen(layer: AttentionLayer) -> tuple[int, ...]:
    if layer.bias is None:
        return (0,) * layer.queries.shape[2]
    return tuple(layer.bias[0, 0].isfinite().int().argmax(-1).tolist())


def _key_scales(
    model: PreTrainedModel, prompt: CheckPrompt, certificate: Certificate
) -> tuple[list[Record], list[float | None]]:
    """The factor on the rotary part of each layer's keys, after the last module that computed it.

    A rotation preserves lengths, so keys are as long as the output of some projection or norm inside attention, up to
    one factor for all tokens. None if no module's output is proportional to the keys.
    """
    recorder = Recorder([prompt.tokens - 1])
    outputs: list[tuple[int, nn.Module, Tensor]] = []

    def keep(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 2:
            outputs.append((len(recorder.records), module, output.detach().float()))

    handles = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        with recording(model, recorder):
            prompt.run(model)
    finally:
        for handle in handles:
            handle.remove()
    scales: list[float | None] = []
    for number, (record, where) in enumerate(zip(recorder.records, certificate.positions, strict=True)):
        inside = set(record.module.modules()) - {record.module}
        made = [output for call, module, output in outputs if call == number and module in inside]
        keys = record.keys.float() if where.stretch is None else record.keys.float() / where.stretch.float()
        scales.append(_common_factor(keys[0], where.rotation, made, FACTOR[model.dtype]))
    return recorder.records, scales


def _common_factor(keys: Tensor, rotation: Rotation, made: list[Tensor], tolerance: float) -> float | None:
    """The common factor between the lengths of the keys (K, T, D) and those of a slice of some output."""
    if not rotation.planes:
        return None
    tokens, size, rotary = keys.shape[1], rotation.head_dim, slice(rotation.start, rotation.stop)
    lengths = keys[..., rotary].norm(dim=-1)  # K T
    parts: list[Tensor] = []
    for output in made:
        rows = output[0] if output.shape[1] >= tokens else output[0].transpose(0, 1)
        if rows.shape[0] < tokens:
            continue
        rows = rows[:tokens].flatten(1)
        if rows.shape[1] % size == 0:
            parts.append(rows.unflatten(1, (-1, size))[..., rotary].norm(dim=-1))
        if rows.shape[1] >= 2 * rotation.planes:
            parts.append(rows[:, -2 * rotation.planes :].norm(dim=-1, keepdim=True))
    if not parts:
        return None
    ratios = lengths[:, :, None] / torch.cat(parts, dim=1).clamp(min=1e-12)  # K T G
    spread = ratios.std(dim=1) / ratios.mean(dim=1)
    best = spread.min(dim=1)
    if float(best.values.max()) > 10 * tolerance:
        return None
    return float(ratios.mean(dim=1).gather(1, best.indices[:, None]).mean())
