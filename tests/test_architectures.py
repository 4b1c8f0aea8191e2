"""Each kind of architecture gives the scores of the published procedure, and the model is left unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import brute_force
import wherewhat as ww
from conftest import mostly_slow
from tiny import tiny_model
from wherewhat.tracing.hook import implementation

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 32,
    "factor": 16.0,
    "rope_theta": 1e4,
}

# All block sizes and temperatures on these; one token per block and the two extreme temperatures on all.
THOROUGH = ("llama", "gemma2", "gptj", "deepseek_v3", "gpt_oss", "mistral", "smollm3", "bloom")
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in (
            *THOROUGH,
            "bamba", "beam", "codegen", "cohere", "cohere2", "diffllama", "exaone4", "falcon", "gemma3_text",
            "gemma4_text", "glm", "gpt_neox", "gpt_neox_japanese", "hunyuan_v1_dense", "llama4_text", "mpt", "olmo2",
            "phi", "phi3", "qwen2", "qwen3", "qwen3_next", "recurrent_gemma", "stablelm",
        )
    },
    "falcon, new decoder": ("falcon", {"new_decoder_architecture": True}),
    "llama, YaRN": ("llama", {"rope_parameters": YARN}),
}  # fmt: skip


@cache
def model_of(name: str) -> PreTrainedModel:
    model_type, options = FAMILIES[name]
    return tiny_model(model_type, **options)


def prompt(tokens: int = 25, batch: int = 1, seed: int = 1) -> Tensor:
    return torch.randint(10, 128, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def deviation_of_scores(
    model: PreTrainedModel, ids: Tensor, trace: ww.Trace, size: int = 1, taus: tuple[float, ...] = (1e-4, math.inf)
) -> float:
    """The largest difference from brute force. Layers that reuse the keys of an earlier layer have nothing to swap."""
    blocks = [(at, at + size) for at in range(0, ids.shape[1] - size, size)]
    with implementation(model, "eager"):
        brute = brute_force.scores(model, ids, blocks, list(taus))
    own = len(trace.attention) - getattr(model.config, "num_kv_shared_layers", 0)
    worst = 0.0
    for tau, expected in brute.items():
        scores = ww.score(trace, blocks, tau)
        difference = torch.stack([scores.positional[0], scores.symbolic[0]]) - expected
        worst = max(worst, float(difference[:, :own].abs().nan_to_num(nan=math.inf).max()))
    return worst


@pytest.mark.parametrize("name", mostly_slow(FAMILIES, "llama", "gpt_neox", "gemma2", "deepseek_v3"))
def test_scores_are_those_of_the_published_procedure(name: str) -> None:
    model, ids = model_of(name), prompt()
    trace = ww.capture(model, ids)
    assert set(trace.check) == {"logits", "attention", "keys", "swap"}
    assert max(trace.check.values()) < 1e-5
    assert deviation_of_scores(model, ids, trace) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", THOROUGH)
def test_scores_agree_at_every_block_size_and_temperature(name: str, size: int) -> None:
    model, ids = model_of(name), prompt(seed=2)
    assert deviation_of_scores(model, ids, ww.capture(model, ids), size, (1e-4, 1e-2, math.inf)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_scores_of_saturated_heads_are_right_where_float32_rows_underflow(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager attention in float32 rounds small weights to 0 and loses their pairs: brute force then needs float64."""
    model, ids = tiny_model(name), prompt()
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight")):
                weight *= 4
    trace = ww.capture(model, ids)
    assert deviation_of_scores(model, ids, trace) > 1e-2
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda logits, dim, dtype=None: softmax(logits.double(), dim))
    assert deviation_of_scores(model.double(), ids, trace) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32, "sliding_window": None}),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}),
    ],
)
def test_angles_that_depend_on_the_length_are_those_in_force(model_type: str, options: dict[str, Any]) -> None:
    """Also for a short prompt after a long one: models with dynamic scaling remember the longest."""
    model, angles = tiny_model(model_type, num_hidden_layers=2, **options), {}
    for tokens in (25, 34, 40, 34):
        ids = prompt(tokens)
        trace = ww.capture(model, ids)
        assert deviation_of_scores(model, ids, trace) < 1e-4
        angles[tokens] = trace.attention[0].rotation.angles
    assert not torch.allclose(angles[25], angles[34])


