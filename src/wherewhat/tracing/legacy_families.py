"""Hooks for the few families that do not use the attention interface: GPT-J, CodeGen, GPT-NeoX-Japanese, GPT-Neo,
Falcon, BLOOM and MPT. Each is a context manager that lets a visitor in and restores the module afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import NotMeasurable
from .modules import modules_of

if TYPE_CHECKING:
    from .hook import Visitor

WayIn = Callable[["Visitor"], AbstractContextManager[None]]


def ways_into(model: nn.Module) -> list[WayIn]:
    """One hook per attention module that needs one; empty for families that use the attention interface."""
    ways = {
        "GPTJAttention": _through_attn,
        "CodeGenAttention": _through_attn,
        "GPTNeoXJapaneseAttention": _through_attn,
        "GPTNeoSelfAttention": _through_attn,
        "FalconAttention": _through_sdpa,
        "BloomAttention": _through_bloom,
        "MptAttention": _through_mpt,
    }
    found = ((ways.get(type(module).__name__), module) for module in modules_of(model))
    return [partial(way, module) for way, module in found if way is not None]


@contextmanager
def _through_attn(module: Any, visitor: Visitor) -> Iterator[None]:
    """Families with a method `_attn(query, key, value, attention_mask)`; their scale is an attribute.

    GPT-Neo has no scale, and its own mask for layers with a window.
    """
    original, patched = module._attn, vars(module).get("_attn")
    scale = float(getattr(module, "scale_attn", None) or getattr(module, "norm_factor", 1))

    def visited(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask, tokens = attention_mask, key.shape[2]
        if isinstance(window := getattr(module, "bias", None), Tensor) and window.dtype == torch.bool:
            mask = window[:, :, tokens - query.shape[2] : tokens, :tokens]
        query, key = visitor.enter(module, query, key, scaling=1 / scale, mask=mask)
        output, weights = original(query, key, value, attention_mask)
        return visitor.leave(module, output), weights

    module._attn = visited
    try:
        yield
    finally:
        del module._attn
        if patched is not None:  # another wrapper of the same module
            module._attn = patched


@contextmanager
def _through_sdpa(module: nn.Module, visitor: Visitor) -> Iterator[None]:
    """Falcon calls torch's attention by its full name, so the function is replaced while the module runs."""
    before: list[Callable[..., Tensor]] = []
    visits: list[torch.Size] = []

    def visited(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **rest: Any) -> Tensor:
        visits.append(query.shape)
        entered = visitor.enter(module, query, key, scaling=rest.get("scale"), mask=attn_mask)
        if entered[0].shape != query.shape:
            rest["scale"] = rest.get("scale") or query.shape[-1] ** -0.5
        return visitor.leave(module, before[-1](*entered, value, attn_mask=attn_mask, **rest))

    def enter(*_: object) -> None:
        visits.clear()
        before.append(nn.functional.scaled_dot_product_attention)
        nn.functional.scaled_dot_product_attention = visited

    def leave(*_: object) -> None:
        if before:
            nn.functional.scaled_dot_product_attention = before.pop()

    def look(*_: object) -> None:
        if not visits:
            raise NotMeasurable("Falcon can be captured and gated only with sdpa attention, without output_attentions")

    handles = [
        module.register_forward_pre_hook(enter),
        module.register_forward_hook(leave, always_call=True, prepend=True),  # the last to enter leaves first
        module.register_forward_hook(look),
    ]
    try:
        yield
    finally:
        leave()
        for handle in handles:
            handle.remove()


@contextmanager
def _through_bloom(module: Any, visitor: Visitor) -> Iterator[None]:
    """BLOOM: queries and keys from the fused projection, ALiBi and mask from the module's arguments."""
    leave = partial(_leave, visitor, module, module.num_heads)

    def visit(fused: Tensor) -> Tensor:
        query, key, _ = module._reshape(fused)
        given = arguments[0]
        key = _after_past(key, given["layer_past"], module)
        alibi = given["alibi"].unflatten(0, (len(query), -1)) * module.beta  # B H 1 T
        changed, _ = visitor.enter(
            module, query, key, scaling=module.inv_norm_factor, mask=given["attention_mask"], position_bias=alibi
        )
        if changed is query:
            return fused
        parts = fused.unflatten(-1, (module.num_heads, 3, -1)).clone()
        parts[..., 0, :] = changed.transpose(1, 2)
        return parts.flatten(2)

    names = ("hidden_states", "residual", "alibi", "attention_mask", "layer_past")
    with _arguments_of(module, *names) as arguments, _between(module.query_key_value, visit, module.dense, leave):
        yield


@contextmanager
def _through_mpt(module: Any, visitor: Visitor) -> Iterator[None]:
    """MPT: the same, with a boolean mask that is true where keys are hidden."""
    leave = partial(_leave, visitor, module, module.n_heads)

    def visit(fused: Tensor) -> Tensor:
        if module.clip_qkv:
            fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        query, key, _ = (part.unflatten(2, (module.n_heads, -1)).transpose(1, 2) for part in fused.chunk(3, dim=2))
        given = arguments[0]
        key = _after_past(key, given["past_key_values"], module)
        bias, mask = given["position_bias"], given["attention_mask"]
        tokens = key.shape[2]
        changed, _ = visitor.enter(
            module,
            query,
            key,
            scaling=module.softmax_scale,
            mask=None if mask is None else ~mask.bool(),
            position_bias=None if bias is None else bias[None, :, -tokens:, -tokens:],
        )
        if changed is query:
            return fused
        queries = changed.transpose(1, 2).flatten(2)
        return torch.cat([queries, fused[..., queries.shape[-1] :]], -1)

    names = ("hidden_states", "position_bias", "past_key_values", "attention_mask")
    with _arguments_of(module, *names) as arguments, _between(module.Wqkv, visit, module.out_proj, leave):
        yield


@contextmanager
def _between(
    inward: nn.Module, visit: Callable[[Tensor], Tensor], outward: nn.Module, leave: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Change the output of the projection `inward` and the input of the projection `outward`."""

    def after(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return visit(output)

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (leave(args[0]), *args[1:])

    handles = [inward.register_forward_hook(after), outward.register_forward_pre_hook(before)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _leave(visitor: Visitor, module: nn.Module, heads: int, outputs: Tensor) -> Tensor:
    """Pass the outputs of all heads (B, T, H * value dimension) through the visitor, split into heads."""
    by_head = outputs.unflatten(-1, (heads, -1)).transpose(1, 2)
    return visitor.leave(module, by_head).transpose(1, 2).flatten(2)


def _after_past(key: Tensor, past: Any, module: Any) -> Tensor:
    """The keys that the module will attend to: those in the cache first, then the new ones."""
    if past is None or not past.get_seq_length(module.layer_idx):
        return key
    return torch.cat([past.layers[module.layer_idx].keys, key], dim=2)


@contextmanager
def _arguments_of(module: nn.Module, *names: str) -> Iterator[list[dict[str, Any]]]:
    """The arguments of the module's current call, by name."""
    current: list[dict[str, Any]] = [{}]

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        current[0] = dict.fromkeys(names) | dict(zip(names, args, strict=False)) | kwargs

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield current
    finally:
        handle.remove()
        current[0] = {}
