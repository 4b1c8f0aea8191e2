"""A model that changed after its self-check is measured again, or refused, but never scored by a stale certificate."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.models.llama import modeling_llama

import wherewhat as ww
import wherewhat.tracing.self_check as check
from brute_force import scores as by_brute_force
from tiny import tiny_model
from wherewhat.tracing.hook import implementation


def prompt(batch: int = 1, tokens: int = 25) -> Tensor:
    return torch.randint(10, 128, (batch, tokens), generator=torch.Generator().manual_seed(1))


def deviation_from_brute_force(model: PreTrainedModel) -> float:
    """Of the positional and symbolic scores, from the published procedure on the model as it is now."""
    ids, blocks = prompt(), [(at, at + 1) for at in range(24)]
    with implementation(model, "eager"):
        expected = by_brute_force(model, ids, blocks, [torch.inf])[torch.inf]
    found = ww.score(ww.capture(model, ids), blocks, torch.inf)
    return float((torch.stack([found.positional[0], found.symbolic[0]]) - expected).abs().max())


def with_norms_of_one(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "key_layernorm" in name:
                weight.fill_(1)
    return model


def key_norms(model: PreTrainedModel) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(5)
    return {
        name: torch.rand(weight.shape, generator=draw) * 3 + 0.1
        for name, weight in model.state_dict().items()
        if "key_layernorm" in name
    }


def assigned(model: PreTrainedModel) -> None:
    model.load_state_dict(key_norms(model), strict=False, assign=True)


def set_as_data(model: PreTrainedModel) -> None:
    for name, weight in key_norms(model).items():
        model.get_parameter(name).data = weight


def copied_into_data(model: PreTrainedModel) -> None:
    """Neither the storage nor the version counter of the parameter changes."""
    for name, weight in key_norms(model).items():
        model.get_parameter(name).data.copy_(weight)


@pytest.mark.parametrize("start", [with_norms_of_one, lambda model: model], ids=["ones", "random"])
@pytest.mark.parametrize("change", [assigned, set_as_data, copied_into_data])
def test_new_weights_of_a_key_norm_take_effect(
    change: Callable[[PreTrainedModel], None], start: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    """Hunyuan scales keys after their rotation."""
    model = start(tiny_model("hunyuan_v1_dense"))
    assert deviation_from_brute_force(model) < 1e-4
    change(model)
    assert deviation_from_brute_force(model) < 1e-4


def test_rotary_and_non_rotary_layers_that_are_exchanged_are_measured_again() -> None:
    model = tiny_model("smollm3", no_rope_layers=[1, 0, 1, 0])
    before = ww.capture(model, prompt())
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]
    for number in (0, 1):  # the mask that a layer receives depends on its place: keep to the rotation
        layers[number].attention_type = "full_attention"
    assert [bool(layer.rotation.planes) for layer in before.attention] == [True, False, True, False]
    after = ww.capture(model, prompt())
    assert [bool(layer.rotation.planes) for layer in after.attention] == [False, True, True, False]
    assert deviation_from_brute_force(model) < 1e-4


def test_a_layer_told_not_to_rotate_is_measured_again() -> None:
    """The same modules and code: only a plain attribute differs."""
    model = tiny_model("smollm3", no_rope_layers=[1, 1, 1, 1])
    ww.capture(model, prompt())
    model.model.layers[2].self_attn.use_rope = False
    assert not ww.capture(model, prompt()).attention[2].rotation.planes
    assert deviation_from_brute_force(model) < 1e-4


class PlainRotary(nn.Module):
    """Angles come from a plain attribute: no buffer tells them."""

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = self.base ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        phases = (position_ids[..., None].float() * angles).repeat(1, 1, 2)
        return phases.cos(), phases.sin()


def test_a_base_in_a_plain_attribute_that_changes_is_measured_again() -> None:
    model = tiny_model("llama")
    model.model.rotary_emb = PlainRotary(16, 10_000.0)
    before = ww.capture(model, prompt())
    model.model.rotary_emb.base = 50.0
    after = ww.capture(model, prompt())
    expected = 50.0 ** -(torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(after.angles, expected.expand(4, -1), atol=1e-4, rtol=0)
    assert not torch.allclose(before.angles, after.angles, atol=0.01)
    assert deviation_from_brute_force(model) < 1e-4


def half_as_fast(forward: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    return lambda x, position_ids: forward(x, position_ids / 2)


def test_a_patched_forward_of_the_rotary_module_is_measured_again() -> None:
    model = tiny_model("llama")
    before = ww.capture(model, prompt())
    model.model.rotary_emb.forward = half_as_fast(model.model.rotary_emb.forward)
    torch.testing.assert_close(ww.capture(model, prompt()).angles, before.angles / 2, atol=1e-4, rtol=0)
    assert deviation_from_brute_force(model) < 1e-4


def test_a_patched_function_of_the_modelling_file_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No module and no `forward` changes: the probe alone can see it."""
    model = tiny_model("llama")
    ww.capture(model, prompt())
    rotate = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: rotate(q, k, cos, -sin))
    assert bool((ww.capture(model, prompt()).angles < 0).all())
    assert deviation_from_brute_force(model) < 1e-4


