"""Hashes that identify a model: of its weights, and of everything that its scores depend on."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import Future, ThreadPoolExecutor

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
    state, threads = model.state_dict(), torch.get_num_threads()
    shared: dict[object, Future[bytes]] = {}  # by memory, so that tied parameters are hashed once
    parts: list[tuple[str, Future[bytes]]] = []
    with ThreadPoolExecutor(threads) as pool:
        for name, value in sorted(state.items()):
            offloaded = value.device.type == "meta"
            here = value.device.type == "cpu"
            key = (value.data_ptr(), value.dtype, value.shape, value.stride()) if here else name
            if key not in shared:
                shared[key] = pool.submit(_digest, fetched(model, name, value))
            parts.append((name, shared[key]))
            if offloaded and len(parts) > threads:
                parts[-threads][1].result()  # few of them in memory at a time
    digest = hashlib.sha256()
    for name, part in parts:
        digest.update(name.encode() + part.result())
    return digest.hexdigest()


def _digest(value: Tensor) -> bytes:
    return hashlib.sha256(_bytes(value).data).digest()


def _bytes(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
