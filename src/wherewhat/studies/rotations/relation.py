"""The effect of a rotation beside the positional score of the same frequency: where they disagree, and why."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from ...core.rotation_effect import rotation_effect
from ...core.scores import score_frequencies
from ...prompts import Prompt
from ...tracing import capture
from ...tracing.offload import entry_device


def relation(model: Any, prompt: Prompt) -> pd.DataFrame:
    """One row per layer, head and rotary frequency, seen from the last token of a prompt.

    `effect`: half the variance of logits that rotation causes, in nats; `norm`: that of the query times the mean of the
    keys; `positional`, `symbolic`: the scores of the frequency alone; `radians`: how far it rotates over the prompt;
    `sink`: the largest weight that the head gives to a single key.
    """
    ids = torch.tensor([prompt.ids], device=entry_device(model))
    trace = capture(model, ids)
    found, scores = rotation_effect(trace), score_frequencies(trace, prompt.blocks)
    sink = torch.stack([trace.attention_rows(layer)[0].amax(-1) for layer in range(len(trace.attention))])
    effect = found.effect[0]
    layer, head, plane = (~effect.isnan()).nonzero(as_tuple=True)
    columns = {
        "layer": torch.tensor(trace.layers)[layer],
        "head": head,
        "frequency": plane + 1,
        "radians": trace.angles[layer, plane].abs() * trace.keys,
        "effect": effect[layer, head, plane],
        "norm": found.norm[0][layer, head, plane],
        "positional": scores.positional[0][layer, head, plane],
        "symbolic": scores.symbolic[0][layer, head, plane],
        "sink": sink[layer, head],
    }
    return pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
