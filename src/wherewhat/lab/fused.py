"""A block of the Transformer as one operation, its derivative written out: the numbers of `Block.forward`, faster.

Autograd keeps every intermediate result and makes a pass over memory for each operation. Here results are changed in
place, and the gradients of queries, keys, values and hidden units are written where the next product reads them. What
lies between the matrix products is compiled where numba is installed. Everything stays equal up to float32 rounding.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor

from ..core.compiled import compiled, run_in_threads
from .dropout import Dropout

if TYPE_CHECKING:
    from .transformer import Block

Product = Callable[[Tensor, Tensor], Tensor]


# oneDNN's product, 4 to 10 % faster than MKL's on processors that are not Intel's; torch has it on x86.
_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def float32_product(one: Tensor, other: Tensor) -> Tensor:
    """A matrix product without any additional rounding."""
    fits = one.dtype == torch.float32 and one.device.type == "cpu" and one.stride(-1) == 1
    if not fits or _LINEAR is None or platform.machine() not in ("x86_64", "AMD64"):
        return one @ other
    return _LINEAR(one, other.mT, None, "none", [], "")


def bfloat16_product(one: Tensor, other: Tensor) -> Tensor:
    """Factors and result are rounded to bfloat16; sums are in float32."""
    return (one.bfloat16() @ other.bfloat16()).to(one.dtype)


def fused_block(
    block: Block,
    stream: Float[Tensor, "B T W"],
    phasors: Complex[Tensor, "T 1 P"],
    drop: Dropout,
    product: Product = float32_product,
) -> Float[Tensor, "B T W"]:
    """What `block` makes of the stream, with dropout of attention and of both outputs."""
    batch, tokens, _ = stream.shape
    shapes = (batch, block.heads, tokens, tokens), stream.shape, stream.shape
    factors = (drop.factors(shape) for shape in shapes)
    return _Block.apply(  # pyright: ignore[reportReturnType] - torch declares no type
        stream, block.norm.weight, block.norm.bias, block.inward.weight, block.hidden_bias, block.attention_out.weight,
        block.hidden_out.weight, block.hidden_out.bias, block, phasors, *factors, product,
    )  # fmt: skip


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        gain: Tensor,
        shift: Tensor,
        inward: Tensor,
        hidden_bias: Tensor,
        attention_out: Tensor,
        hidden_out: Tensor,
        out_bias: Tensor,
        block: Block,
        phasors: Tensor,
        drop_attention: Tensor | None,
        drop_attended: Tensor | None,
        drop_hidden: Tensor | None,
        product: Product,
    ) -> Tensor:
        width, heads = stream.shape[-1], block.heads
        normed, mean, scale = torch.native_layer_norm(stream, (width,), gain, shift, block.norm.eps)
        made = product(normed.flatten(0, 1), inward.mT).unflatten(0, stream.shape[:2])
        # Queries also take the factor of the logits; their gradients then do so, too.
        rotation = torch.stack([phasors * (width // heads) ** -0.5, phasors], 1)  # T 2 1 P
        _planes(made, width, heads).mul_(rotation)
        attention, attended = _attend(made, width, heads, drop_attention)
        activity = _gelu(made, hidden_bias, block.gelu)
        out = product(attended.flatten(0, 1), attention_out.mT).view_as(stream)
        out_hidden = product(activity.flatten(0, 1), hidden_out.mT).add_(out_bias).view_as(stream)
        out = stream + _times(out, drop_attended) + _times(out_hidden, drop_hidden)
        ctx.save_for_backward(
            stream, gain, shift, inward, attention_out, hidden_out, normed, mean, scale, made, rotation, attention,
            attended, activity, drop_attention, drop_attended, drop_hidden,
        )  # fmt: skip
        ctx.block, ctx.product = block, product
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (given,) = gradients
        block, product = ctx.block, ctx.product
        (
            stream, gain, shift, inward, attention_out, hidden_out, normed, mean, scale, made, rotation, attention,
            attended, activity, drop_attention, drop_attended, drop_hidden,
        ) = ctx.saved_tensors  # fmt: skip
        width, heads = stream.shape[-1], block.heads
        of_out, of_hidden_out = (_times(given, drop).flatten(0, 1) for drop in (drop_attended, drop_hidden))
        of_made = torch.empty_like(made)

        of_activity = product(of_hidden_out, hidden_out).unflatten(0, stream.shape[:2])
        of_hidden = torch.mul(of_activity, made[..., 3 * width :], out=of_made[..., 3 * width :])
        of_attended = product(of_out, attention_out).view_as(stream)
        _attend_backward(of_attended, made, heads, drop_attention, attention, of_made)
        _planes(of_made, width, heads).mul_(rotation.conj())

        flat, of_flat = normed.flatten(0, 1), of_made.flatten(0, 1)
        of_normed = product(of_flat, inward).view_as(stream)
        of_stream, of_gain, of_shift = torch.ops.aten.native_layer_norm_backward(
            of_normed, stream, (width,), mean, scale, gain, shift, (True, True, True)
        )
        return (
            of_stream.add_(given), of_gain, of_shift, product(of_flat.mT, flat), of_hidden.sum((0, 1)),
            product(of_out.mT, attended.flatten(0, 1)), product(of_hidden_out.mT, activity.flatten(0, 1)),
            of_hidden_out.sum(0), *(None,) * 6,
        )  # fmt: skip


def _planes(made: Float[Tensor, "B T O"], width: int, heads: int) -> Complex[Tensor, "B T 2 H P"]:
    """Queries and keys as complex numbers; a view."""
    return torch.view_as_complex(made[..., : 2 * width].unflatten(-1, (2, heads, -1, 2)))


def _heads(made: Float[Tensor, "B T O"], width: int, heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values, each (B, H, T, D); views."""
    return made[..., : 3 * width].unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def _times(values: Tensor, factors: Tensor | None) -> Tensor:
    return values if factors is None else values * factors


