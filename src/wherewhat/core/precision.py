"""Numbers keep the precision of the trace, also where the caller uses autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu")
P = ParamSpec("P")
R = TypeVar("R")


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, computed without autocast, which would take the products of float32 tensors in bfloat16.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     without_autocast(torch.mm)(torch.ones(2, 2), torch.ones(2, 2)).dtype
    torch.float32
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for device in DEVICES:
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return call
