"""A real head's query and keys on one of its rotation planes, captured again from the model that a profile names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from ..capture import capture, load
from ..core.trace import Trace
from ..errors import BadInput
from ..lab import embedded
from ..lab.gptj import to_gptj
from .profile import Profile, model_hash


@dataclass(frozen=True)
class Projection:
    """What stands on the plane: turned to its position as the head sees it, and turned back, as content."""

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
    """The first prompt of a profile run again; a model that has changed since is refused.

    >>> project_profile(Profile.load("profiles/smollm2"), layer=12, head=3, frequency=20)        # doctest: +SKIP
    """
    about = profile.about
    if about.get("embedded"):
        model = to_gptj(embedded(about["model"]))
    else:
        model = load(about["model"], dtype=about["settings"]["dtype"], revision=about.get("revision"))
    if model_hash(model) != about["settings"]["weights"]:
        raise BadInput(f"{about['model']}: not the model that was profiled; make the profile again")
    trace = capture(model, torch.tensor([about["prompts"][0]["ids"]]))
    return project(trace, layer, head, frequency, profile.name)


def project(trace: Trace, layer: int, head: int, frequency: int, model: str = "") -> Projection:
    """One prompt's query and keys on one plane of one head; layer as the model counts, frequency ID from 1.

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
    if not 1 <= frequency <= len(rotation.turning):
        raise BadInput(f"frequency {frequency}: layer {layer} has IDs 1 to {len(rotation.turning)}")
    plane = rotation.turning[frequency - 1]
    places = torch.arange(trace.query + 1, device=seen.keys.device)
    keys = seen.keys[0, head * seen.keys.shape[1] // heads, : trace.query + 1].float()
    query = seen.queries[0, head, trace.positions.index(trace.query)][None].float()

    def on_plane(vectors: torch.Tensor) -> np.ndarray:
        first, second = vectors[:, rotation.first][:, plane], vectors[:, rotation.second][:, plane]
        return torch.stack([first, second], 1).cpu().numpy()

    return Projection(
        model, layer, head, frequency, float(rotation.angles[plane]),
        keys=on_plane(keys),
        contents=on_plane(rotation.turn(keys, places, back=True)),
        query=on_plane(query)[0],
        query_content=on_plane(rotation.turn(query, places[-1:], back=True))[0],
        attention=trace.attention_rows(number)[0, head].cpu().numpy(),
    )  # fmt: skip