@lru_cache(maxsize=8)
def _future(tokens: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "T T"]:
    """What makes attention causal, added to the logits."""
    return torch.full((tokens, tokens), -math.inf, dtype=dtype, device=device).triu(1)


def _attend(
    made: Float[Tensor, "B T O"], width: int, heads: int, drop: Float[Tensor, "B H T T"] | None
) -> tuple[Float[Tensor, "B H T T"], Float[Tensor, "B T W"]]:
    """Causal attention before dropout, and what is attended to."""
    batch, tokens = made.shape[:2]
    if (kernels := _compiled(made)) is not None:
        attention, attended = made.new_empty(batch, heads, tokens, tokens), made.new_empty(batch, tokens, width)
        run_in_threads(kernels.attend, made.numel(), made, _or_ones(drop, attention), attention, attended)
        return attention, attended
    queries, keys, values = _heads(made, width, heads)
    logits = queries @ keys.mT
    attention = logits.add_(_future(tokens, made.dtype, made.device)).softmax(-1)
    return attention, (_times(attention, drop) @ values).transpose(1, 2).flatten(2)


def _attend_backward(
    given: Float[Tensor, "B T W"],
    made: Float[Tensor, "B T O"],
    heads: int,
    drop: Float[Tensor, "B H T T"] | None,
    attention: Float[Tensor, "B H T T"],
    of_made: Float[Tensor, "B T O"],
) -> None:
    """Write the gradients of rotated queries, keys and values to `of_made`."""
    if (kernels := _compiled(made)) is not None:
        return run_in_threads(
            kernels.attend_backward, made.numel(), given, made, _or_ones(drop, attention), attention, of_made
        )
    width = given.shape[-1]
    queries, keys, values = _heads(made, width, heads)
    of_queries, of_keys, of_values = _heads(of_made, width, heads)
    given = given.unflatten(-1, (heads, -1)).transpose(1, 2)
    of_values.copy_(_times(attention, drop).mT @ given)
    of_logits = torch.ops.aten._softmax_backward_data(_times(given @ values.mT, drop), attention, -1, attention.dtype)
    of_queries.copy_(of_logits @ keys)
    of_keys.copy_(of_logits.mT @ queries)
    return None


def _gelu(made: Float[Tensor, "B T O"], bias: Float[Tensor, " U"], approximate: str) -> Float[Tensor, "B T U"]:
    """GELU of the hidden units, the last columns of `made`, which its derivative replaces."""
    kernels = _compiled(made)
    if kernels is not None and approximate == "tanh":
        activity = made.new_empty(*made.shape[:2], len(bias))
        run_in_threads(kernels.gelu, made.numel(), made, bias, activity)
        return activity
    hidden = made[..., made.shape[-1] - len(bias) :].add_(bias)
    activity = F.gelu(hidden, approximate=approximate)
    hidden.copy_(torch.ops.aten.gelu_backward(torch.ones_like(hidden), hidden, approximate=approximate))
    return activity


def _compiled(values: Tensor) -> ModuleType | None:
    """The compiled functions of `kernels`, where `core.compiled` allows it."""
    if compiled(values) is None:
        return None
    from . import kernels

    return kernels


def _or_ones(factors: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like) if factors is None else factors
