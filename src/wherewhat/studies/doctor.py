"""Measure how position acts on every layer of a model, and compare it with what the configuration promises.

What cannot be seen this way: weights laid out for the other pairing of dimensions. Angles, pairs and dimensions are
then as promised and the model merely reads noise; compare its answers with a reference for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..capture import capture
from ..capture.check import TOLERANCE, Certificate, Prompt, certify, contents_changed, make_prompt, stated_context
from ..capture.hook import Record, Recorder, recording
from ..capture.offload import entry_device
from ..capture.probe import Turn, shifts_within
from ..core.rotation import Rotation
from ..core.trace import AttentionLayer
from ..errors import BadInput, NotMeasurable
from .layers import name_layers
from .promise import Promise, lengths_to_test, promise

# Angles agree within this share of themselves, or if the turn over the longest shift measured agrees within so many
# radians: the number type of the model shows no more.
SHARE = 1e-3
RADIANS = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# A factor on keys or logits agrees within this share.
FACTOR = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# Windows are looked for with a prompt that is longer than they are, but not longer than this.
SHORTEST, LONGEST = 256, 4352

RIGHT, WRONG, NOT_STATED, NOT_MEASURED = "as promised", "wrong", "not stated", "not measured"


@dataclass(frozen=True)
class Finding:
    """One thing found about some layers; `advice` says what follows where it is wrong."""

    subject: str
    layers: tuple[int, ...]
    promised: str
    measured: str
    verdict: str
    deviation: float | None = None
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What was found about a model. `healthy`: nothing measured disagrees with what the configuration states.

    >>> ww.doctor(model).healthy                                          # doctest: +SKIP
    True
    """

    family: str
    dtype: str
    context: int
    probed: int  # tokens of the prompt that looked for windows
    findings: tuple[Finding, ...]
    reach: tuple[str, ...]  # what the angles mean over the context
    self_check: dict[str, float]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == WRONG)

    @property
    def healthy(self) -> bool:
        return not self.wrong

    @property
    def verdict(self) -> str:
        """One sentence a finding that needs action, or that none does and what was not compared."""
        if self.wrong:
            return " ".join(f"{name_layers(finding.layers)}: {finding.advice}." for finding in self.wrong)
        right = sum(finding.verdict == RIGHT for finding in self.findings)
        healthy = f"healthy: all {right} things that could be compared are as the configuration states"
        return "; ".join([healthy, *self._not_compared()])

    def _not_compared(self) -> Iterator[str]:
        """What was left out, by reason."""
        for reason in (NOT_STATED, NOT_MEASURED):
            left_out = [finding for finding in self.findings if finding.verdict == reason]
            said = [finding.promised if finding.promised != NOT_STATED else "" for finding in left_out]
            named = [
                f"{finding.subject} ({name_layers(finding.layers)}{promised and f': {promised}'})"
                for finding, promised in zip(left_out, said, strict=True)
            ]
            if named:
                yield f"{reason}: {', '.join(named)}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"healthy": self.healthy, "verdict": self.verdict}


@dataclass(frozen=True)
class _Measured:
    """What was measured of one call of attention."""

    layer: AttentionLayer
    first_seen: tuple[int, ...]  # the first key that each of the last two queries sees
    key_scale: float | None
    query_deviation: float | None  # from the rotation of the keys


