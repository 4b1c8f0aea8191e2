"""Where tensors are: models larger than the available memory, whose weights accelerate keeps elsewhere until the layer
runs, and devices without float64."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput

WITHOUT_FLOAT64 = {"mps"}


def entry_device(model: Any) -> torch.device:
    """The device for token ids: that of the embeddings, or the one to which offloaded embeddings are brought.

    >>> torch.tensor([ids], device=entry_device(model))                        # doctest: +SKIP
    """
    embeddings = model.get_input_embeddings()
    device = embeddings.weight.device
    if device.type != "meta":
        return device
    if (hook := next(hooks_of(embeddings), None)) is None:
        raise BadInput("the model's weights are on the meta device: load them first")
    return torch.device(hook.execution_device)


def kept_on(device: torch.device) -> torch.device:
    """Where captured tensors are kept: on their device, or on the CPU if that has no float64, which sums need."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def fetched(root: nn.Module, name: str, value: Tensor) -> Tensor:
    """A parameter or buffer of `root` by its name; an offloaded one is read from where it is stored."""
    if value.device.type != "meta":
        return value
    parts = name.split(".")
    for at in reversed(range(len(parts))):
        for hook in hooks_of(root.get_submodule(".".join(parts[:at]))):
            try:
                return hook.weights_map[".".join(parts[at:])]
            except KeyError:
                continue
    raise BadInput(f"the weights of {name} are on the meta device: load them first")


def hooks_of(module: nn.Module) -> Iterator[Any]:
    """The hooks of accelerate that fetch the weights of a module when it runs."""
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", [hook]):
        if getattr(one, "weights_map", None) is not None:
            yield one


def read_device_map(written: str) -> dict[str, Any]:
    """The options of transformers for a device map, with an optional memory limit per device.

    >>> read_device_map("auto:0=20GB,cpu=500MB")
    {'device_map': 'auto', 'max_memory': {0: '20GB', 'cpu': '500MB'}}
    """
    kind, _, limits = written.partition(":")
    if not limits:
        return {"device_map": kind}
    if not re.fullmatch(r"(\w+=\d+(\.\d+)?[KMG]i?B)(,\w+=\d+(\.\d+)?[KMG]i?B)*", limits):
        raise BadInput(f"device map {written!r}: limits are written as auto:0=20GB,cpu=500MB")
    memory = dict(limit.split("=") for limit in limits.split(","))
    return {
        "device_map": kind,
        "max_memory": {int(device) if device.isdecimal() else device: size for device, size in memory.items()},
    }
