"""Mixed precision in float16, emulated on processors without it: matrix products are rounded as on a GPU.

Within `float16_products`, the factors and the result of every matrix product are rounded to float16, forwards and
backwards, while sums stay in float32, as on tensor cores. Gradients are scaled before rounding, as a loss scaler does.
Weights, optimizer, norms and softmax stay in float32, as under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SCALE = 2.0**16  # the first one of torch's loss scaler
PRODUCTS = {F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__}


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.half().to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return (gradient * SCALE).half().to(gradient.dtype) / SCALE


def rounded(values: Tensor) -> Tensor:
    """Values rounded to float16, and their gradient too."""
    return _Rounded.apply(values)  # pyright: ignore[reportReturnType] - torch declares no type


class float16_products(TorchFunctionMode):  # a context, named like a function
    """Matrix products in this context have factors and results rounded to float16.

    >>> with float16_products():
    ...     torch.tensor([[1.0001]]) @ torch.tensor([[3.0]])
    tensor([[3.]])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        factors = (rounded(value) if isinstance(value, Tensor) else value for value in args)
        return rounded(func(*factors, **(kwargs or {})))
