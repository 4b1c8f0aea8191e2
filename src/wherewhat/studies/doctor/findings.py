"""What the doctor compares: the measurements of each layer with what the configuration declares."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...core.rotation import Rotation
from ...tracing.declared import Declared
from ...tracing.self_check import TOLERANCE
from .diagnosis import NOT_MEASURED, NOT_STATED, RIGHT, WRONG, Finding
from .measure import FACTOR, MeasuredLayer

# Angles agree within this share of themselves, or if the rotation over the longest measured shift agrees within this
# many radians: the dtype of the model allows no better.
SHARE = 1e-3
RADIANS = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def estimated_base(angles: Tensor) -> float | None:
    """The base of angles that form a geometric series; None if they do not.

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


def rotation_findings(
    rotation: Rotation, config: Declared, reach: int, dtype: torch.dtype, at: str
) -> Iterator[Finding]:
    """Whether the layer has a rotation, its dimensions, their pairing, and the angles."""
    rotated = 2 * len(rotation.rotating)
    measured = f"{rotated} of {rotation.head_dim}" + (f" from {rotation.start}" if rotation.start else "")
    if config.angles is None:
        yield Finding("rotary dimensions", NOT_STATED, measured, NOT_STATED)
    else:
        wanted = 2 * int((config.angles != 0).sum())
        declared = f"{wanted} of {config.head_dim}" + (f" from {config.start}" if wanted and config.start else "")
        yield _compare("rotary dimensions", declared, measured, _advice_on_dimensions(config, wanted, rotated))
        if wanted != rotated:
            return
    if rotated:
        wrong = (
            f"dimensions are paired {rotation.layout}, but weights of this family are laid out {config.layout}: "
            "position is misread at every length; use the family's own rotation, or permute the rows of the q "
            "and k weights"
        )
        if config.layout is None:
            yield Finding("layout", "unknown family: not stated", rotation.layout, NOT_STATED)
        else:
            yield _compare("layout", config.layout, rotation.layout, wrong)
        yield angles_finding(rotation, config, reach, dtype, at)


def _advice_on_dimensions(config: Declared, wanted: int, rotated: int) -> str:
    if not rotated:
        return (
            "keys are not rotated although the configuration declares a rotation: the layer cannot distinguish "
            "positions; check whether the rotation is applied there"
        )
    if not wanted:
        return "keys are rotated although the configuration declares no rotation; check no_rope_layers and layer_types"
    return (
        f"{rotated} dimensions are rotated, but the configuration declares {wanted} of {config.head_dim}: the partial "
        "rotary factor is not applied as declared; check partial_rotary_factor (rotary_pct, rotary_dim) in the loader"
    )


def angles_finding(rotation: Rotation, config: Declared, reach: int, dtype: torch.dtype, at: str) -> Finding:
    """The measured angles compared with the declared ones."""
    subject = f"angles{at}"
    angles = rotation.angles.double().cpu()
    moving = angles[angles != 0].abs()
    measured = f"{float(moving.max()):.3g} … {float(moving.min()):.3g}" if len(moving) else "none"
    base = estimated_base(angles)
    measured += f", base {_rounded(base):,}" if base else ""
    if config.angles is None:
        return Finding(subject, config.words or NOT_STATED, measured, NOT_STATED)
    declared = config.angles.double()
    if len(declared) != len(angles):
        return Finding(subject, config.words, measured, WRONG, advice="the rotated dimensions are not those declared")
    off = (angles - declared).abs()
    deviation = float((off / declared.abs().clamp(min=1e-30)).masked_fill(declared == 0, 0).max())
    if _agree(angles, declared, reach, dtype):
        return Finding(subject, config.words, measured, RIGHT, deviation)
    return Finding(subject, config.words, measured, WRONG, deviation, _advice_on_angles(angles, config, reach, dtype))


def _advice_on_angles(angles: Tensor, config: Declared, reach: int, dtype: torch.dtype) -> str:
    """In what way the angles are wrong, as far as it can be recognised."""
    assert config.angles is not None
    if config.original and config.unscaled is not None and _agree(angles, config.unscaled.double(), reach, dtype):
        return (
            f"the configuration declares {config.words}, but the angles are unscaled: beyond {config.original:,} "
            "tokens the model runs outside its training; check that rope_parameters (rope_scaling) reach the rotary "
            "embedding"
        )
    declared = config.angles.double()
    if _agree(angles, -declared, reach, dtype):
        return (
            "planes rotate in the opposite direction: position is read backwards; check the sign of sin in the rotation"
        )
    factors = declared / angles
    if float((factors / factors[0] - 1).abs().max()) < 10 * SHARE:
        return (
            f"all angles are {float(factors[0]):.3g} times slower than declared ({config.words}): positions are scaled "
            "although the configuration does not state it; check rope_parameters (rope_scaling)"
        )
    base, stated = estimated_base(angles), estimated_base(declared)
    if base and stated and not math.isclose(base, stated, rel_tol=1e-2):
        return (
            f"angles follow base {_rounded(base):,}, not {_rounded(stated):,}: slow planes rotate "
            f"{float(angles[-1] / declared[-1]):.2g} times as fast as in training; check rope_theta"
        )
    return f"angles are not those of {config.words}; check rope_parameters (rope_scaling, rope_theta) in the loader"