@pytest.mark.parametrize(
    ("name", "layout", "planes", "start", "resting"),
    [
        ("llama", "half-split", 8, 0, []),
        ("gpt_neox", "half-split", 2, 0, []),
        ("phi", "half-split", 4, 0, []),
        ("gptj", "interleaved", 4, 0, []),
        ("codegen", "interleaved", 4, 0, []),
        ("cohere", "interleaved", 8, 0, []),
        ("glm", "interleaved", 4, 0, []),
        ("deepseek_v3", "half-split", 4, 8, []),
        ("smollm3", "half-split", 8, 0, [3]),
        ("cohere2", "interleaved", 8, 0, [3]),
        ("beam", "half-split", 8, 0, [3]),
        ("mpt", "none", 0, 0, [0, 1, 2, 3]),
    ],
)
def test_the_rotation_is_measured(name: str, layout: str, planes: int, start: int, resting: list[int]) -> None:
    trace = ww.capture(model_of(name), prompt())
    rotations = [layer.rotation for layer in trace.attention]
    assert [at for at, rotation in enumerate(rotations) if not rotation.planes] == resting
    assert (rotations[0].layout, rotations[0].planes, rotations[0].start) == (layout, planes, start)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "gemma2", "falcon"])
def test_rows_of_grouped_heads_are_the_models_own(name: str) -> None:
    """With softcap, window and sinks, for every prompt of a batch."""
    model, ids = model_of(name), prompt(batch=2)
    trace = ww.capture(model, ids)
    with implementation(model, "eager"):
        for layer, module in enumerate(brute_force.attention_modules(model, ids)):
            rows = brute_force.last_rows(model, ids, module)
            torch.testing.assert_close(trace.attention_rows(layer), rows, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gptj", "falcon", "bloom", "mpt", "gemma2"])
def test_a_model_loaded_with_eager_attention_is_captured_as_well(name: str) -> None:
    model_type, options = FAMILIES[name]
    model = tiny_model(model_type, **options)
    expected = ww.capture(model, prompt())
    model.config._attn_implementation_internal = "eager"
    trace = ww.capture(model, prompt())
    for layer in range(len(trace.attention)):
        torch.testing.assert_close(trace.attention_rows(layer), expected.attention_rows(layer), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("model_type", ["gptj", "llama"])
def test_a_context_of_a_few_tokens_is_enough(model_type: str) -> None:
    name = "n_positions" if model_type == "gptj" else "max_position_embeddings"
    model, ids = tiny_model(model_type, **{name: 17}), prompt(17)
    assert deviation_of_scores(model, ids, ww.capture(model, ids)) < 1e-4


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "gpt_neo"])
def test_positions_in_the_embeddings_leave_level_prompt(model_type: str) -> None:
    model, ids = tiny_model(model_type), prompt()
    with pytest.raises(ww.NotMeasurable, match='level "prompt"'):
        ww.capture(model, ids)
    trace = ww.capture(model, ids, level="prompt")
    with implementation(model, "eager"):
        for layer, module in enumerate(brute_force.attention_modules(model, ids)):
            rows = brute_force.last_rows(model, ids, module)
            torch.testing.assert_close(trace.attention_rows(layer), rows, atol=1e-5, rtol=1e-4)