def test_a_patched_forward_that_attends_to_something_else_is_refused() -> None:
    """Queries and keys are captured as before, but the rows that the model computes from them are not used."""
    model = tiny_model("llama")
    ww.capture(model, prompt())
    attention = model.model.layers[1].self_attn
    original = attention.forward

    def uniform(hidden_states: Tensor, **rest: object) -> tuple[Tensor, Tensor | None]:
        output, weights = original(hidden_states, **rest)
        return output, None if weights is None else torch.full_like(weights, 1 / weights.shape[-1])

    attention.forward = uniform
    with pytest.raises(ww.NotMeasurable, match="attention rows"):
        ww.capture(model, prompt())


def test_a_patched_forward_that_adds_positions_to_contents_is_refused() -> None:
    model = tiny_model("llama")
    ww.capture(model, prompt())
    attention = model.model.layers[1].self_attn
    original = attention.forward

    def positioned(hidden_states: Tensor, **rest: object) -> tuple[Tensor, Tensor | None]:
        drift = torch.linspace(0, 5, hidden_states.shape[1])[:, None]
        return original(hidden_states + drift, **rest)

    attention.forward = positioned
    with pytest.raises(ww.NotMeasurable):
        ww.capture(model, prompt())


def test_code_that_is_replaced_within_a_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As reloading a module in a notebook does."""
    model, runs = tiny_model("llama"), []
    ww.capture(model, prompt())
    examine = check.examine
    monkeypatch.setattr(check, "examine", lambda *arguments: runs.append(1) or examine(*arguments))
    ww.capture(model, prompt())
    assert not runs

    def other(self: nn.Module, hidden_states: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", other)
    ww.capture(model, prompt())
    assert len(runs) == 1


def test_what_the_certificate_does_not_depend_on_costs_no_new_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of training, a hook, a gate that drops a frequency."""
    model, runs = tiny_model("llama"), []
    ww.capture(model, prompt())
    examine = check.examine
    monkeypatch.setattr(check, "examine", lambda *arguments: runs.append(1) or examine(*arguments))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    ww.capture(model, prompt(batch=3))
    with ww.gate(model, drop=[(0, 1, 2)]):
        ww.capture(model, prompt())
    handle = model.model.layers[1].register_forward_hook(lambda *_: None)
    ww.capture(model, prompt(tokens=40))
    handle.remove()
    past = DynamicCache()
    ww.capture(model, prompt(tokens=15), past=past)
    ww.capture(model, prompt(), past=past)
    assert not runs


def test_frozen_frequencies_are_confirmed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runs = tiny_model("llama"), []
    examine = check.examine
    monkeypatch.setattr(check, "examine", lambda *arguments: runs.append(1) or examine(*arguments))
    with ww.gate(model, freeze=[(None, None, "slowest half")]):
        runs.clear()
        for _ in range(2):
            ww.capture(model, prompt())
        assert len(runs) == 1
        assert check.certify(model, 25).probed == frozenset(range(4))


def test_a_gate_uses_the_rotation_in_force() -> None:
    """Frozen planes are rotated back by the angles of the model as it is: all frozen, no position is left."""
    model = tiny_model("llama")
    model.model.rotary_emb = PlainRotary(16, 10_000.0)
    with ww.gate(model, freeze=[(None, None, None)]):
        pass
    model.model.rotary_emb.base = 50.0
    ids, moved = prompt(), torch.arange(25)[None] * 3
    with torch.no_grad():
        rotated = model(input_ids=ids, position_ids=moved).logits
        with ww.gate(model, freeze=[(None, None, None)]):
            plain, stretched = (model(input_ids=ids, position_ids=at).logits for at in (torch.arange(25)[None], moved))
    torch.testing.assert_close(plain, stretched, atol=1e-3, rtol=0)
    assert not torch.allclose(plain, rotated, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gptj", "falcon", "bloom", "mpt", "gemma2", "deepseek_v3", "qwen3_next"])
def test_every_call_of_these_families_is_probed(model_type: str) -> None:
    model = tiny_model(model_type)
    trace = ww.capture(model, prompt(batch=2))
    assert check.certify(model, 25).probed == frozenset(range(len(trace.attention)))


def test_layers_that_reuse_keys_are_not_probed() -> None:
    model = tiny_model("gemma4_text")
    ww.capture(model, prompt())
    assert check.certify(model, 25).probed == {0, 1}


def test_a_prompt_that_contradicts_the_self_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Angles that change with the prompt itself pass the self-check on its own prompt."""
    model = tiny_model("llama")
    rotary = model.model.rotary_emb
    original = rotary.forward
    rotary.forward = lambda x, position_ids: original(x, position_ids * (1 + (x.shape[1] == 25)))
    with pytest.raises(ww.NotMeasurable, match="on this prompt, position does not act on keys"):
        ww.capture(model, prompt())
    ww.capture(model, prompt(tokens=30))


def test_certificates_do_not_keep_models_alive() -> None:
    model = tiny_model("llama")
    patched = copy.deepcopy(model)
    forward = patched.forward
    patched.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    alive = [weakref.ref(model), weakref.ref(patched.model.embed_tokens)]
    for one in (model, patched):
        ww.capture(one, prompt())
    del model, patched, one, forward
    gc.collect()
    assert [one() for one in alive] == [None, None]
