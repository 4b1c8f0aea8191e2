"""Every positional encoding of the lab's classifier against an implementation that is not ours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, GPTNeoXConfig, GPTNeoXModel, T5Config
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes, build_alibi_tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

import wherewhat as ww
from wherewhat.errors import BadInput, NotMeasurable
from wherewhat.lab.classifier import Classifier, Design
from wherewhat.lab.encodings import Encoding, alibi_slopes
from wherewhat.studies.encodings.settings import ENCODINGS, TIMES
from wherewhat.studies.profile.prompt_level import score_prompt

LENGTHS = (14, 9, 5)
ROPE = Encoding(rotary=True)


def classifier(encoding: Encoding, **options: bool) -> Classifier:
    """A classifier whose attention is peaked, and whose biases and norms are not what they start as."""
    model = Classifier(Design(40, 7, 14, encoding, layers=2, heads=4, width=32, hidden=48, **options), seed=1)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in model.parameters():
            value += (0.3 if value.dim() == 1 else 0.1) * torch.randn(value.shape, generator=draw)
    return model.eval()


def padded() -> Tensor:
    tokens = torch.randint(1, 40, (len(LENGTHS), LENGTHS[0]), generator=torch.Generator().manual_seed(3))
    return tokens * (torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None])


def may_see(tokens: Tensor, causal: bool) -> Tensor:
    """0 or -inf for every query and key: (B, 1, T, T)."""
    hidden = (tokens == 0)[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
    if causal:
        hidden = hidden | torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    return torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)


def read_out(model: Classifier, stream: Tensor, tokens: Tensor) -> Tensor:
    rows = [model.readout(one[ids != 0].mean(0)) for one, ids in zip(stream, tokens, strict=True)]
    return torch.stack(rows)


def by_torch(model: Classifier, tokens: Tensor, bias: Tensor | float = 0.0, added: Tensor | float = 0.0) -> Tensor:
    """The same weights in torch's own encoder, which takes any bias of its logits."""
    design = model.design
    layer = nn.TransformerEncoderLayer(
        design.width, design.heads, design.hidden, 0.0, batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, design.layers, nn.LayerNorm(design.width), enable_nested_tensor=False)
    names = {
        "attention.inward.weight": "self_attn.in_proj_weight", "attention.inward.bias": "self_attn.in_proj_bias",
        "attention_out": "self_attn.out_proj", "hidden_in": "linear1", "hidden_out": "linear2",
        "attention_norm": "norm1", "hidden_norm": "norm2",
    }  # fmt: skip
    encoder.load_state_dict(renamed(model, names, "layers.{}.", "norm."))
    mask = (bias + may_see(tokens, design.causal)).expand(-1, design.heads, -1, -1).flatten(0, 1)
    with torch.no_grad():
        return read_out(model, encoder(model.embedding(tokens) + added, mask=mask), tokens)


def by_gpt_neox(model: Classifier, tokens: Tensor) -> Tensor:
    """The same weights in Hugging Face's GPT-NeoX; its planes are half-split, and it turns all heads of a layer."""
    design, encoding = model.design, model.design.encoding
    turning = encoding.dims or design.head_dim
    config = GPTNeoXConfig(
        vocab_size=1, hidden_size=design.width, num_hidden_layers=design.layers, num_attention_heads=design.heads,
        intermediate_size=design.hidden, hidden_act="relu", use_parallel_residual=False, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": encoding.base,
                         "partial_rotary_factor": turning / design.head_dim},
    )  # fmt: skip
    other = GPTNeoXModel(config).eval()
    other.set_attn_implementation("eager")
    names = {
        "attention.inward": "attention.query_key_value", "attention_out": "attention.dense",
        "hidden_in": "mlp.dense_h_to_4h", "hidden_out": "mlp.dense_4h_to_h",
        "attention_norm": "input_layernorm", "hidden_norm": "post_attention_layernorm",
    }  # fmt: skip
    theirs = renamed(model, names, "layers.{}.", "final_layer_norm.")
    order = torch.cat(
        [torch.arange(0, turning, 2), torch.arange(1, turning, 2), torch.arange(turning, design.head_dim)]
    )
    for name, value in theirs.items():
        if "query_key_value" in name:
            parts = value.unflatten(0, (3, design.heads, design.head_dim)).clone()
            parts[:2] = parts[:2, :, order]
            theirs[name] = parts.transpose(0, 1).flatten(0, 2)
    other.load_state_dict(theirs, strict=False)
    if encoding.stopped:
        other.rotary_emb.inv_freq[-encoding.stopped :] = 0
    with torch.no_grad():
        mask = may_see(tokens, design.causal)
        stream = other(inputs_embeds=model.embedding(tokens), attention_mask=mask, use_cache=False).last_hidden_state
    return read_out(model, stream, tokens)