def test_eager_attention_that_differs_from_the_models_own_sdpa_is_refused() -> None:
    """Falcon with ALiBi: in transformers 5.22 its eager attention adds the bias twice."""
    with pytest.raises(ww.NotMeasurable, match="attention rows"):
        ww.capture(tiny_model("falcon", alibi=True), prompt())


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", "no attention"),
        ("rwkv", "does not use the attention interface"),
        ("deepseek_v32", "selects keys by their content"),
        ("deepseek_v4", "compresses keys"),
        ("doge", "exchanging contents by hand"),
        ("zaya", "exchanging contents by hand"),
        ("gemma4_unified_assistant", "does not run on a plain prompt"),
    ],
)
def test_models_that_cannot_be_measured_correctly_are_refused_in_one_sentence(model_type: str, reason: str) -> None:
    with pytest.raises(ww.NotMeasurable, match=reason) as caught:
        ww.capture(tiny_model(model_type), prompt())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_captured_and_scored_in_float32(dtype: torch.dtype) -> None:
    exact, half = tiny_model("llama"), tiny_model("llama").to(dtype)
    ids = prompt()
    trace = ww.capture(half, ids)
    scores = ww.score(trace, tau=math.inf)
    assert trace.attention[0].keys.dtype == dtype
    assert scores.positional.dtype == torch.float32
    expected = ww.score(ww.capture(exact, ids), tau=math.inf)
    assert (scores.positional - expected.positional).abs().max() < 0.05


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "bloom"])
def test_several_queries_are_several_prompts(name: str) -> None:
    model, ids, queries = model_of(name), prompt(), (5, 13, 24)
    together = ww.capture(model, ids, queries)
    for query in queries:
        alone = ww.capture(model, ids[:, : query + 1])
        for layer in range(len(alone.attention)):
            rows = together.at(query).attention_rows(layer)
            torch.testing.assert_close(rows, alone.attention_rows(layer), atol=1e-5, rtol=1e-3)
        for tau in (1e-2, math.inf):
            one, other = ww.score(together.at(query), tau=tau), ww.score(alone, tau=tau)
            torch.testing.assert_close(one.positional, other.positional, atol=1e-4, rtol=0)
            torch.testing.assert_close(one.symbolic, other.symbolic, atol=1e-4, rtol=0)


@contextmanager
def left_as_it_was(model: PreTrainedModel, ids: Tensor) -> Iterator[None]:
    """Configuration, training flags, hooks, methods, and logits to the last bit."""

    def state() -> dict[str, object]:
        modules = list(model.modules())
        return {
            "implementation": model.config._attn_implementation,
            "training": [module.training for module in modules],
            "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules],
            "methods": [sorted(vars(module)) for module in modules],
            "sdpa": torch.nn.functional.scaled_dot_product_attention,
        }

    def logits() -> Tensor:
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits

    before, said = state(), logits()
    yield
    assert state() == before
    assert torch.equal(logits(), said)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptj", "falcon", "bloom", "mpt"])
def test_a_captured_model_is_left_as_it_was(name: str) -> None:
    model_type, options = FAMILIES[name]
    model, ids = tiny_model(model_type, **options), prompt()
    model.model.train() if hasattr(model, "model") else model.transformer.train()
    with left_as_it_was(model, ids):
        ww.capture(model, ids)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", ["llama", "gptj", "falcon", "bloom", "mpt"])
def test_a_model_is_left_as_it_was_after_an_exception(name: str, checked: bool) -> None:
    """During the self-check, or during the capture after it."""
    model_type, options = FAMILIES[name]
    model, ids = tiny_model(model_type, **options), prompt()
    if checked:
        ww.capture(model, ids)

    def stop(*_: object) -> None:
        raise RuntimeError("out of luck")

    with left_as_it_was(model, ids):
        handle = model.get_output_embeddings().register_forward_hook(stop)
        with pytest.raises(RuntimeError, match="out of luck"):
            ww.capture(model, ids)
        handle.remove()


def test_the_output_of_a_trace_is_the_models_own() -> None:
    model, ids = model_of("llama"), prompt()
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits[:, -1]
    torch.testing.assert_close(ww.capture(model, ids).output, expected, atol=1e-5, rtol=1e-5)
