"""What a configuration states about how position acts on each layer, read from its settings alone, never from the
model's code, buffers or weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .load import locate

# No configuration states how dimensions are paired; these are the families measured for docs/architectures.md.
INTERLEAVED = set(
    "codegen cohere cohere2 cohere2_moe deepseek_v2 ernie4_5 ernie4_5_moe glm glm4 gptj helium llama4_text".split()
)
HALF_SPLIT = set(
    """afmoe apertus arcee aria_text axk1 bailing_hybrid bamba beam bitnet cohere_compass_text cwm dbrx deepseek_v3
    diffllama dots1 emu3_text_model exaone4 exaone_moe falcon falcon_h1 flex_olmo flint gemma gemma2 gemma3_text
    gemma3n_text gemma4_text gemma4_unified_text glm4_moe glm4_moe_lite gpt_neox gpt_neox_japanese gpt_oss granite
    granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared hrm_text hunyuan_v1_dense hunyuan_v1_moe
    hy_v3 hyperclovax jais2 jetmoe kolibri1 laguna lfm2 lfm2_moe llama longcat_flash mellum mimo_v2_flash minicpm3
    minimax minimax_m2 ministral ministral3 mistral mixtral mllama_text_model modernbert-decoder moshi nanochat nemotron
    olmo olmo2 olmo3 olmo_hybrid olmoe persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text
    qwen3_5_text qwen3_moe qwen3_next recurrent_gemma seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu
    zamba2""".split()
)
# Families whose full-attention layers have no rotation if other layers have a window.
STILL_WHERE_FULL = set("afmoe cohere2 cohere2_moe exaone4 exaone_moe flint kolibri1".split())
BACKWARDS = {"nanochat"}  # rotates clockwise
# Families whose configuration has no setting for the softmax scale: it is head_dim ** -0.5.
PLAIN = set(
    """afmoe apertus arcee aria_text bitnet codegen cohere cohere2 cwm dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe
    flex_olmo gemma glm glm4 glm4_moe gpt_neox gpt_oss gptj helium hunyuan_v1_dense jetmoe lfm2 llama minimax minimax_m2
    ministral ministral3 mistral mixtral nemotron olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3
    qwen3_moe qwen3_next seed_oss smollm3 stablelm starcoder2""".split()
)
SCALES_KEYS = {"yarn", "longrope"}  # the RoPE types that state a factor on keys; others do not scale them
OTHER_NAMES = {"su": "longrope", "mrope": "default"}


@dataclass(frozen=True)
class Declared:
    """What the configuration states about one layer; None wherever it states nothing.

    An empty tensor of angles stands for a layer without rotation, a window of 0 for one with full attention.
    """

    words: str
    angles: Tensor | None  # one per plane
    unscaled: Tensor | None  # the angles without RoPE scaling
    original: int  # the context length before scaling; 0 without scaling
    head_dim: int
    start: int
    layout: str | None
    key_scale: float | None
    softmax_scale: float | None
    softcap: float | None
    window: int | None
    chunk: int | None


def declared(config: PretrainedConfig, layer: int, length: int, stated: Mapping[str, Any] | None = None) -> Declared:
    """What a configuration states about one layer, for prompts of this length.

    `stated` holds the settings as written in config.json (or a GGUF file); they take precedence over the loaded
    configuration.
    """
    rope = rope_settings(config, layer, stated or {})
    head_dim, start, size = _sizes(config, layer)
    angles = unscaled = key_scale = None
    words, original = "", 0
    if rope is None:
        angles, words = torch.empty(0, device="cpu"), "no rotation"
    elif rope:
        if rope.get("partial_rotary_factor") is None and (dims := getattr(config, "rotary_dim", None)):
            size, rope = dims, rope | {"partial_rotary_factor": 1.0}
        kind = rope["rope_type"]
        angles, key_scale = declared_angles(config, rope, size, length)
        if kind not in SCALES_KEYS and config.model_type not in INTERLEAVED | HALF_SPLIT:
            key_scale = None  # that keys are not scaled is known only of the measured families
        unscaled, _ = declared_angles(config, rope | {"rope_type": "default"}, size, length)
        words = f"base {rope['rope_theta']:,.0f}"
        if kind != "default":
            words += f", {kind}" if angles is not None else f", unknown type {kind}"
            words += f" factor {rope['factor']:g}" if rope.get("factor") else ""
            original = int(
                rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", 0)
            )
        if config.model_type in BACKWARDS:
            angles = None if angles is None else -angles
    window, chunk = _window(config, layer)
    layouts = {"interleaved": INTERLEAVED, "half-split": HALF_SPLIT}
    return Declared(
        words=words,
        angles=angles,
        unscaled=unscaled,
        original=original,
        head_dim=head_dim,
        start=start,
        layout=next((name for name, families in layouts.items() if config.model_type in families), None),
        key_scale=key_scale and key_scale * getattr(config, "key_multiplier", 1.0),
        softmax_scale=_softmax_scale(config, rope or {}, head_dim),
        softcap=getattr(config, "attn_logit_softcapping", None),
        window=window,
        chunk=chunk,
    )


def rope_settings(config: PretrainedConfig, layer: int, stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rotary settings of a layer: None if it is stated to have no rotation, empty if nothing is stated."""
    kind = _kind(config, layer)
    if _non_rotary(config, layer):
        return None
    if config.model_type in STILL_WHERE_FULL and kind == "full_attention":
        return None if getattr(config, "sliding_window", None) else {}
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if any(isinstance(value, dict) for value in rope.values()):  # one set of settings per kind of layer
        own = rope.get(kind, {})
        if own is None:
            return None
    else:
        written = {"rope_theta": stated.get("rotary_emb_base"), "partial_rotary_factor": stated.get("rotary_pct")}
        written |= {name: stated[name] for name in ("rope_theta", "partial_rotary_factor") if name in stated}
        written |= stated.get("rope_parameters") or stated.get("rope_scaling") or {}
        written = {name: value for name, value in written.items() if value is not None}
        own = rope | written | ({"rope_type": written["type"]} if "type" in written else {})
    if thetas := getattr(config, "layer_rope_theta", None):
        own = own | {"rope_theta": thetas[layer]}
    if not own and getattr(config, "rotary_dim", None):
        own = {"rope_theta": 10_000.0}  # GPT-J and CodeGen have no other base
    if not own:
        return {}
    own: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    named = own.get("rope_type") or own.get("type") or "default"
    return {"rope_theta": 10_000.0} | own | {"rope_type": OTHER_NAMES.get(named, named)}