def doctor(model: PreTrainedModel, stated: Mapping[str, Any] | None = None) -> Diagnosis:
    """Compare the measured rotation, windows and scaling of every layer with what the configuration promises.

    `stated` are the settings of config.json (or of a GGUF file) as they were written, if they are to be held against
    the model instead of what its loader made of them.

    >>> diagnosis = ww.doctor(ww.load("HuggingFaceTB/SmolLM2-135M"))      # doctest: +SKIP
    >>> print(diagnosis.verdict)                                          # doctest: +SKIP
    """
    if not isinstance(model, PreTrainedModel):
        raise BadInput(f"expected a Hugging Face causal language model, got {type(model).__name__}")
    config = model.config.get_text_config(decoder=True)
    context = stated_context(model) or 2048
    certify(model, context)  # a model that cannot be measured is refused before anything is asked of its settings
    count = getattr(config, "num_hidden_layers", 1)
    lengths = lengths_to_test(config, stated, count, context)
    promises = [promise(config, layer, lengths[0], stated) for layer in range(count)]
    tokens = _tokens_to_probe(promises, context)
    certificates = {length: certify(model, length) for length in lengths}
    measured = _measure(model, tokens, lengths[0], certificates[lengths[0]])
    reach = max(shifts_within(min(context, 8192), make_prompt(model, context).tokens), default=1)
    rows: list[tuple[int, Finding]] = []
    for number, call in enumerate(measured):
        index = call.layer.index
        told = promises[index] if index < count else promise(config, index, lengths[0], stated)
        found = [*_rotation(call.layer.rotation, told, reach, model.dtype, _at(lengths[0], lengths))]
        for length in lengths[1:]:
            turning = certificates[length].positions[number].rotation
            then = promise(config, index, length, stated)
            found.append(_angles(turning, then, reach, model.dtype, _at(length, lengths)))
        found += [*_queries(call, model.dtype), _window(call, told, tokens), *_scales(call, told, model.dtype)]
        rows += [(index, finding) for finding in found]
    return Diagnosis(
        family=config.model_type,
        dtype=str(model.dtype).removeprefix("torch."),
        context=context,
        probed=tokens,
        findings=tuple(_grouped(rows)),
        reach=tuple(_reaches(measured, context)),
        self_check=dict(certificates[lengths[0]].deviation),
    )


def estimated_base(angles: Tensor) -> float | None:
    """The base of angles that fall by one factor from plane to plane; None where they do not.

    >>> round(estimated_base(10_000.0 ** -(torch.arange(8) / 8)))
    10000
    """
    planes = len(angles)
    if planes < 2 or not (angles.abs() > 0).all():
        return None
    falls = angles.double().abs().log()
    slope = (falls[-1] - falls[0]) / (planes - 1)
    straight = falls[0] + slope * torch.arange(planes)
    return float(torch.exp(-slope * planes)) if float((falls - straight).abs().max()) < 1e-2 else None


def _tokens_to_probe(promises: list[Promise], context: int) -> int:
    """Longer than the longest window that can be looked for."""
    sizes = [told.window or told.chunk or 0 for told in promises]
    longest = max((size for size in sizes if size + 16 <= min(LONGEST, context)), default=0)
    return min(context, max(SHORTEST, longest + 16))


def _measure(model: PreTrainedModel, tokens: int, length: int, certificate: Certificate) -> list[_Measured]:
    """One pass over a prompt longer than the windows, and two over short ones that look inside attention."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(min(10, vocabulary // 2), vocabulary, (1, tokens), generator=draw)
    trace = capture(model, ids.to(entry_device(model)), queries=(-2, -1), level="prompt")
    prompt = make_prompt(model, length)
    records, scales = _key_scales(model, prompt, certificate)
    queries = _query_deviations(model, prompt, length, records, certificate)
    return [
        _Measured(replace(layer, rotation=where.rotation), _first_seen(layer), scale, query)
        for layer, where, scale, query in zip(trace.attention, certificate.positions, scales, queries, strict=True)
    ]


def _query_deviations(
    model: PreTrainedModel, prompt: Prompt, length: int, records: list[Record], certificate: Certificate
) -> list[float | None]:
    """How far each layer's queries, moved by some positions, are from what the rotation of its keys foretells.

    None where positions cannot be given to the model or are added to its embeddings, and where a norm after the turn
    stretches what was turned.
    """
    shifts = [0, *shifts_within(length if prompt.positions is not None else min(length, 8192), prompt.tokens)]
    recorder = Recorder(range(prompt.tokens))
    with recording(model, recorder), contents_changed(records, lambda states, _: states[:1].expand_as(states).clone()):
        try:
            prompt.run(model, len(shifts), torch.tensor(shifts, device=prompt.ids.device))
        except NotMeasurable:
            return [None] * len(records)
    found: list[float | None] = []
    for record, where in zip(recorder.records, certificate.positions, strict=True):
        # By their directions: some families make queries longer the further on they stand.
        queries = torch.nn.functional.normalize(record.queries.float(), dim=-1)
        turn = Turn(queries[0], {shift: queries[1 + at] for at, shift in enumerate(shifts[1:])})
        rigid = turn.moved and where.stretch is None and not certificate.absolute
        found.append(turn.worst_key(where.rotation) if rigid else None)
    return found


def _first_seen(layer: AttentionLayer) -> tuple[int, ...]:
    if layer.bias is None:
        return (0,) * layer.queries.shape[2]
    return tuple(layer.bias[0, 0].isfinite().int().argmax(-1).tolist())


def _key_scales(
    model: PreTrainedModel, prompt: Prompt, certificate: Certificate
) -> tuple[list[Record], list[float | None]]:
    """What the turning part of each layer's keys was multiplied by after the last module that made it.

    A turn keeps lengths, so keys are as long as what some projection or norm inside attention put out, up to one
    factor for all tokens. None where no module's output is proportional to the keys.
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
    """The one factor between the lengths of the keys (K, T, D) and those of a slice of some output."""
    if not rotation.planes:
        return None
    tokens, size, turning = keys.shape[1], rotation.head_dim, slice(rotation.start, rotation.stop)
    lengths = keys[..., turning].norm(dim=-1)  # K T
    parts: list[Tensor] = []
    for output in made:
        rows = output[0] if output.shape[1] >= tokens else output[0].transpose(0, 1)
        if rows.shape[0] < tokens:
            continue
        rows = rows[:tokens].flatten(1)
        if rows.shape[1] % size == 0:
            parts.append(rows.unflatten(1, (-1, size))[..., turning].norm(dim=-1))
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


