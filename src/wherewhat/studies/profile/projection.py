"""The query and keys of a real head on one of its rotation planes, captured from the model of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from ...core.trace import Trace
from ...errors import BadInput
from ...lab import Transformer
from ...lab.gptj import to_gptj
from ...tracing import capture
from ...tracing.fingerprint import model_hash
from ...tracing.load import Loading, is_lab_model, open_model
from .profile import Profile


@dataclass(frozen=True)
class Projection:
    """Query and keys on the plane, with the rotation by position, as the head sees them, and without it (content)."""

    model: str
    layer: int
    head: int
    frequency: int
    angle: float
    keys: Float[np.ndarray, "T 2"]
    contents: Float[np.ndarray, "T 2"]
    query: Float[np.ndarray, " 2"]
    query_content: Float[np.ndarray, " 2"]
    attention: Float[np.ndarray, " T"]


def project_profile(profile: Profile, layer: int, head: int, frequency: int) -> Projection:
    """Run the first prompt of a profile again; a model that has changed since is refused.

    >>> project_profile(Profile.load("profiles/smollm2"), layer=12, head=3, frequency=20)        # doctest: +SKIP
    """
    about, name = profile.about, profile.about["model"]
    lab = is_lab_model(name)
    loading: Loading = {} if lab else {"dtype": about["settings"]["dtype"], "revision": about.get("revision")}
    model = open_model(name, **loading).model
    if isinstance(model, Transformer):
        model = to_gptj(model)
    if model_hash(model) != about["settings"]["weights"]:
        raise BadInput(f"{name}: not the model that was profiled; rerun the profile")
    trace = capture(model, torch.tensor([about["prompts"][0]["ids"]]))
    return project(trace, layer, head, frequency, profile.name)


def project(trace: Trace, layer: int, head: int, frequency: int, model: str = "") -> Projection:
    """Query and keys of one prompt on one plane of one head; layers count from 0, frequency IDs from 1.

    >>> project(ww.capture(model, input_ids), layer=0, head=3, frequency=1).angle                # doctest: +SKIP
    1.0
    """
    if layer not in trace.layers:
        raise BadInput(f"layer {layer}: the model's attention layers are {trace.layers[0]} to {trace.layers[-1]}")
    number = trace.layers.index(layer)
    seen = trace.attention[number]
    heads, rotation = seen.queries.shape[1], seen.rotation
    if not 0 <= head < heads:
        raise BadInput(f"head {head}: layer {layer} has {heads} heads, counted from 0")
    if not 1 <= frequency <= len(rotation.rotating):
        raise BadInput(f"frequency {frequency}: layer {layer} has IDs 1 to {len(rotation.rotating)}")
    plane = rotation.rotating[frequency - 1]
    places = torch.arange(trace.query + 1, device=seen.keys.device)
    keys = seen.keys[0, head * seen.keys.shape[1] // heads, : trace.query + 1].float()
    query = seen.queries[0, head, trace.positions.index(trace.query)][None].float()

    def on_plane(vectors: torch.Tensor) -> np.ndarray:
        first, second = vectors[:, rotation.first][:, plane], vectors[:, rotation.second][:, plane]
        return torch.stack([first, second], 1).cpu().numpy()

    return Projection(
        model, layer, head, frequency, float(rotation.angles[plane]),
        keys=on_plane(keys),
        contents=on_plane(rotation.rotate(keys, places, back=True)),
        query=on_plane(query)[0],
        query_content=on_plane(rotation.rotate(query, places[-1:], back=True))[0],
        attention=trace.attention_rows(number)[0, head].cpu().numpy(),
    )  # fmt: skip