def by_deepseek(model: Classifier, tokens: Tensor) -> Tensor:
    """Attention by Hugging Face's DeepSeek V3 with the same weights."""
    design, encoding = model.design, model.design.encoding
    config = DeepseekV3Config(
        hidden_size=design.width, num_attention_heads=design.heads, num_key_value_heads=design.heads, q_lora_rank=None,
        kv_lora_rank=encoding.latent, qk_rope_head_dim=encoding.decoupled, qk_nope_head_dim=design.head_dim,
        v_head_dim=design.head_dim, attention_bias=False, rope_interleave=True,
    )  # fmt: skip
    config._attn_implementation = "eager"
    names = {"q_proj": "asking", "kv_a_proj_with_mqa": "squeeze", "kv_a_layernorm": "norm", "kv_b_proj": "spread"}
    with torch.no_grad():
        stream = model.embedding(tokens)
        turns = DeepseekV3RotaryEmbedding(config)(stream, torch.arange(tokens.shape[1])[None])
        for block in model.blocks:
            theirs = DeepseekV3Attention(config, 0).eval()
            for name, own in names.items():
                getattr(theirs, name).weight.copy_(getattr(block.attention, own).weight)
            theirs.o_proj.weight.copy_(block.attention_out.weight)
            mask = may_see(tokens, design.causal)
            brought = theirs(block.attention_norm(stream), turns, mask)[0] + block.attention_out.bias
            stream = block.mlp(stream + brought)
        return read_out(model, model.norm(stream), tokens)


def renamed(model: Classifier, names: dict[str, str], block: str, norm: str) -> dict[str, Tensor]:
    theirs = {}
    for name, value in model.state_dict().items():
        if name.startswith("norm."):
            theirs[name.replace("norm.", norm)] = value
        if name.startswith("blocks."):
            _, layer, rest = name.split(".", 2)
            for own, other in names.items():
                if rest.startswith(own):
                    theirs[block.format(layer) + rest.replace(own, other)] = value
    return theirs


