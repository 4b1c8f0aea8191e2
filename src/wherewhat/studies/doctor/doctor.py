"""Measure how position acts on every layer of a model, and compare it with what the configuration declares.

One fault cannot be detected this way: weights laid out for the other pairing of dimensions. Angles, pairs and
dimensions are then as declared and the model merely reads noise; compare its answers with a reference to find it.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
from transformers import PreTrainedModel

from ...cells.cells import check_writable
from ...lab import Transformer
from ...lab.gptj import to_gptj
from ...results import Progress, Say, ignore_progress, ignore_sentence
from ...tracing.declared import declared, lengths_to_test, settings_of
from ...tracing.fingerprint import dtype_name, model_hash
from ...tracing.load import AnyModel, Loading, is_lab_model, open_model
from ...tracing.rotation_probe import shifts_within
from ...tracing.self_check import certify, make_prompt, stated_context
from ...words import name_layers
from .diagnosis import NOT_MEASURED, NOT_STATED, RIGHT, WRONG, Diagnosis, Finding, LayerFinding, measurement_table
from .findings import angles_finding, query_findings, rotation_findings, scale_findings, window_finding
from .measure import MeasuredLayer, measure_layers, tokens_to_probe

__all__ = ["NOT_MEASURED", "NOT_STATED", "RIGHT", "WRONG", "Diagnosis", "LayerFinding", "doctor"]


def doctor(
    model: AnyModel,
    *,
    folder: str | Path | None = None,
    stated: Mapping[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Diagnosis:
    """Rotation, windows and scaling of every layer as measured, compared with what the configuration declares.

    `model` is a model, or anything that `ww.load` takes. A model given by name is compared with its config.json (or
    GGUF file) as written, a model object with its configuration as loaded, unless the settings are given as `stated`.
    With a `folder`, the diagnosis is saved there.

    >>> diagnosis = ww.doctor("HuggingFaceTB/SmolLM2-135M")               # doctest: +SKIP
    >>> print(diagnosis.verdict)                                          # doctest: +SKIP
    """
    if folder is not None:
        check_writable(Path(folder))
    named = isinstance(model, (str, Path))
    if named:
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, **loading)
    if named and stated is None and not is_lab_model(model):
        stated = settings_of(str(model), loading.get("revision"))
    examined = to_gptj(opened.model) if isinstance(opened.model, Transformer) else opened.model
    progress("measuring how position acts on every layer", 0, 1)
    measurements, about = _examine(examined, stated)
    origin = {"model": opened.name, "revision": loading.get("revision"), "weights": model_hash(examined)}
    diagnosis = Diagnosis(measurements, origin | about)
    if folder is not None:
        diagnosis.save(folder)
    return diagnosis


def _examine(model: PreTrainedModel, stated: Mapping[str, Any] | None) -> tuple[pd.DataFrame, dict[str, Any]]:
    config = model.config.get_text_config(decoder=True)
    context = stated_context(model) or 2048
    certify(model, context)  # refuse a model that cannot be measured before its settings are read
    count = getattr(config, "num_hidden_layers", 1)
    lengths = lengths_to_test(config, stated, count, context)
    expected = [declared(config, layer, lengths[0], stated) for layer in range(count)]
    tokens = tokens_to_probe(expected, context)
    certificates = {length: certify(model, length) for length in lengths}
    measured = measure_layers(model, tokens, lengths[0], certificates[lengths[0]])
    reach = max(shifts_within(min(context, 8192), make_prompt(model, context).tokens), default=1)
    rows: list[tuple[int, Finding]] = []
    for number, call in enumerate(measured):
        index = call.layer.index
        own = expected[index] if index < count else declared(config, index, lengths[0], stated)
        findings = [*rotation_findings(call.layer.rotation, own, reach, model.dtype, _at(lengths[0], lengths))]
        for length in lengths[1:]:
            rotation = certificates[length].positions[number].rotation
            at_length = declared(config, index, length, stated)
            findings.append(angles_finding(rotation, at_length, reach, model.dtype, _at(length, lengths)))
        findings += query_findings(call, model.dtype)
        findings += [window_finding(call, own, tokens), *scale_findings(call, own, model.dtype)]
        rows += [(index, finding) for finding in findings]
    about = {
        "family": config.model_type,
        "dtype": dtype_name(model),
        "context": context,
        "probed": tokens,
        "reach": list(_reach_sentences(measured, context)),
        "self_check": dict(certificates[lengths[0]].deviation),
        "versions": {package: version(package) for package in ("wherewhat", "torch", "transformers")}
        | {"python": platform.python_version()},
    }
    return measurement_table(rows), about


def _reach_sentences(measured: list[MeasuredLayer], context: int) -> Iterator[str]:
    """How far the planes of each kind of layer rotate over the tokens that it can see."""
    groups: dict[str, list[int]] = {}
    for call in measured:
        angles = call.layer.rotation.angles[call.layer.rotation.rotating].abs()
        if not len(angles):
            continue
        span = call.layer.keys.shape[2] - call.first_seen[-1] if call.first_seen[-1] else context
        turns = angles.double().cpu() * span / (2 * math.pi)
        words = (
            f"the slowest of {len(angles)} planes makes {float(turns.min()):.2g} rotations over the {span:,} tokens of "
            f"the {'window' if call.first_seen[-1] else 'context'}"
        )
        unfinished = int((turns < 1).sum())
        words += f"; {unfinished} planes never complete one" if unfinished else "; every plane completes at least one"
        groups.setdefault(words, []).append(call.layer.index)
    for words, layers in groups.items():
        yield f"{name_layers(tuple(layers))}: {words}"


def _at(length: int, lengths: list[int]) -> str:
    return f" at {length:,} tokens" if len(lengths) > 1 else ""
