"""To and from Hugging Face's GPT-J: the same weights, the same logits."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPTJConfig, GPTJForCausalLM

from ..errors import BadInput
from .transformer import Shape, Transformer

BLOCK_NAMES = {
    "norm.weight": "ln_1.weight",
    "norm.bias": "ln_1.bias",
    "attention_out.weight": "attn.out_proj.weight",
    "hidden_bias": "mlp.fc_in.bias",
    "hidden_out.weight": "mlp.fc_out.weight",
    "hidden_out.bias": "mlp.fc_out.bias",
}
INWARD_NAMES = ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "mlp.fc_in.weight")
ACTIVATIONS = {"tanh": "gelu_new", "none": "gelu"}
OUTER_NAMES = {
    "embedding.weight": "transformer.wte.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "unembedding.weight": "lm_head.weight",
    "unembedding.bias": "lm_head.bias",
}


def to_gptj(model: Transformer, context: int = 128, dropout: float = 0.1) -> GPTJForCausalLM:
    """A GPT-J with the weights of a model whose planes rotate as GPT-J's do.

    >>> to_gptj(Transformer(Shape(vocabulary=137))).save_pretrained("number-gptj")     # doctest: +SKIP
    """
    shape = model.shape
    rotary = sum(angle > 0 for angle in shape.frequencies())
    gptj_angles = tuple(10_000.0 ** (-plane / rotary) for plane in range(rotary))
    expected = (*gptj_angles, *(0.0,) * (shape.head_dim // 2 - rotary))
    if rotary == 0 or shape.still_from is not None or not _close(shape.frequencies(), expected):
        raise BadInput("GPT-J supports only RoPE of base 10,000 on the first planes of every layer")
    config = GPTJConfig(
        vocab_size=shape.vocabulary, n_positions=context, n_embd=shape.width, n_layer=shape.layers, n_head=shape.heads,
        rotary_dim=2 * rotary, n_inner=shape.hidden, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        activation_function=ACTIVATIONS[shape.gelu], bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    config.name_or_path = model.name
    made = GPTJForCausalLM(config)
    ours, theirs = model.state_dict(), {}
    for name, other in OUTER_NAMES.items():
        theirs[other] = ours[name]
    for layer in range(shape.layers):
        for name, other in BLOCK_NAMES.items():
            theirs[f"transformer.h.{layer}.{other}"] = ours[f"blocks.{layer}.{name}"]
        parts = ours[f"blocks.{layer}.inward.weight"].split([shape.width] * 3 + [shape.hidden])
        theirs |= {f"transformer.h.{layer}.{name}": part for name, part in zip(INWARD_NAMES, parts, strict=True)}
    missing = made.load_state_dict(theirs, strict=False)
    assert not missing.unexpected_keys
    return made.to(ours["embedding.weight"].dtype).eval()


def from_gptj(model: GPTJForCausalLM) -> Transformer:
    """The lab's Transformer with the weights of a GPT-J.

    >>> from_gptj(GPTJForCausalLM.from_pretrained("number-gptj"))                      # doctest: +SKIP
    """
    config: Any = model.config
    rotary, head_dim = (config.rotary_dim or 0) // 2, config.n_embd // config.n_head
    gelus = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    if config.activation_function not in gelus:
        raise BadInput(f"activation must be {' or '.join(gelus)}, this GPT-J has {config.activation_function}")
    shape = Shape(
        vocabulary=config.vocab_size, layers=config.n_layer, heads=config.n_head, width=config.n_embd,
        hidden=config.n_inner or 4 * config.n_embd,
        angles=None if 2 * rotary == head_dim else tuple(10_000.0 ** (-plane / rotary) for plane in range(rotary)),
        gelu=gelus[config.activation_function],
    )  # fmt: skip
    theirs = model.state_dict()
    ours = {name: theirs[other] for name, other in OUTER_NAMES.items()}
    for layer in range(shape.layers):
        at = f"transformer.h.{layer}"
        ours |= {f"blocks.{layer}.{name}": theirs[f"{at}.{other}"] for name, other in BLOCK_NAMES.items()}
        ours[f"blocks.{layer}.inward.weight"] = torch.cat([theirs[f"{at}.{name}"] for name in INWARD_NAMES])
    made = Transformer(shape)
    made.load_state_dict(ours)
    return made.to(model.dtype).eval()


def _close(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= 1e-9 for a, b in zip(one, other, strict=True))