def agree(model: Classifier, theirs: Tensor) -> None:
    with torch.no_grad():
        assert (model(padded()) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_nope_is_torchs_encoder(causal: bool) -> None:
    model = classifier(Encoding(), causal=causal)
    agree(model, by_torch(model, padded()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", [ROPE, replace(ROPE, dims=4), replace(ROPE, stopped=2), replace(ROPE, base=50.0)])
def test_rope_whole_partial_and_stopped_is_gpt_neox(encoding: Encoding, causal: bool) -> None:
    model = classifier(encoding, causal=causal)
    agree(model, by_gpt_neox(model, padded()))


@pytest.mark.parametrize("causal", [False, True])
def test_latent_attention_is_deepseeks(causal: bool) -> None:
    model = classifier(replace(ROPE, latent=12, decoupled=4), causal=causal)
    agree(model, by_deepseek(model, padded()))


def test_alibi_is_blooms() -> None:
    for heads in range(1, 40):
        assert torch.allclose(alibi_slopes(heads), _get_alibi_slopes(heads, torch.device("cpu")), rtol=1e-6)
    model = classifier(Encoding(bias="alibi"), causal=True)
    theirs = build_alibi_tensor(torch.ones(1, 14), 4, torch.float32)  # up to a constant in each row
    agree(model, by_torch(model, padded(), theirs.view(1, 4, 1, 14)))


def test_alibi_both_ways_is_blooms_forwards_and_backwards() -> None:
    model = classifier(Encoding(bias="alibi"))
    theirs = build_alibi_tensor(torch.ones(1, 14), 4, torch.float32).view(4, 1, 14)
    distance = theirs - theirs.mT
    agree(model, by_torch(model, padded(), torch.minimum(distance, -distance)[None]))


@pytest.mark.parametrize("causal", [False, True])
def test_t5_bias_is_t5s(causal: bool) -> None:
    model = classifier(Encoding(bias="t5"), causal=causal)
    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=causal)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    theirs.relative_attention_bias.weight.data = model.distances.weight.data
    agree(model, by_torch(model, padded(), theirs.compute_bias(14, 14)))
    from wherewhat.lab.encodings import distances, t5_buckets

    buckets = T5Attention._relative_position_bucket(distances(400), bidirectional=not causal)
    assert torch.equal(t5_buckets(400, causal), buckets)


def test_plain_relative_bias_is_one_number_a_distance() -> None:
    model = classifier(Encoding(bias="t5-plain"))
    table = model.distances.weight
    bias = torch.stack([torch.stack([table[128 + key - query] for key in range(14)]) for query in range(14)])
    agree(model, by_torch(model, padded(), bias.permute(2, 0, 1)[None]))


def test_sinusoids_are_marians() -> None:
    model = classifier(Encoding(added="sinusoidal"))
    halves = MarianSinusoidalPositionalEmbedding(14, 32).create_weight()
    theirs = torch.stack(halves.chunk(2, 1), -1).flatten(1)
    agree(model, by_torch(model, padded(), added=theirs))


def test_learned_places_are_added_to_the_words() -> None:
    model = classifier(Encoding(added="learned"))
    agree(model, by_torch(model, padded(), added=model.places.weight))


def test_rope_in_some_heads_is_rope_there_and_nope_elsewhere() -> None:
    some = classifier(replace(ROPE, heads=1))
    stream, context = some.begin(padded())
    own = some.project(0, stream, context).logits()
    for encoding, heads in ((ROPE, slice(0, 1)), (Encoding(), slice(1, None))):
        other = classifier(encoding)
        assert torch.allclose(own[:, heads], other.project(0, stream, context).logits()[:, heads], atol=1e-5)


@pytest.mark.parametrize("when", TIMES)
def test_an_encoding_in_some_layers_is_absent_from_the_others(when: str) -> None:
    tokens, layers = padded(), range(3)
    encoding = replace(ROPE, layers=TIMES[when])
    models = [Classifier(Design(40, 7, 14, one, 3, 4, 32, 48), seed=1) for one in (encoding, ROPE, Encoding())]
    with torch.no_grad():
        stream, context = models[0].begin(tokens)
        for layer in layers:
            own, turned, still = (model.project(layer, stream, context).logits() for model in models)
            assert torch.equal(own, turned if layer in layers[slice(*TIMES[when])] else still)


def test_what_is_added_late_is_not_there_before() -> None:
    model = Classifier(Design(40, 7, 14, Encoding(added="sinusoidal", layers=(-1, None)), 3, 4, 32, 48))
    stream, _ = model.begin(padded())
    for layer in range(3):
        assert torch.equal(model.add_position(layer, stream), stream) == (layer < 2)


# What the scores are read from.


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, one in ENCODINGS.items() if not one.added])
@pytest.mark.parametrize("causal", [False, True])
def test_capture_places_contents_as_the_model_would(name: str, causal: bool) -> None:
    """In the first layer, the placement table against runs in which two tokens really changed places."""
    model = classifier(ENCODINGS[name] if "dimensions" not in name else replace(ROPE, dims=4), causal=causal)
    tokens = padded()[:1]
    trace = ww.capture(model, tokens)
    assert torch.allclose(trace.output, model(tokens), atol=1e-5)
    tables = torch.stack([trace.placement(0, head)[0] for head in range(4)])
    for a, b in ((0, 0), (2, 9), (11, 4)):
        swapped = tokens.clone()
        swapped[0, [a, b]] = tokens[0, [b, a]]
        stream, context = model.begin(swapped)
        logits = model.project(0, stream, context).logits()[0, :, -1]
        assert torch.allclose(tables[:, a, b], logits[:, b], atol=1e-4)
    rows = model_rows(model, tokens)
    for layer in range(2):
        assert torch.allclose(trace.attention_rows(layer), rows[layer], atol=1e-5)
    assert ww.score(trace).positional.shape == (1, 2, 4)
    assert torch.isfinite(ww.score_frequencies(trace).symbolic).all()