def declared_angles(
    config: PretrainedConfig, rope: dict[str, Any], size: int, length: int
) -> tuple[Tensor | None, float | None]:
    """The angles of one set of rotary settings, and the factor on queries and keys; None for an unknown RoPE type.

    Scaled angles come from the definitions in transformers, which are given nothing but the settings.
    """
    kind, part = rope["rope_type"], rope.get("partial_rotary_factor") or 1.0
    if kind == "default":
        dims = int(size * part)
        return rope["rope_theta"] ** -(torch.arange(0, dims, 2, device="cpu").float() / dims), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        return None, None
    context = getattr(config, "max_position_embeddings", None) or length
    carrier = LlamaConfig(
        hidden_size=size,
        num_attention_heads=1,
        head_dim=size,
        max_position_embeddings=context,
        rope_parameters={**rope},
    )
    return ROPE_INIT_FUNCTIONS[kind](carrier, torch.device("cpu"), seq_len=length)


def lengths_to_test(config: PretrainedConfig, stated: Mapping[str, Any] | None, layers: int, context: int) -> list[int]:
    """One prompt length, or one on each side of the length at which the angles change."""
    for layer in range(layers):
        rope = rope_settings(config, layer, stated or {}) or {}
        if rope.get("rope_type") == "dynamic":
            return [context - 1, 2 * context]
        if rope.get("rope_type") == "longrope" and (rope.get("original_max_position_embeddings") or context) < context:
            return [rope["original_max_position_embeddings"], context]
    return [context]


def settings_of(name: str, revision: str | None = None) -> dict[str, Any]:
    """The settings of a model as written in its config.json or GGUF file."""
    source, options = locate(name, revision)
    if "gguf_file" in options:
        return gguf_settings(name)
    written, _ = PretrainedConfig.get_config_dict(source, **options)
    return written.get("text_config") or written


