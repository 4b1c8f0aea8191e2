"""Hashes that identify a model: of its weights, and of everything that its scores depend on."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .offload import fetched
from .unwrap import adapters_in_force

# Settings that describe where a model came from, not what it computes.
ORIGIN = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


def dtype_name(model: PreTrainedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


def model_hash(model: PreTrainedModel) -> str:
    """Hash of everything that the scores depend on: parameters, buffers such as the angles, and the configuration."""
    digest = hashlib.sha256(weights_hash(model).encode())
    for name, value in sorted(model.named_buffers()):
        digest.update(name.encode() + _bytes(fetched(model, name, value)).tobytes())
    stated = {name: value for name, value in model.config.to_dict().items() if name not in ORIGIN}
    digest.update(json.dumps(stated, sort_keys=True, default=str).encode())
    digest.update(adapters_in_force(model).encode())
    return digest.hexdigest()


def weights_hash(model: torch.nn.Module) -> str:
    """Hash of every parameter and its name: equal weights have equal hashes, wherever they are stored."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(_bytes(fetched(model, name, value)).data)
    return digest.hexdigest()


def _bytes(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