def _rotation(rotation: Rotation, told: Promise, reach: int, dtype: torch.dtype, at: str) -> Iterator[Finding]:
    """Whether the layer turns, which dimensions, how they are paired, and how fast."""
    turning = 2 * len(rotation.turning)
    measured = f"{turning} of {rotation.head_dim}" + (f" from {rotation.start}" if rotation.start else "")
    if told.angles is None:
        yield Finding("turning dimensions", (), NOT_STATED, measured, NOT_STATED)
    else:
        wanted = 2 * int((told.angles != 0).sum())
        promised = f"{wanted} of {told.head_dim}" + (f" from {told.start}" if wanted and told.start else "")
        yield _compare("turning dimensions", promised, measured, _advice_on_dimensions(rotation, told, wanted, turning))
        if wanted != turning:
            return
    if turning:
        wrong = (
            f"dimensions are paired {rotation.layout}, but weights of this family are laid out {told.layout}: position "
            "is read wrongly at every length; use the family's own rotation, or permute the rows of the q and k weights"
        )
        if told.layout is None:
            yield Finding("layout", (), "unknown family: not stated", rotation.layout, NOT_STATED)
        else:
            yield _compare("layout", told.layout, rotation.layout, wrong)
        yield _angles(rotation, told, reach, dtype, at)


def _advice_on_dimensions(rotation: Rotation, told: Promise, wanted: int, turning: int) -> str:
    if not turning:
        return (
            "keys do not turn though the configuration promises it: the layer cannot tell positions apart; check "
            "whether the rotation is applied there"
        )
    if not wanted:
        return "keys turn though the configuration promises no rotation; check no_rope_layers and layer_types"
    return (
        f"{turning} dimensions turn where {wanted} of {told.head_dim} are promised: the partial rotary factor is not "
        "what the configuration states; check partial_rotary_factor (rotary_pct, rotary_dim) in the loader"
    )


def _angles(rotation: Rotation, told: Promise, reach: int, dtype: torch.dtype, at: str) -> Finding:
    """The measured angles against the promised ones."""
    subject = f"angles{at}"
    angles = rotation.angles.double().cpu()
    moving = angles[angles != 0].abs()
    measured = f"{float(moving.max()):.3g} … {float(moving.min()):.3g}" if len(moving) else "none"
    base = estimated_base(angles)
    measured += f", base {_rounded(base):,}" if base else ""
    if told.angles is None:
        return Finding(subject, (), told.words or NOT_STATED, measured, NOT_STATED)
    promised = told.angles.double()
    if len(promised) != len(angles):
        return Finding(subject, (), told.words, measured, WRONG, advice="other dimensions turn than promised")
    off = (angles - promised).abs()
    deviation = float((off / promised.abs().clamp(min=1e-30)).masked_fill(promised == 0, 0).max())
    if _agree(angles, promised, reach, dtype):
        return Finding(subject, (), told.words, measured, RIGHT, deviation)
    return Finding(subject, (), told.words, measured, WRONG, deviation, _advice_on_angles(angles, told, reach, dtype))