def gguf_settings(path: str) -> dict[str, Any]:
    """The rotary settings of a GGUF file, under the names that config.json uses.

    transformers reads the base and ignores the rest: scaling, and the factors per plane in files of Llama 3.
    """
    import gguf

    reader = gguf.GGUFReader(path)
    family = _content(reader, "general.architecture")

    def read(name: str) -> Any:
        return _content(reader, f"{family}.{name}")

    kind, factor = read("rope.scaling.type"), read("rope.scaling.factor")
    original = read("rope.scaling.original_context_length") or read("context_length")
    scaling: dict[str, Any] = {}
    if kind not in (None, "none"):
        scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
        if kind == "yarn" and (extra := read("rope.scaling.attn_factor")):
            scaling["attention_factor"] = extra * (1 + 0.1 * math.log(factor))
    factors = next((tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    if factors is not None:
        listed = [float(value) for value in factors]
        scaling = {"rope_type": "longrope", "short_factor": listed, "long_factor": listed, "attention_factor": 1.0}
        scaling["original_max_position_embeddings"] = original
    base = read("rope.freq_base")
    return ({"rope_theta": float(base)} if base else {}) | ({"rope_scaling": scaling} if scaling else {})


def _content(reader: Any, name: str) -> Any:
    held = reader.fields.get(name)
    return None if held is None else held.contents()


def _kind(config: PretrainedConfig, layer: int) -> str | None:
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ()
    return kinds[layer] if layer < len(kinds) else None


def _non_rotary(config: PretrainedConfig, layer: int) -> bool:
    """Whether a setting states that the layer has no rotation."""
    listed = (getattr(config, name, None) for name in ("no_rope_layers", "layer_rope_theta"))
    return (
        any(layers is not None and not layers[layer] for layers in listed)
        or getattr(config, "use_mem_rope", True) is False
        or getattr(config, "alibi", False) is True
        or getattr(config, "position_embedding_type", "rope") != "rope"
    )


def _sizes(config: PretrainedConfig, layer: int) -> tuple[int, int, int]:
    """The head dimension, the index of the first rotary dimension, and the number of dimensions from there on."""
    if rotary := getattr(config, "qk_rope_head_dim", None):
        non_rotary = config.qk_nope_head_dim
        return non_rotary + rotary, non_rotary, rotary
    if getattr(config, "is_heterogeneous", False):
        config = config.per_layer_config[layer]
    names = ("head_dim", "attention_head_dim", "kv_channels")
    size = next((size for name in names if (size := getattr(config, name, None))), None)
    size = size or config.hidden_size // config.num_attention_heads
    return size, 0, size


def _window(config: PretrainedConfig, layer: int) -> tuple[int | None, int | None]:
    """How many keys a query attends to (0: all), or the chunk size of chunked attention."""
    kind, kinds = _kind(config, layer), getattr(config, "layer_types", None) or ()
    names = ("sliding_window", "attention_window_size") if kind != "local" else ("window_size",)
    window = next((size for name in names if (size := getattr(config, name, None))), None)
    if kind == "chunked_attention":
        return None, getattr(config, "attention_chunk_size", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return 0, None
    if kind in ("sliding_attention", "local") or kind is None:
        return window, None
    # If no layer is called sliding, the window may be meant for the layers called full (MiniMax).
    return (0, None) if "sliding_attention" in kinds else (None, None)


def _softmax_scale(config: PretrainedConfig, rope: dict[str, Any], head_dim: int) -> float | None:
    if (multiplier := getattr(config, "attention_multiplier", None)) is not None:
        return float(multiplier)
    if (scalar := getattr(config, "query_pre_attn_scalar", None)) is not None:
        return scalar**-0.5
    everywhere = rope.get("mscale_all_dim")
    if getattr(config, "qk_rope_head_dim", None) and rope.get("rope_type") == "yarn" and everywhere:
        return head_dim**-0.5 * (0.1 * everywhere * math.log(rope["factor"]) + 1) ** 2
    return head_dim**-0.5 if config.model_type in PLAIN else None