def _agree(angles: Tensor, declared: Tensor, reach: int, dtype: torch.dtype) -> bool:
    return bool(((angles - declared).abs() <= SHARE * declared.abs() + RADIANS[dtype] / reach).all())


def query_findings(call: MeasuredLayer, dtype: torch.dtype) -> Iterator[Finding]:
    """Whether queries are rotated like keys: only then do logits depend on nothing but their distance."""
    if call.query_deviation is None:
        return
    if call.query_deviation <= TOLERANCE[dtype]:
        yield Finding("query rotation", "like keys", "like keys", RIGHT, call.query_deviation)
        return
    advice = (
        "queries are not rotated like keys: attention depends on absolute positions, not on distances; check that the "
        "same rotation is applied to both"
    )
    yield Finding("query rotation", "like keys", "differently", WRONG, call.query_deviation, advice)


def window_finding(call: MeasuredLayer, config: Declared, tokens: int) -> Finding:
    """Whether the attention window is the declared one."""
    queries = (tokens - 2, tokens - 1)
    measured = f"none in {tokens:,} tokens"
    if call.first_seen[-1]:
        same = call.first_seen[0] == call.first_seen[1]
        measured = f"chunk from {call.first_seen[1]:,}" if same else f"{tokens - call.first_seen[-1]:,} tokens"
    if config.chunk:
        declared, expected = f"chunks of {config.chunk:,}", tuple(at // config.chunk * config.chunk for at in queries)
    elif config.window:
        declared, expected = f"{config.window:,} tokens", tuple(max(0, at - config.window + 1) for at in queries)
    elif config.window == 0:
        declared, expected = "none", (0, 0)
    else:
        return Finding("window", NOT_STATED, measured, NOT_STATED)
    if call.first_seen == expected:
        hidden = (config.chunk or config.window or 0) >= tokens
        return Finding("window", declared, measured, NOT_MEASURED if hidden else RIGHT)
    if not call.first_seen[-1]:
        advice = f"the window ({declared}) is ignored: a query sees more than in training; check sliding_window"
    else:
        advice = f"a query sees {measured}, but the configuration declares {declared}; check sliding_window"
    return Finding("window", declared, measured, WRONG, advice=advice)


def scale_findings(call: MeasuredLayer, config: Declared, dtype: torch.dtype) -> Iterator[Finding]:
    """Factors on keys and logits, soft-capping and sinks."""
    if call.layer.rotation.planes:
        wrong = (
            "keys and queries are multiplied by {}, but the declared attention scaling is {}: logits are {:.3g} times "
            "as large as in training; check attention_factor (mscale) in the loader"
        )
        yield _factor("attention scaling", config.key_scale, call.key_scale, wrong, dtype, power=2)
    wrong = (
        "the softmax scale is {}, but the configuration declares {}: logits are {:.3g} times as large as in training"
    )
    yield _factor("softmax scale", config.softmax_scale, call.layer.scaling, wrong, dtype)
    if config.softcap is not None or call.layer.softcap is not None:
        cap, declared = (f"{value:g}" if value else "none" for value in (call.layer.softcap, config.softcap))
        wrong = f"logits are capped at {cap}, but the configuration declares {declared}; check attn_logit_softcapping"
        yield _compare("soft-capping", declared, cap, wrong)
    if call.layer.sinks is not None:
        yield Finding("sinks", NOT_STATED, "one logit per head", NOT_STATED)


def _factor(
    subject: str, declared: float | None, measured: float | None, wrong: str, dtype: torch.dtype, power: int = 1
) -> Finding:
    digits = 4 if FACTOR[dtype] < 1e-3 else 3
    stated, seen = (None if value is None else f"{value:.{digits}g}" for value in (declared, measured))
    if measured is None or seen is None:
        return Finding(subject, stated or NOT_STATED, NOT_MEASURED, NOT_MEASURED)
    if declared is None or stated is None:
        return Finding(subject, NOT_STATED, seen, NOT_STATED)
    if math.isclose(declared, measured, rel_tol=10 * FACTOR[dtype]):
        return Finding(subject, stated, seen, RIGHT, abs(measured / declared - 1))
    advice = wrong.format(seen, stated, (measured / declared) ** power)
    return Finding(subject, stated, seen, WRONG, abs(measured / declared - 1), advice)


def _compare(subject: str, declared: str, measured: str, advice: str) -> Finding:
    same = declared == measured
    return Finding(subject, declared, measured, RIGHT if same else WRONG, advice="" if same else advice)


def _rounded(base: float) -> int:
    """To four significant digits, the precision of the measurement."""
    return int(float(f"{base:.4g}"))
