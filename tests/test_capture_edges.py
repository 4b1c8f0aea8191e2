"""Captures of unusual models, prompts and situations."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GPTJConfig, GPTJForCausalLM, StaticCache

import wherewhat as ww
from tiny import tiny_model
from wherewhat.core import walk
from wherewhat.core.rotation import Rotation
from wherewhat.core.trace import AttentionLayer, Trace


def prompt(batch: int = 1, tokens: int = 25) -> Tensor:
    return torch.randint(10, 128, (batch, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "gpt_neo"])
def test_a_trace_of_absolute_positions_has_rows_and_no_scores(model_type):
    trace = ww.capture(tiny_model(model_type), prompt(), level="prompt")
    assert trace.attention_rows(0).sum(-1) == pytest.approx(1, abs=1e-5)
    for number in (ww.score, ww.score_frequencies, ww.exclusion, ww.frequency_use):
        with pytest.raises(ww.NotMeasurable, match="prompt"):
            number(trace)
    with pytest.raises(ww.NotMeasurable, match="prompt"):
        trace.placement(0, 0)


def test_angles_changed_in_place_are_measured_again():
    model = tiny_model("llama")
    before = ww.capture(model, prompt()).angles
    model.model.rotary_emb.inv_freq.mul_(0.5)
    torch.testing.assert_close(ww.capture(model, prompt()).angles, before / 2)


@pytest.mark.slow
def test_norm_weights_changed_in_place_take_effect():
    model = tiny_model("hunyuan_v1_dense").to(torch.bfloat16)
    ww.capture(model, prompt())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("layernorm.weight") and "self_attn" in name:
                weight.copy_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(2)) + 0.5)
    known = ww.score(ww.capture(model, prompt()), tau=torch.inf)
    fresh = ww.score(ww.capture(model, prompt(), check=True), tau=torch.inf)
    torch.testing.assert_close(known.positional, fresh.positional)


def test_captures_in_threads_do_not_interfere():
    model = tiny_model("llama")
    expected = ww.score(ww.capture(model, prompt())).positional
    implementation = model.config._attn_implementation
    results: list[object] = []

    def work() -> None:
        try:
            results.extend(ww.score(ww.capture(model, prompt())).positional for _ in range(10))
        except Exception as error:  # an error in any thread fails the test
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(result, Tensor) and torch.equal(result, expected) for result in results)
    assert len(results) == 30
    assert model.config._attn_implementation == implementation


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "gptj", "jamba", "zamba", "zamba2", "longcat_flash"])
def test_layers_are_those_of_the_model(model_type):
    model = tiny_model(model_type)
    running: list[int] = []
    layers = next(m for name, m in model.named_modules() if name.split(".")[-1] in ("layers", "h"))
    shown: list[int] = []
    handles = [
        layer.register_forward_pre_hook(lambda *_, number=number: running.append(number))
        for number, layer in enumerate(layers)
    ]

    def look(_, __, output):
        if isinstance(output, tuple) and any(isinstance(o, Tensor) and o.dim() == 4 for o in output[1:]):
            shown.append(running[-1])

    handles += [
        m.register_forward_hook(look) for m in model.modules() if type(m).__name__.endswith(("Attention", "MLA"))
    ]
    before = model.config._attn_implementation
    if model_type != "gptj":
        model.set_attn_implementation("eager")
    with torch.no_grad():
        model(input_ids=prompt(), use_cache=False)
    if model_type != "gptj":
        model.set_attn_implementation(before)
    for handle in handles:
        handle.remove()
    trace = ww.capture(model, prompt())
    assert trace.layers == shown != []


def test_a_prompt_longer_than_the_table_of_positions():
    config = GPTJConfig(
        vocab_size=128, n_positions=32, n_embd=32, n_layer=1, n_head=2, rotary_dim=8, bos_token_id=0, eos_token_id=0
    )
    with pytest.raises(ww.BadInput, match="40 tokens, the model takes 32"):
        ww.capture(GPTJForCausalLM(config), prompt(tokens=40))


def test_wrappers_by_other_code_are_kept():
    model = tiny_model("gptj")
    attention = model.transformer.h[0].attn
    original = attention._attn

    def wrapper(*args, **kwargs):
        return original(*args, **kwargs)

    attention._attn = wrapper
    ww.capture(model, prompt())
    assert attention._attn is wrapper


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["mistral", "gpt_oss", "bloom"])
def test_several_queries_of_several_prompts(model_type):
    model, ids = tiny_model(model_type), prompt(batch=3)
    together = ww.capture(model, ids, queries=[14, 20, 24])
    for query in (14, 20, 24):
        alone = ww.capture(model, ids[:, : query + 1])
        for measured in ("positional", "symbolic"):
            one, other = (getattr(ww.score(t, tau=1e-2), measured) for t in (together.at(query), alone))
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precision_changes_real_scores_little(stories15m, dtype, tolerance):
    ids = torch.randint(100, 30000, (1, 48), generator=torch.Generator().manual_seed(3))
    exact = ww.score(ww.capture(stories15m, ids), tau=torch.inf)
    path = stories15m.config.name_or_path
    rough = ww.score(ww.capture(ww.load(path, dtype=dtype), ids), tau=torch.inf)
    for measured in ("positional", "symbolic"):
        assert (getattr(exact, measured) - getattr(rough, measured)).abs().max() < tolerance


def layers_of(
    rotations: list[Rotation], batch: int = 2, queries: int = 2, bias: int | None = None
) -> list[AttentionLayer]:
    draw = torch.Generator().manual_seed(0)
    made = []
    for number, rotation in enumerate(rotations):
        rows = None
        if number == bias:
            rows = torch.randn(1, 4, queries, 20, generator=draw)
        made.append(
            AttentionLayer(
                number,
                torch.randn(batch, 4, queries, 8, generator=draw),
                torch.randn(batch, 2, 20, 8, generator=draw),
                rotation,
                0.5,
                bias=rows,
            )
        )
    return made


def test_layers_processed_together_score_as_alone(monkeypatch):
    fast, slow = (Rotation.half_split(torch.tensor(angles), 8) for angles in ([1.0, 0.3, 0.1], [0.5, 0.2, 0.1]))
    made = layers_of([fast, fast, slow, fast, fast, fast], bias=4)
    trace = Trace(tuple(made), (11, 19), 19)
    assert [len(run) for run in trace.runs(2**21)] == [2, 1, 1, 1, 1]
    for at in (11, 19):
        seen = trace.at(at)
        together = ww.score(seen), ww.score_frequencies(seen), ww.entropy(seen)
        with monkeypatch.context() as patch:
            patch.setattr(walk, "TOGETHER", 1)
            assert all(len(run) == 1 for run in seen.runs(1))
            alone = ww.score(seen), ww.score_frequencies(seen), ww.entropy(seen)
        for one, other in zip(together[:2], alone[:2], strict=True):
            torch.testing.assert_close(one.positional, other.positional, atol=1e-6, rtol=0)
            torch.testing.assert_close(one.symbolic, other.symbolic, atol=1e-6, rtol=0)
        torch.testing.assert_close(together[2], alone[2])


@pytest.mark.parametrize("bias", [None, 0])
def test_heads_processed_in_parts_score_as_together(monkeypatch, bias):
    layer = layers_of([Rotation.half_split(torch.tensor([1.0, 0.3, 0.1]), 8)], bias=bias)[0]
    trace = Trace((replace(layer, sinks=torch.arange(4.0)),), (11, 19), 19)
    together = ww.score(trace), ww.score_frequencies(trace), ww.exclusion(trace)
    monkeypatch.setattr(walk, "LARGEST", 1)
    assert len(list(trace.attention[0].parts(1))) == 2
    alone = ww.score(trace), ww.score_frequencies(trace), ww.exclusion(trace)
    for one, other in zip(together[:2], alone[:2], strict=True):
        torch.testing.assert_close(one.positional, other.positional, atol=1e-6, rtol=0)
        torch.testing.assert_close(one.symbolic, other.symbolic, atol=1e-6, rtol=0)
    torch.testing.assert_close(together[2].bound, alone[2].bound)


def test_planes_of_angle_zero_are_one_entry_and_the_fastest_comes_first():
    made = layers_of([Rotation.half_split(torch.tensor([0.1, 0.0, 0.9, 0.0]), 8)])
    trace = Trace(tuple(made), (11, 19), 19)
    assert trace.frequency_ids == [1, 2, 0]
    torch.testing.assert_close(trace.angles, torch.tensor([[0.9, 0.1, 0.0]]))
    assert ww.score_frequencies(trace).symbolic[..., -1] == pytest.approx(1, abs=1e-5)
    places = torch.arange(20)
    contents = made[0].rotation.rotate(made[0].keys, places, back=True)
    for content, place in ((3, 12), (12, 3), (7, 7)):
        key = made[0].rotation.rotate(contents[:, :, [content]], torch.tensor([place])).repeat_interleave(2, dim=1)
        logit = (made[0].queries[:, :, 1] * key[:, :, 0]).sum(-1) * 0.5
        table = torch.stack([trace.placement(0, head)[:, content, place] for head in range(4)], dim=1)
        torch.testing.assert_close(table, logit, atol=1e-5, rtol=0)


def test_a_sink_with_nearly_all_attention_leaves_valid_scores():
    layer = layers_of([Rotation.half_split(torch.tensor([1.0, 0.3, 0.1]), 8)])[0]
    plain = Trace((layer,), (11, 19), 19)
    drained = Trace((replace(layer, sinks=torch.full((4,), 200.0)),), (11, 19), 19)
    one, other = ww.score(plain, tau=torch.inf), ww.score(drained, tau=torch.inf)
    torch.testing.assert_close(one.positional, other.positional, atol=1e-5, rtol=0)
    torch.testing.assert_close(one.symbolic, other.symbolic, atol=1e-5, rtol=0)


def test_a_layer_that_is_skipped_on_the_prompt_is_noticed(monkeypatch):
    model = tiny_model("llama")
    ww.capture(model, prompt())
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def skipping(hidden_states: Tensor, **rest: object) -> tuple[Tensor, Tensor | None]:
        """Runs on the prompt of the self-check only."""
        return (hidden_states, None) if hidden_states.shape[1] == 25 else forward(hidden_states, **rest)

    monkeypatch.setattr(attention, "forward", skipping)
    with pytest.raises(ww.NotMeasurable, match="attention calls captured"):
        ww.capture(model, prompt())


DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 8, "long_factor": [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
}  # fmt: skip


@pytest.mark.parametrize("rope", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_a_cache_is_refused_where_angles_depend_on_the_length(rope):
    model = tiny_model("llama", rope_parameters=rope, max_position_embeddings=32 if rope is DYNAMIC else 128)
    past = DynamicCache()
    with torch.no_grad():
        model(input_ids=prompt(tokens=20), past_key_values=past, use_cache=True)
    with pytest.raises(ww.NotMeasurable, match="depend on the length of the prompt"):
        ww.capture(model, prompt(tokens=60), past=past)
    assert past.get_seq_length() == 20


@pytest.mark.parametrize("kind", [DynamicCache, partial(StaticCache, max_cache_len=64)])
def test_a_cache_that_drops_keys_outside_the_window_is_refused(kind):
    model = tiny_model("mistral")
    with pytest.raises(ww.BadInput, match="outside a sliding window"):
        ww.capture(model, prompt(), past=kind(config=model.config))


def test_a_cache_without_a_window_holds_every_key():
    model, past = tiny_model("mistral"), DynamicCache()
    whole = ww.capture(model, prompt(tokens=40))
    ww.capture(model, prompt(tokens=40)[:, :20], past=past)
    rest = ww.capture(model, prompt(tokens=40), past=past)
    for layer in range(4):
        torch.testing.assert_close(rest.attention_rows(layer), whole.attention_rows(layer))


def test_a_cache_of_another_batch_is_refused():
    model, past = tiny_model("llama"), DynamicCache()
    ww.capture(model, prompt(batch=3, tokens=15), past=past)
    with pytest.raises(ww.BadInput, match="cannot continue from this cache of 15 tokens"):
        ww.capture(model, prompt(batch=2), past=past)


@pytest.mark.parametrize("original", [12, 24, 40])
def test_short_prompts_after_a_long_one_have_the_first_angles(original):
    """Dynamic scaling keeps the angles of the longest prompt, until one is shorter than the original context."""
    model = tiny_model("llama", rope_parameters=DYNAMIC, max_position_embeddings=original)
    short = prompt(tokens=original - 2)
    before = ww.capture(model, short)
    assert not torch.equal(ww.capture(model, prompt(tokens=90)).angles, before.angles)
    after = ww.capture(model, short)
    assert torch.equal(after.angles, before.angles)
    torch.testing.assert_close(ww.score(after).positional, ww.score(before).positional)


def test_keys_that_are_all_zero_are_named_as_the_reason():
    model = tiny_model("llama")
    with torch.no_grad():
        for part in ("weight", "bias"):
            getattr(model.model.layers[2].self_attn.k_proj, part).zero_()
    with pytest.raises(ww.NotMeasurable, match="the keys of attention layer 2 are all zero"):
        ww.capture(model, prompt())


def test_another_thread_that_runs_the_model_during_a_capture_is_refused():
    model, errors = tiny_model("llama"), []
    expected = ww.score(ww.capture(model, prompt())).positional

    def run() -> None:
        try:
            model(input_ids=prompt())
        except ww.BadInput as error:
            errors.append(str(error))

    def interrupt(*_: object) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    handle = model.model.layers[1].register_forward_pre_hook(interrupt)
    trace = ww.capture(model, prompt())
    handle.remove()
    assert errors
    assert all("another thread is capturing this model" in error for error in errors)
    assert torch.equal(ww.score(trace).positional, expected)
    assert trace.layers == [0, 1, 2, 3]
    run()
    model(input_ids=prompt())


def test_another_thread_that_is_in_the_middle_of_a_pass_is_refused():
    model, errors = tiny_model("llama"), []
    expected = ww.score(ww.capture(model, prompt())).positional
    inside, go_on = threading.Event(), threading.Event()

    def run() -> None:
        try:
            model(input_ids=prompt())
        except ww.BadInput as error:
            errors.append(str(error))

    other = threading.Thread(target=run)

    def meet(*_: object) -> None:
        if threading.current_thread() is other:
            inside.set()
            go_on.wait()
        else:
            go_on.set()
            other.join()

    handle = model.model.layers[1].register_forward_hook(meet)
    other.start()
    inside.wait()
    trace = ww.capture(model, prompt())
    handle.remove()
    assert len(errors) == 1
    assert torch.equal(ww.score(trace).positional, expected)


class Unknown:
    """A wrapper that nobody knows: `trace` opens a context, and other names are looked up in the model."""

    def __init__(self, model):
        self._module = model

    def trace(self, *_: object) -> object:
        return object()

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


def test_an_unknown_wrapper_with_a_trace_of_its_own_is_refused():
    with pytest.raises(ww.BadInput, match="got Unknown, which wraps one: pass its attribute _module"):
        ww.capture(Unknown(tiny_model("llama")), prompt())
