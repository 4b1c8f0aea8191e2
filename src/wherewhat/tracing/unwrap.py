"""The Hugging Face model inside whatever people wrap one in: `unwrap`, used wherever a model object is given.

Wrappers are recognised by the names of their classes, so that none of their packages is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import BadInput, NotMeasurable
from ..lab.transformer import Transformer


def unwrap(model: Any) -> Any:
    """The bare model inside PEFT, nnsight, torch.compile, DataParallel and DistributedDataParallel, also nested.

    Adapters of PEFT stay in force: they are layers of the model that they adapt. Anything that is not a wrapper is
    returned as it is; a wrapper whose model computes something else is refused.

    >>> unwrap(torch.nn.DataParallel(model)) is model                                  # doctest: +SKIP
    True
    """
    while not isinstance(model, (PreTrainedModel, Transformer)):
        opening = next((WRAPPERS[name] for name in _classes(model) if name in WRAPPERS), None)
        if opening is None:
            return model
        model = opening(model)
    return model


def describe(model: object) -> str:
    """What was given instead of a model, with the attribute that holds one, if there is such an attribute."""
    held = {**getattr(model, "__dict__", {}), **getattr(model, "__dict__", {}).get("_modules", {})}
    inside = next((name for name, part in held.items() if isinstance(part, PreTrainedModel)), None)
    advice = "" if inside is None else f", which wraps one: pass its attribute {inside}"
    return f"expected a Hugging Face causal language model, got {type(model).__name__}{advice}"


def _classes(model: object) -> list[str]:
    """The names of a model's classes, with the packages that define them."""
    return [f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(model).__mro__]


def _adapted(model: Any) -> Any:
    """The model with its adapters. Prompts that are learned lie outside of it, in front of the tokens."""
    if model.active_peft_config.is_prompt_learning:
        kind = str(getattr(model.active_peft_config.peft_type, "value", model.active_peft_config.peft_type))
        raise NotMeasurable(
            f"{kind.lower()} puts learned keys in front of the prompt, which belong to no token: only adapters inside "
            "the model, such as LoRA, can be measured"
        )
    return model.get_base_model()


def _traced(model: Any) -> Any:
    """The model of an nnsight wrapper, which loads it when it is first used."""
    inside = model._module
    if any(parameter.is_meta for parameter in inside.parameters()):
        raise BadInput(f"{type(model).__name__} has not loaded its weights yet: give it dispatch=True")
    return inside


def _replaced(model: Any) -> Any:
    name = getattr(model.cfg, "model_name", None) or "NAME"
    raise NotMeasurable(
        f"{type(model).__name__} computes attention with modules of its own, also inside the model that it was made "
        f'from: pass a fresh Hugging Face model, ww.load("{name}")'
    )


def _sharded(model: Any) -> Any:
    raise NotMeasurable(f"{type(model).__name__} splits weights over processes: pass a model that is in one piece")


WRAPPERS: Mapping[str, Callable[[Any], Any]] = {
    "peft.PeftModel": _adapted,
    "nnsight.NNsight": _traced,
    "nnsight.Envoy": _traced,
    "torch.OptimizedModule": lambda model: model._orig_mod,
    "torch.DataParallel": lambda model: model.module,
    "torch.DistributedDataParallel": lambda model: model.module,
    "torch.FullyShardedDataParallel": _sharded,
    "deepspeed.DeepSpeedEngine": _sharded,
    "transformer_lens.TransformerBridge": _replaced,
    "transformer_lens.HookedTransformer": _replaced,
}


def adapters_in_force(model: nn.Module) -> str:
    """Which adapters of PEFT act in which modules, and how strongly; empty if there are none.

    Parameters do not tell: adapters can be exchanged or disabled without changing any.
    """
    parts: list[tuple[str, Any]] = [*model.named_modules()]
    found = [
        (name, list(part.active_adapters), bool(part.disable_adapters), sorted(getattr(part, "scaling", {}).items()))
        for name, part in parts
        if "peft.BaseTunerLayer" in _classes(part)
    ]
    return repr(found) if found else ""


def uncompiled() -> Any:
    """Context in which nothing is compiled, and compiled models run as they are written.

    A compiled graph would ignore hooks that were added after it was made.
    """
    return torch.compiler.set_stance("force_eager")


@contextmanager
def as_written(model: nn.Module) -> Iterator[None]:
    """Context in which a model runs as its code says, in the precision of its weights: neither compiled nor with
    autocast, which accelerate wraps around its `forward`."""
    own = vars(model)
    wrapped = own["forward"] if {"forward", "_original_forward"} <= own.keys() else None
    try:
        if wrapped is not None:
            own["forward"] = own["_original_forward"]
        device = next(model.parameters()).device.type
        casting = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        with uncompiled(), torch.autocast(device, enabled=False) if casting else nullcontext():
            yield
    finally:
        if wrapped is not None:
            own["forward"] = wrapped