@pytest.mark.parametrize("encoding", [Encoding(added="learned"), Encoding(added="sinusoidal", rotary=True)])
def test_positions_in_the_stream_are_measured_at_level_prompt_only(encoding: Encoding) -> None:
    model, tokens = classifier(encoding), padded()[:1]
    with pytest.raises(NotMeasurable, match="prompt"):
        ww.capture(model, tokens)
    trace = ww.capture(model, tokens, level="prompt")
    assert torch.allclose(trace.attention_rows(1), model_rows(model, tokens)[1], atol=1e-5)
    scores = score_prompt(model, tokens)
    assert scores.positional.shape == (2, 4)
    assert scores.swaps == scores.possible == 13 * 12 // 2


def test_nope_at_level_prompt_is_symbolic() -> None:
    """Without positions and masks, exchanging two tokens exchanges what they are given, in every layer."""
    assert (score_prompt(classifier(Encoding()), padded()[:1]).symbolic > 1 - 1e-5).all()


def model_rows(model: Classifier, tokens: Tensor) -> list[Tensor]:
    """The attention of the last token, as the model computes it."""
    rows: list[Tensor] = []
    with torch.no_grad():
        model(tokens, watch=lambda _, asked: rows.append(asked.logits().softmax(-1)[:, :, -1]))
    return rows


def test_padding_has_no_attention_in_a_trace() -> None:
    trace = ww.capture(classifier(Encoding(bias="alibi")), padded())
    assert (trace.attention_rows(0)[1, :, LENGTHS[1] :] == 0).all()


def test_a_model_that_looks_both_ways_is_seen_from_its_last_token() -> None:
    with pytest.raises(NotMeasurable, match="bidirectional"):
        ww.capture(classifier(ROPE), padded(), queries=[5])
    trace = ww.capture(classifier(ROPE, causal=True), padded()[:1], queries=[5, 13])
    assert ww.score(trace.at(5)).positional.shape == (1, 2, 4)


# What a published code does otherwise.


def test_padding_counts_in_an_unmasked_model() -> None:
    model = classifier(ROPE, unmasked=True)
    tokens = padded()
    with torch.no_grad():
        assert torch.allclose(model(tokens)[:1], classifier(ROPE)(tokens[:1]), atol=1e-5)  # no padding, no difference
        assert not torch.allclose(model(tokens[1:]), classifier(ROPE)(tokens[1:]), atol=1e-2)
        stream, context = model.begin(tokens)
        assert context.mask is None
        assert torch.allclose(model.finish(stream, context), model.readout(model.norm(stream).mean(1)))


def test_fixed_keys_come_from_the_embeddings() -> None:
    model = classifier(Encoding(), fixed_keys=True)
    tokens = padded()[:1]
    seen = []
    model(tokens, watch=lambda _, asked: seen.append(asked))
    block = model.block(1)
    source = block.attention_norm(model.embedding(tokens))
    _, keys, values = nn.functional.linear(source, block.attention.inward.weight, block.attention.inward.bias).chunk(
        3, 2
    )
    assert torch.allclose(seen[1].keys.transpose(1, 2).flatten(2), keys, atol=1e-5)
    assert torch.allclose(seen[1].values.transpose(1, 2).flatten(2), values, atol=1e-5)
    plain = classifier(Encoding())
    stream, context = plain.begin(tokens)
    assert torch.allclose(seen[0].logits(), plain.project(0, stream, context).logits(), atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Encoding(added="magic"),
        lambda: Encoding(latent=8),
        lambda: Design(10, 2, 8, heads=5, width=32),
    ],
)
def test_impossible_encodings_are_refused(make) -> None:
    with pytest.raises(BadInput):
        make()