def _advice_on_angles(angles: Tensor, told: Promise, reach: int, dtype: torch.dtype) -> str:
    """What kind of wrong the angles are, as far as it shows."""
    assert told.angles is not None
    if told.original and told.unscaled is not None and _agree(angles, told.unscaled.double(), reach, dtype):
        return (
            f"the configuration promises {told.words}, but the angles are unscaled: beyond {told.original:,} tokens "
            "the model runs outside its training; check that rope_parameters (rope_scaling) reach the rotary embedding"
        )
    promised = told.angles.double()
    if _agree(angles, -promised, reach, dtype):
        return "planes turn the other way round: position is read backwards; check the sign of sin in the rotation"
    factors = promised / angles
    if float((factors / factors[0] - 1).abs().max()) < 10 * SHARE:
        return (
            f"all angles are {float(factors[0]):.3g} times slower than promised ({told.words}): positions are scaled "
            "though the configuration does not state it; check rope_parameters (rope_scaling)"
        )
    base, stated = estimated_base(angles), estimated_base(promised)
    if base and stated and not math.isclose(base, stated, rel_tol=1e-2):
        return (
            f"angles follow base {_rounded(base):,}, not {_rounded(stated):,}: slow planes turn "
            f"{float(angles[-1] / promised[-1]):.2g} times as fast as in training; check rope_theta"
        )
    return f"angles are not those of {told.words}; check rope_parameters (rope_scaling, rope_theta) in the loader"


def _agree(angles: Tensor, promised: Tensor, reach: int, dtype: torch.dtype) -> bool:
    return bool(((angles - promised).abs() <= SHARE * promised.abs() + RADIANS[dtype] / reach).all())


def _queries(call: _Measured, dtype: torch.dtype) -> Iterator[Finding]:
    """Only if queries turn like keys do logits depend on how far apart the two are, and on nothing else."""
    if call.query_deviation is None:
        return
    if call.query_deviation <= TOLERANCE[dtype]:
        yield Finding("turn of queries", (), "like keys", "like keys", RIGHT, call.query_deviation)
        return
    advice = (
        "queries do not turn as keys do: attention depends on where the prompt stands, not on distances; check that "
        "one rotation is applied to both"
    )
    yield Finding("turn of queries", (), "like keys", "otherwise", WRONG, call.query_deviation, advice)


