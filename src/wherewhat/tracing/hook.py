"""Hooks into a Hugging Face model: an attention function that records its inputs and then attends, and visitors around
whichever attention function the model uses.

Nearly every family gets its attention function from `AttentionInterface` and its mask from `AttentionMaskInterface`;
the few that do not are handled in `legacy_families`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import NotMeasurable
from . import legacy_families as legacy
from .modules import modules_of
from .offload import kept_on
from .strips import strip_attention

# The name must not contain "sdpa" or "flex": transformers would run capability checks of its own on it.
NAME = "wherewhat"
modeling_log = logging.getLogger("transformers.modeling_utils")


@runtime_checkable
class Visitor(Protocol):
    """Sees the queries and keys of every attention call, and then its outputs, and may change them."""

    layer: int | None  # which layer of the model is running

    def enter(
        self, module: nn.Module, query: Tensor, key: Tensor, /, *, scaling: float | None = None, **facts: Any
    ) -> tuple[Tensor, Tensor]:
        """The queries (B, H, Q, D) and keys (B, K, T, D) to attend with, changed or not."""
        ...

    def leave(self, module: nn.Module, output: Tensor, /) -> Tensor:
        """The outputs of the heads (B, H, Q, value dimension), changed or not."""
        ...


@runtime_checkable
class Gate(Visitor, Protocol):
    """A visitor that changes a model temporarily."""

    modules: Set[nn.Module]  # the attention modules of its model
    positions: Tensor | None  # of the tokens that are run, if they were passed to the model

    @property
    def frozen_by(self) -> tuple[int, ...]:
        """The changes to the rotation that are in force, as numbers."""
        ...

    def mask(self, name: str, module: nn.Module, query: Tensor, key: Tensor, args: Any, given: Any, /) -> Any:
        """The further arguments of the attention function of this name, the mask among them, changed or not."""
        ...


gates: WeakKeyDictionary[nn.Module, Gate] = WeakKeyDictionary()


@dataclass(frozen=True)
class Record:
    """The inputs of one attention call, for the requested queries."""

    module: nn.Module
    layer: int | None  # which layer of the model was running
    queries: Tensor  # B H Q D
    keys: Tensor  # B K T D
    scaling: float
    softcap: float | None
    bias: Tensor | None  # B|1 H|1 Q T
    sinks: Tensor | None  # H


class KeysReached(Exception):
    """Ends an attention call that is run for its keys alone."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


