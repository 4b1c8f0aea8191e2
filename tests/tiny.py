"""A tiny random model of every causal family of transformers, built offline, with every feature switched on.

Random weights as transformers draws them give flat attention and zero biases, on which a wrong measurement looks
right. These models are drawn so that attention is peaked, and biases, norms and sinks are not what they start as.
"""

from __future__ import annotations

import re
from typing import Any

import gguf
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

# Names of sizes and switches in configurations. Each family takes those that it has.
SMALL: dict[str, Any] = {
    name: value
    for names, value in {
        "vocab_size vocab_size_per_layer_input": 128,
        "hidden_size d_model n_embd emb_dim word_embed_proj_dim embedding_size hidden_size_global": 64,
        "num_hidden_layers num_layers n_layer n_layers": 4,
        "encoder_layers num_encoder_layers decoder_layers num_decoder_layers": 2,
        "num_attention_heads num_heads n_head n_heads attention_heads swa_num_attention_heads": 4,
        "encoder_attention_heads num_encoder_attention_heads decoder_attention_heads num_decoder_attention_heads": 4,
        "num_key_value_heads num_kv_heads swa_num_key_value_heads": 2,
        "head_dim kv_channels d_head dim_head global_head_dim swa_head_dim": 16,
        "intermediate_size moe_intermediate_size shared_expert_intermediate_size ffn_dim encoder_ffn_dim": 48,
        "decoder_ffn_dim d_inner dff dim_ff ffn_hidden_size expert_ffn_hidden_size intermediate_size_mlp": 48,
        "dense_intermediate_size shared_intermediate_size moe_shared_expert_intermediate_size n_inner": 48,
        "max_position_embeddings n_positions max_seq_len max_target_positions n_ctx": 512,
        "num_experts num_local_experts n_routed_experts moe_num_experts": 4,
        "num_experts_per_tok num_experts_per_token moe_topk moe_k": 2,
        "n_group topk_group num_expert_group n_shared_experts num_shared_experts": 1,
        "sliding_window sliding_window_size window_size attention_window_size attention_chunk_size": 10,
        "local_attention": 20,
        "qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim": 8,
        "kv_lora_rank q_lora_rank o_lora_rank query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
        "attention_multiplier": 0.25,
        "mamba_d_state state_size ssm_state_size mamba_chunk_size chunk_size": 8,
        "linear_num_key_heads linear_num_value_heads linear_num_heads": 2,
        "linear_key_head_dim linear_value_head_dim linear_head_dim": 8,
        "mamba_n_groups mamba_ngroups n_groups": 1,
        "mamba_n_heads n_mamba_heads mamba_num_heads": 8,
        "hidden_size_per_layer_input laurel_rank d_rel router_hidden_size": 8,
        "pad_token_id eod_token_id": 0,
        "bos_token_id cls_token_id decoder_start_token_id": 1,
        "eos_token_id sep_token_id": 2,
        "is_decoder attention_bias qkv_bias use_qkv_bias": True,
    }.items()
    for name in names.split()
}

MIXED = {"layer_types": ["sliding_attention", "full_attention"] * 2}
WINDOWED = {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 10}
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
# The last two layers reuse the keys of the first two.
SHARING = MIXED | {"num_kv_shared_layers": 2, "global_head_dim": 32}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8}
ENCODER = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "adapter_out_dim": 64}  # fmt: skip

# Options that a family needs beyond the sizes, and features that are off by default.
FAMILY: dict[str, dict[str, Any]] = {
    "bailing_hybrid": HYBRID,
    "bamba": {"attn_layer_indices": [1, 3]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "blt": {"encoder_hash_byte_group_vocab": 64, "patching_mode": "static"},
    "cohere": {"use_qk_norm": True},
    "cohere_compass_text": MIXED
    | {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": None}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "dots1": MIXED,
    "dots3_note": {
        "vision_config": ENCODER | {"mlp_layer_types": ["dense"] * 2, "adapter_in_dim": 64},
        "audio_config": ENCODER | {"adapter_input_size": 64, "downsample_hidden_size": 16},
    },
    "gemma3": MIXED,
    "gemma3_text": MIXED,
    "gemma3n": MIXED | {"num_kv_shared_layers": 2},
    "gemma3n_text": MIXED | {"num_kv_shared_layers": 2},
    "gemma4": SHARING,
    "gemma4_text": SHARING,
    "gemma4_unified": SHARING,
    "gemma4_unified_assistant": SHARING,
    "gemma4_unified_text": SHARING,
    "glm4_moe": {"use_qk_norm": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": HYBRID | {"position_embedding_type": "rope"},
    "internlm3": {"bias": True},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": HYBRID,
    "kolibri1": MIXED,
    "laguna": MIXED | {"num_attention_heads_per_layer": [4, 4, 4, 4]},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "mellum": MIXED,
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2},
    "ministral": MIXED,
    "phi": {"qk_layernorm": True},
    "qwen2": WINDOWED,
    "qwen2_moe": WINDOWED,
    "qwen3": WINDOWED,
    "qwen4_exp": INDEXER | {"indexer_compress_ratio": 2},
    "qwen4_exp_text": INDEXER | {"indexer_compress_ratio": 2},
    "recurrent_gemma": {"lru_width": 64},
    "reformer": {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (16, 32)},
    "rembert": {"input_embedding_size": 64},
    "smollm3": WINDOWED | MIXED,
    "stablelm": {"qk_layernorm": True, "use_qkv_bias": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 6, "attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_config(model_type: str, **options: Any) -> PretrainedConfig:
    """A small configuration of a family; options unknown to its outermost part go to its text part."""
    return _small(CONFIG_MAPPING[model_type], FAMILY.get(model_type, {}) | options)


def _small(kind: type[PretrainedConfig], options: dict[str, Any]) -> PretrainedConfig:
    known = getattr(kind, "__dataclass_fields__", {})
    sizes = {name: value for name, value in SMALL.items() if name in known}
    if "kv_lora_rank" in known and "num_key_value_heads" in known:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]  # latent attention has no groups
    composite = "text_config" in kind.sub_configs
    for name, part in kind.sub_configs.items():
        if name not in options:
            part = part if hasattr(part, "model_type") else type(getattr(kind(), name))
            inner = {key: value for key, value in options.items() if key not in known} if name == "text_config" else {}
            sizes[name] = _small(part, inner).to_dict()
    return kind(**sizes | {key: value for key, value in options.items() if key in known or not composite})


def tiny_model(model_type: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """A tiny model of a family in float32, ready to be measured."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, **options), dtype=torch.float32)
    return liven(model, seed).eval()


@torch.no_grad()
def liven(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Reinitialise the weights: matrices that preserve the norm of their input, attention twice as sharp."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, weight in model.named_parameters():
        sharp = 1.5 if re.search("attn|attention|_norm", name) else 1.0
        noise = torch.randn(weight.shape, generator=generator)
        if id(weight) in embeddings:
            weight.copy_(noise)
        elif weight.dim() > 1 and "norm" not in name:
            weight.copy_(noise * sharp / weight.shape[-1] ** 0.5)
        else:
            weight.copy_(weight * sharp + 0.3 * noise)
    return model


def write_gguf(path: Path, model: PreTrainedModel) -> None:
    """The model as a GGUF file of the same numbers, in the order of dimensions that such files have."""
    config: Any = model.config
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # pairs of dimensions side by side
            halves = weight.reshape(-1, 2, config.head_dim // 2, config.hidden_size)
            weight = halves.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