def _window(call: _Measured, told: Promise, tokens: int) -> Finding:
    """Whether the query stops seeing where the configuration says."""
    queries = (tokens - 2, tokens - 1)
    measured = f"none in {tokens:,} tokens"
    if call.first_seen[-1]:
        same = call.first_seen[0] == call.first_seen[1]
        measured = f"chunk from {call.first_seen[1]:,}" if same else f"{tokens - call.first_seen[-1]:,} tokens"
    if told.chunk:
        promised, expected = f"chunks of {told.chunk:,}", tuple(at // told.chunk * told.chunk for at in queries)
    elif told.window:
        promised, expected = f"{told.window:,} tokens", tuple(max(0, at - told.window + 1) for at in queries)
    elif told.window == 0:
        promised, expected = "none", (0, 0)
    else:
        return Finding("window", (), NOT_STATED, measured, NOT_STATED)
    if call.first_seen == expected:
        hidden = (told.chunk or told.window or 0) >= tokens
        return Finding("window", (), promised, measured, NOT_MEASURED if hidden else RIGHT)
    if not call.first_seen[-1]:
        advice = f"the window ({promised}) is ignored: a query sees more than in training; check sliding_window"
    else:
        advice = f"a query sees {measured} where the configuration promises {promised}; check sliding_window"
    return Finding("window", (), promised, measured, WRONG, advice=advice)


def _scales(call: _Measured, told: Promise, dtype: torch.dtype) -> Iterator[Finding]:
    """Factors on keys and logits, soft-capping and sinks."""
    if call.layer.rotation.planes:
        wrong = "keys and queries are multiplied by {} where attention scaling promises {}: logits are {:.3g} times as "
        wrong += "large as in training; check attention_factor (mscale) in the loader"
        yield _factor("attention scaling", told.key_scale, call.key_scale, wrong, dtype, power=2)
    wrong = (
        "the softmax scale is {} where the configuration promises {}: logits are {:.3g} times as large as in training"
    )
    yield _factor("softmax scale", told.softmax_scale, call.layer.scaling, wrong, dtype)
    if told.softcap is not None or call.layer.softcap is not None:
        cap, promised = (f"{value:g}" if value else "none" for value in (call.layer.softcap, told.softcap))
        wrong = f"logits are capped at {cap} where the configuration promises {promised}; check attn_logit_softcapping"
        yield _compare("soft-capping", promised, cap, wrong)
    if call.layer.sinks is not None:
        yield Finding("sinks", (), NOT_STATED, "one logit a head", NOT_STATED)


def _factor(
    subject: str, promised: float | None, measured: float | None, wrong: str, dtype: torch.dtype, power: int = 1
) -> Finding:
    digits = 4 if FACTOR[dtype] < 1e-3 else 3
    stated, seen = (None if value is None else f"{value:.{digits}g}" for value in (promised, measured))
    if measured is None or seen is None:
        return Finding(subject, (), stated or NOT_STATED, NOT_MEASURED, NOT_MEASURED)
    if promised is None or stated is None:
        return Finding(subject, (), NOT_STATED, seen, NOT_STATED)
    if math.isclose(promised, measured, rel_tol=10 * FACTOR[dtype]):
        return Finding(subject, (), stated, seen, RIGHT, abs(measured / promised - 1))
    advice = wrong.format(seen, stated, (measured / promised) ** power)
    return Finding(subject, (), stated, seen, WRONG, abs(measured / promised - 1), advice)


def _compare(subject: str, promised: str, measured: str, advice: str) -> Finding:
    same = promised == measured
    return Finding(subject, (), promised, measured, RIGHT if same else WRONG, advice="" if same else advice)


def _grouped(rows: list[tuple[int, Finding]]) -> Iterator[Finding]:
    """Layers of which the same was found, together; the deviation is the largest among them."""
    groups: dict[tuple[str, ...], list[tuple[int, Finding]]] = {}
    for index, found in rows:
        groups.setdefault((found.subject, found.promised, found.measured, found.verdict), []).append((index, found))
    order = {subject: at for at, subject in reversed([*enumerate(found.subject for _, found in rows)])}
    for key, members in sorted(groups.items(), key=lambda item: (order[item[0][0]], item[1][0][0])):
        deviations = [found.deviation for _, found in members if found.deviation is not None]
        yield Finding(
            *(key[0], tuple(dict.fromkeys(index for index, _ in members)), *key[1:]),
            deviation=max(deviations, default=None),
            advice=members[0][1].advice,
        )


def _reaches(measured: list[_Measured], context: int) -> Iterator[str]:
    """How far the planes of each kind of layer turn over what it can see."""
    groups: dict[str, list[int]] = {}
    for call in measured:
        angles = call.layer.rotation.angles[call.layer.rotation.turning].abs()
        if not len(angles):
            continue
        span = call.layer.keys.shape[2] - call.first_seen[-1] if call.first_seen[-1] else context
        turns = angles.double().cpu() * span / (2 * math.pi)
        words = (
            f"the slowest of {len(angles)} planes turns {float(turns.min()):.2g} of a circle over the {span:,} tokens "
        )
        words += "of the window" if call.first_seen[-1] else "of the context"
        unfinished = int((turns < 1).sum())
        words += f"; {unfinished} planes never complete a turn" if unfinished else "; every plane completes a turn"
        groups.setdefault(words, []).append(call.layer.index)
    for words, layers in groups.items():
        yield f"{name_layers(tuple(layers))}: {words}"


def _rounded(base: float) -> int:
    """To four digits: more are not measured."""
    return int(float(f"{base:.4g}"))


def _at(length: int, lengths: list[int]) -> str:
    return f" at {length:,} tokens" if len(lengths) > 1 else ""
