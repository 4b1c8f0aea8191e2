"""A pretended accelerator: its tensors hold CPU data, do not mix with CPU tensors, and may lack float64.

Built on torch's PrivateUse1 device. Inside `fake_device()` every operation is intercepted: arguments on the device are
unwrapped, computed on the CPU and wrapped again; an operation on tensors of both devices is an error, as on a GPU,
except that numbers (tensors without axes) of the CPU are allowed, and copies from one device to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = torch.device("privateuseone", 0)
COPIES = {"aten::_to_copy", "aten::copy_", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
_ready: list[bool] = []


class Mixed(RuntimeError):
    """Tensors of two devices met in one operation."""


class OnDevice(Tensor):
    """A tensor of the pretended device."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        return made

    def __repr__(self) -> str:
        return f"OnDevice({self.raw})"

    def tolist(self) -> Any:
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {}, without_float64=False)


def run(func: Any, args: Any, kwargs: dict[str, Any], without_float64: bool) -> Any:
    name = func._schema.name
    tensors = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Tensor)]
    there = any(isinstance(part, OnDevice) for part in tensors)
    here = [part for part in tensors if not isinstance(part, OnDevice) and part.dim()]
    if there and here and name not in COPIES:
        raise Mixed(f"{func} on tensors of the device and of the CPU")
    goal = kwargs.get("device")
    if goal is not None:
        goal = torch.device(goal)
        kwargs = kwargs | {"device": torch.device("cpu")}
    result_there = there if goal is None else goal.type == DEVICE.type
    raw_args, raw_kwargs = tree_map(lambda part: part.raw if isinstance(part, OnDevice) else part, (args, kwargs))
    if name == "aten::_fused_sdp_choice":
        return 0
    if name == "aten::_scaled_dot_product_fused_attention_overrideable":
        raise NotImplementedError("fused attention")
    if name == "aten::copy_":  # torch may copy a result into the memory that it was computed in
        raw_args = (raw_args[0], raw_args[1].clone(), *raw_args[2:])
    made = func(*raw_args, **raw_kwargs)
    if name.endswith("_") and there and isinstance(args[0], OnDevice):  # in place
        return args[0]
    wanted = dict(zip(map(id, tree_flatten((raw_args, raw_kwargs))[0]), tree_flatten((args, kwargs))[0], strict=False))

    def wrap(part: Any) -> Any:
        if not isinstance(part, Tensor) or not result_there:
            return part
        if isinstance(wanted.get(id(part)), OnDevice):  # an argument that is returned, such as out=
            return wanted[id(part)]
        if without_float64 and part.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"{func}: the device has no {part.dtype}")
        return OnDevice(part.resolve_conj().resolve_neg())  # a wrapper does not carry these marks

    return tree_map(wrap, made)


class _Mode(TorchDispatchMode):
    def __init__(self, without_float64: bool) -> None:
        super().__init__()
        self.without_float64 = without_float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {}, self.without_float64)


class _Out(TorchFunctionMode):
    """`out=` of an operation that torch takes apart: parts of it would be attached to the wrapper, not to its data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(kwargs.get("out"), OnDevice):
            return kwargs["out"].copy_(func(*args, **{name: part for name, part in kwargs.items() if name != "out"}))
        return func(*args, **kwargs)


@contextmanager
def fake_device(without_float64: bool = False) -> Iterator[None]:
    """Within this context the device exists."""
    if not _ready:
        _setup_privateuseone_for_python_backend()
        _ready.append(True)
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with _Mode(without_float64), _Out(), torch.no_grad(), nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def move(model: nn.Module) -> nn.Module:
    """Put the parameters and buffers of a model on the device."""
    seen: dict[int, Tensor] = {}
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = seen.setdefault(
                    id(value), nn.Parameter(OnDevice(value.data), requires_grad=False)
                )
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = OnDevice(value)
    return model