@dataclass
class Recorder:
    """Collects one record per attention call, in the order of the calls."""

    positions: Sequence[int]
    past: int = 0  # tokens that are not run: their keys come from a cache
    layer: int | None = None
    records: list[Record] = field(default_factory=list)
    gate: Gate | None = None  # a gate that runs after the recorder, whose effect is recorded nevertheless
    own_copy: bool = False  # the batch holds one copy of the prompt per call: record copy c of call c only
    stop_at_keys: bool = False  # do not record and attend, but end the call with its keys

    def enter(self, module: nn.Module, query: Tensor, key: Tensor, /, **facts: Any) -> tuple[Tensor, Tensor]:
        self.add(module, *(query, key) if self.gate is None else self.gate.enter(module, query, key), **facts)
        return query, key

    def leave(self, _: nn.Module, output: Tensor, /) -> Tensor:
        return output

    def add(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Record the requested queries, the keys up to the last of them, and their rows of mask and bias."""
        if self.stop_at_keys:
            raise KeysReached(key)
        chosen = [position - self.past for position in self.positions]
        seen, calls = max(self.positions) + 1, len(self.records)
        home = kept_on(key.device)
        last = self.records[-1] if self.records and self.records[-1].module is module else None
        if last:
            again_query, again_key = self._kept(query, calls - 1), self._kept(key, calls - 1)
            again_query, again_key = again_query[:, :, chosen].to(home), again_key[:, :, :seen].to(home)
            if torch.equal(last.keys, again_key) and torch.equal(last.queries, again_query):
                return  # differential attention is called once per half of its values, with the same queries and keys
        query, key = self._kept(query, calls), self._kept(key, calls)
        mask = None if mask is None else self._kept(mask, calls)
        position_bias = None if position_bias is None else self._kept(position_bias, calls)
        bias = _additive(mask, chosen, seen)
        if position_bias is not None:
            extra = position_bias[:, :, chosen if position_bias.shape[2] > 1 else [0] * len(chosen), :seen].float()
            bias = extra if bias is None else bias + extra
        if bias is not None and _is_causal_only(bias, self.positions):
            bias = None
        self.records.append(
            Record(
                module=module,
                layer=self.layer,
                queries=query[:, :, chosen].detach().clone().to(home),
                keys=_owned(key[:, :, :seen].detach()).to(home),
                scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
                softcap=softcap,
                bias=None if bias is None else bias.to(home),
                sinks=None if sinks is None else sinks.detach().flatten().to(home),
            )
        )

    def _kept(self, batch: Tensor, call: int) -> Tensor:
        """The copies to keep of a call; a tensor shared by all copies is kept as it is."""
        return batch[call : call + 1] if self.own_copy and batch.shape[0] > 1 else batch


_recorder: ContextVar[Recorder | None] = ContextVar("wherewhat_recorder", default=None)


@contextmanager
def recording(model: PreTrainedModel, recorder: Recorder) -> Iterator[None]:
    """Within this context every forward pass of the model feeds the recorder; the model is always restored."""
    token = _recorder.set(recorder)
    try:
        with ExitStack() as stack:
            stack.enter_context(quiet_evaluation(model))
            stack.enter_context(counting_layers(model, recorder))
            ways_in = legacy.ways_into(model)
            stack.enter_context(implementation(model, "sdpa" if ways_in else NAME))
            recorder.gate = gates.get(model) if ways_in else None
            for way_in in ways_in:
                stack.enter_context(way_in(recorder))
            yield
    finally:
        _recorder.reset(token)


@contextmanager
def gating(model: PreTrainedModel, gate: Gate) -> Iterator[None]:
    """Within this context the gate runs before and after every call of the model's own attention function."""
    with ExitStack() as stack:
        stack.enter_context(counting_layers(model, gate))
        stack.enter_context(as_gated(model))
        for way_in in legacy.ways_into(model):
            stack.enter_context(way_in(gate))
        if not gates:
            vars(ALL_ATTENTION_FUNCTIONS)["get_interface"] = _visited_interface
        gates[model] = gate
        try:
            yield
        finally:
            del gates[model]
            if not gates:
                del vars(ALL_ATTENTION_FUNCTIONS)["get_interface"]


@contextmanager
def as_gated(model: PreTrainedModel) -> Iterator[None]:
    """The attention implementation with which a model is gated: its own, except sdpa for Falcon."""
    with implementation(model, "sdpa") if legacy.ways_into(model) else nullcontext():
        yield


def _visited_interface(name: str, default: Callable[..., Any]) -> Callable[..., Any]:
    """The attention function that a module requests, wrapped in the gate of its model."""
    attention = AttentionInterface.get_interface(ALL_ATTENTION_FUNCTIONS, name, default)

    def visited(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        gate = next((gate for gate in gates.values() if module in gate.modules), None)
        if gate is None:
            return attention(module, query, key, value, *args, **kwargs)
        entered = gate.enter(module, query, key)
        if entered[0].shape != query.shape and kwargs.get("scaling") is None:
            kwargs["scaling"] = query.shape[-1] ** -0.5
        args, kwargs = gate.mask(name, module, query, key, args, kwargs)
        output, weights = attention(module, *entered, value, *args, **kwargs)
        return gate.leave(module, output.transpose(1, 2)).transpose(1, 2), weights

    return visited


@contextmanager
def counting_layers(model: nn.Module, visitor: Visitor) -> Iterator[None]:
    """Set the visitor's `layer` to the running layer: attention modules may not know it, or serve several layers."""

    def enter(number: int, *_: object) -> None:
        visitor.layer = number

    with ExitStack() as stack:
        for layers in layer_lists(model):
            for number, layer in enumerate(layers):
                stack.callback(layer.register_forward_pre_hook(partial(enter, number)).remove)
        yield


def layer_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    """The outermost lists of layers."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from layer_lists(child)


def last_logits_only(model: PreTrainedModel) -> dict[str, int | Tensor]:
    """The argument that limits the logits to those after the last token, if the model takes it.

    Given a number instead of a position, a model whose last layers reuse keys leaves out the other queries there."""
    own = vars(model).get("forward")  # as accelerate gives it
    if "logits_to_keep" not in (_parameters(type(model)) if own is None else inspect.signature(own).parameters):
        return {}
    shared = getattr(model.config.get_text_config(), "num_kv_shared_layers", 0)
    return {"logits_to_keep": torch.tensor([-1]) if shared else 1}


@lru_cache
def _parameters(family: type[PreTrainedModel]) -> frozenset[str]:
    return frozenset(inspect.signature(family.forward).parameters)


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """No dropout, no gradients; each module's training flag is restored afterwards."""
    training = [module for module in modules_of(model) if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Switch the attention implementation temporarily, in the model's configuration and all its parts."""
    configs = {id(part.config): part.config for part in modules_of(model) if isinstance(part, PreTrainedModel)}
    for config in list(configs.values()):
        for key in config.sub_configs:
            if (inner := getattr(config, key, None)) is not None:
                configs[id(inner)] = inner
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    was_disabled = modeling_log.disabled
    try:
        modeling_log.disabled = True  # faster than a verbosity, which clears the caches of all loggers
        try:
            model.set_attn_implementation(name)
        except ValueError:
            # A family that declares no support for sdpa keeps its implementation.
            if name == NAME:
                raise
        finally:
            modeling_log.disabled = was_disabled
        if name == "eager" or (name == "sdpa" and model._supports_sdpa):
            # Families older than the interface cannot be switched, but read this value when they run.
            for config, _ in before:
                config._attn_implementation_internal = name
        yield
    finally:
        for config, was in before:
            config._attn_implementation_internal = was


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    is_causal: bool | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Record, then attend: by sdpa where possible, else in strips of queries (soft-capping, sinks)."""
    if indices is not None or block_indices is not None or getattr(module, "indexer", None) is not None:
        raise NotMeasurable(f"{type(module).__name__} selects keys by their content: a swap would change the selection")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and not causal and query.shape[2] > 1:
        raise NotMeasurable(f"{type(module).__name__} is not causal: queries attend to later tokens")
    if getattr(module, "compressor", None) is not None:
        raise NotMeasurable(f"{type(module).__name__} compresses keys: it does not have one key per token")
    recorder = _recorder.get()
    if recorder is not None:
        recorder.add(
            module, query, key, scaling=scaling, softcap=softcap, mask=attention_mask, position_bias=position_bias,
            sinks=s_aux,
        )  # fmt: skip
    if attention_mask is None and is_causal is None:
        is_causal = True  # no mask: the causal mask is left to the attention function
    if softcap is None and s_aux is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, position_bias=position_bias
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return strip_attention(query, key, value, attention_mask, scale, softcap, s_aux, position_bias), None


def _additive(mask: Tensor | None, chosen: list[int], seen: int) -> Tensor | None:
    """Rows of a boolean or additive mask as terms added to the logits: 0 or -inf, or a finite bias."""
    if mask is None:
        return None
    rows = mask[:, :, chosen if mask.shape[2] > 1 else [0] * len(chosen), :seen]
    if rows.dtype == torch.bool:
        return torch.zeros(rows.shape, device=rows.device).masked_fill(~rows, -torch.inf)
    rows = rows.float()
    return rows.masked_fill(rows < torch.finfo(mask.dtype).min / 4, -torch.inf)


def _is_causal_only(bias: Tensor, positions: Sequence[int]) -> bool:
    return all(not bias[:, :, row, : position + 1].any() for row, position in enumerate(positions))


def _owned(tensor: Tensor) -> Tensor:
    """The tensor itself if it owns all of its memory, else a copy: a view would keep the whole projection alive."""
    return tensor if tensor.untyped_storage().nbytes() <= tensor.nbytes * 1.01 else tensor.clone()


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
