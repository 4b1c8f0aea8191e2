"""A gate removes exactly what it names, on every kind of architecture, and restores the model afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import wherewhat as ww
from tiny import tiny_model
from wherewhat.core.bands import band
from wherewhat.core.frequency import frequency_logits
from wherewhat.lab import Shape, Transformer
from wherewhat.tracing.gate import mean_outputs
from wherewhat.tracing.hook import gates, implementation

# Grouped keys, soft-capping, interleaved planes, latent attention, sinks, partial rotary embeddings, layers without
# rotation, a window, no rotation at all, and the families with their own attention code.
FAMILIES = (
    "llama", "gemma2", "gptj", "deepseek_v3", "gpt_oss", "gpt_neox", "glm", "phi", "smollm3", "mistral", "cohere",
    "falcon", "bloom", "mpt", "gpt2", "diffllama",
)  # fmt: skip
SHOWING = [name for name in FAMILIES if name not in ("falcon", "gpt2", "diffllama")]
ALL = (None, None, None)


@cache
def model_of(name: str) -> PreTrainedModel:
    return tiny_model(name)


def prompt(tokens: int = 25, batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randint(10, 128, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: Any, ids: Tensor | None = None, **inputs: Any) -> Tensor:
    ids = prompt() if ids is None else ids
    return model(ids) if isinstance(model, Transformer) else model(input_ids=ids, **inputs).logits


@torch.no_grad()
def own_rows(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """The last attention row of every layer, as the family's own eager code computes it."""
    with implementation(model, "eager"):
        shown = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
    return [rows[:, :, -1].float() for rows in shown]


def parts(model: PreTrainedModel, ids: Tensor, layer: int) -> tuple[dict[int, Tensor], ww.Trace]:
    """The contribution (B, H, T) of every frequency of a layer to the logits, from the model without a gate."""
    trace = ww.capture(model, ids)
    turning = len(trace.attention[layer].rotation.rotating)
    alone = frequency_logits(trace.placements(layer)).unbind(2)
    return {entry + 1 if entry < turning else 0: part for entry, part in enumerate(alone)}, trace


def raw_logits(trace: ww.Trace, layer: int) -> Tensor:
    """Queries times keys of a layer, as captured: B H T."""
    seen = trace.attention[layer]
    keys = seen.keys.repeat_interleave(seen.queries.shape[1] // seen.keys.shape[1], dim=1)
    return (seen.queries.float() @ keys.float().mT).squeeze(2) * seen.scaling


@pytest.mark.parametrize("name", FAMILIES)
def test_an_empty_gate_changes_no_bit(name: str) -> None:
    model = model_of(name)
    plain = logits(model)
    with ww.gate(model):
        assert torch.equal(logits(model), plain)
    with ww.gate(model, keep=[ALL]):
        assert torch.equal(logits(model), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWING)
def test_one_frequency_kept_attends_by_its_logits_alone(name: str) -> None:
    """Through the family's own eager attention, with its soft-capping, biases and sinks."""
    model, ids, layer = model_of(name), prompt(), 2
    alone, trace = parts(model, ids, layer)
    seen = trace.attention[layer]
    for frequency, expected in alone.items():
        if seen.softcap:
            expected = seen.softcap * torch.tanh(expected / seen.softcap)
        if seen.bias is not None:
            expected = expected + seen.bias[:, :, 0]
        with ww.gate(model, keep=[(seen.index, None, frequency)]):
            row = own_rows(model, ids)[layer]
        assert torch.allclose(row / row.sum(-1, keepdim=True), expected.softmax(-1), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("gpt2", "diffllama")])
def test_the_logits_of_frequencies_add_up(name: str) -> None:
    model, ids, layer = model_of(name), prompt(), 1
    alone, trace = parts(model, ids, layer)
    whole, total = raw_logits(trace, layer), torch.zeros(())
    index = trace.attention[layer].index
    for frequency, expected in alone.items():
        with ww.gate(model, keep=[(index, None, frequency)]):
            kept = raw_logits(ww.capture(model, ids), layer)
        assert torch.allclose(kept, expected, atol=1e-5)
        total = total + kept
    assert torch.allclose(total, whole, atol=1e-5)
    with ww.gate(model, drop=[(index, 1, None)]):
        gone = raw_logits(ww.capture(model, ids), layer)
    assert not gone[:, 1].any()
    assert torch.equal(gone[:, [0, 2, 3]], whole[:, [0, 2, 3]])


@contextmanager
def without_rotation(model: PreTrainedModel, slowest: int) -> Iterator[PreTrainedModel]:
    """A copy in which the angles of the slowest planes are 0: p-RoPE."""
    copy, found = deepcopy(model), 0
    for module in copy.modules():
        for key, table in module.named_buffers(recurse=False):
            if key.endswith("inv_freq"):
                table[-slowest:] = 0
                found += 1
            elif key == "embed_positions":  # GPT-J: sines, then cosines
                half = table.shape[1] // 2
                table[:, half - slowest : half], table[:, -slowest:] = 0, 1
                found += 1
    assert found
    yield copy


ROTARY = {"llama": 8, "gemma2": 8, "gptj": 4, "deepseek_v3": 4, "gpt_neox": 2, "glm": 4, "phi": 4, "smollm3": 8}


@pytest.mark.parametrize("name", ROTARY)
def test_the_slowest_frequencies_frozen_are_p_rope(name: str) -> None:
    model, frozen = model_of(name), ROTARY[name] // 2
    with without_rotation(model, frozen) as other, ww.gate(model, freeze=[(None, None, f"slowest {frozen}")]):
        assert torch.allclose(logits(model), logits(other), atol=3e-5)
    assert not torch.allclose(logits(model), logits(other), atol=1e-2)


def test_a_frequency_frozen_in_one_head_is_not_frozen_in_heads_that_share_its_keys() -> None:
    model, ids = model_of("llama"), prompt()
    plain = own_rows(model, ids)[0]
    with without_rotation(model, 5) as other:
        still = own_rows(other, ids)[0]
    with ww.gate(model, freeze=[(0, 1, "slowest 5")]):
        rows, shown = own_rows(model, ids)[0], logits(model)
        with implementation(model, "sdpa"):
            assert torch.allclose(logits(model), shown, atol=1e-5)
    assert torch.allclose(rows[:, 1], still[:, 1], atol=1e-6)
    assert torch.allclose(rows[:, [0, 2, 3]], plain[:, [0, 2, 3]], atol=1e-6)
    assert (still[:, 1] - plain[:, 1]).abs().max() > 1e-2


def test_freezing_holds_with_a_cache_padding_and_any_positions() -> None:
    model, ids = model_of("llama"), prompt()
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
    mask = (torch.arange(28) >= 3).long().expand(2, -1)
    places = torch.stack([torch.arange(25) * 2, torch.arange(25) // 2])
    with without_rotation(model, 4) as other:
        expected, spread = other.generate(ids, max_new_tokens=12, do_sample=False), logits(other, position_ids=places)
    choice = [(None, None, "slowest half")]
    with ww.gate(model, freeze=choice):
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), expected)
        assert torch.allclose(logits(model, padded, attention_mask=mask)[:, 3:], logits(model), atol=2e-5)
        assert torch.equal(
            model.generate(padded, attention_mask=mask, max_new_tokens=12, do_sample=False)[:, 3:], expected
        )
        assert torch.allclose(logits(model, position_ids=places), spread, atol=2e-5)
        with pytest.raises(ww.NotMeasurable, match="static cache"):
            logits(model, past_key_values=StaticCache(model.config, max_cache_len=64))


def test_a_capture_within_a_gate_sees_the_gated_model() -> None:
    """The self-check of the gated model finds that the frozen planes do not rotate."""
    model, ids = model_of("llama"), prompt()
    with ww.gate(model, freeze=[(None, None, "slowest half")]):
        trace = ww.capture(model, ids)
        assert (trace.angles[:, 4:] == 0).all() or trace.angles[:, 4:].abs().max() < 1e-7
        assert trace.angles[:, 3].min() > 1e-3
        assert torch.allclose(trace.attention_rows(3), own_rows(model, ids)[3], atol=1e-6)
    assert ww.capture(model, ids).angles.min() > 1e-4


def projection_of(model: PreTrainedModel, layer: int) -> nn.Module:
    names = ("o_proj", "out_proj", "attention.dense", "self_attention.dense", "attn.dense")
    return [module for name, module in model.named_modules() if name.endswith(names)][layer]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptj", "deepseek_v3", "falcon", "bloom", "mpt", "gpt_neox"])
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_an_ablated_head_outputs_zero_or_its_mean(name: str, kind: str) -> None:
    """Against a run in which the input of the output projection is changed by hand."""
    model, other, layer, head = model_of(name), prompt(17, seed=5), 1, 2
    projection, seen = projection_of(model, layer), []
    handle = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits(model, other)
    handle.remove()
    width = seen[0].shape[-1] // 4
    part = slice(head * width, (head + 1) * width)
    value = seen[0][..., part].mean((0, 1)) if kind == "mean" else 0.0

    def replaced(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        output = args[0].clone()
        output[..., part] = value
        return (output, *args[1:])

    handle = projection.register_forward_pre_hook(replaced)
    expected = logits(model)
    handle.remove()
    with ww.gate(model, ablate=[(layer, head)], mean_of=other if kind == "mean" else None):
        gated = logits(model)
    assert torch.allclose(gated, expected, atol=1e-5)
    assert not torch.allclose(logits(model), expected, atol=1e-3)
    if kind == "mean":
        with ww.gate(model, ablate=[(layer, head)], mean_of=mean_outputs(model, other)):
            assert torch.equal(logits(model), gated)


def state(model: PreTrainedModel) -> tuple[object, ...]:
    """Everything that a gate touches."""
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    patched = "get_interface" in vars(ALL_ATTENTION_FUNCTIONS) or any("_attn" in vars(m) for m in model.modules())
    return hooks, patched, len(gates), model.config._attn_implementation, logits(model).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_restored_whatever_happens(name: str) -> None:
    model = model_of(name)
    plain, before = logits(model), state(model)

    def steps() -> Iterator[Tensor]:
        with ww.gate(model, drop=[(0, None, None)]):
            while True:
                yield logits(model)

    def fail() -> None:
        with ww.gate(model, ablate=[(0, 0)]):
            assert not torch.equal(logits(model), plain)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert state(model) == before
    one, other = steps(), steps()
    dropped = next(one)
    assert torch.equal(next(other), dropped)
    one.close()  # the first gate to open is the first to close
    assert torch.equal(next(other), dropped)
    other.close()
    assert state(model) == before


def test_nested_gates_combine() -> None:
    model = model_of("llama")
    with ww.gate(model, drop=[(0, 1, 3), (2, None, 1)], freeze=[(1, 0, 2)], ablate=[(3, 3)]):
        together = logits(model)
    with ww.gate(model, drop=[(0, 1, 3)], freeze=[(1, 0, 2)]):
        outer = logits(model)
        with ww.gate(model, drop=[(2, None, 1)], freeze=[(1, 0, 2)], ablate=[(3, 3)]):
            assert torch.equal(logits(model), together)
            ww.capture(model, prompt())
            assert torch.equal(logits(model), together)
        assert torch.equal(logits(model), outer)


def test_two_models_are_gated_independently() -> None:
    one, other = model_of("llama"), model_of("mistral")
    plain = logits(other)
    with ww.gate(one, ablate=[(0, 0)]):
        gated = logits(one)
        assert torch.equal(logits(other), plain)
        with ww.gate(other, ablate=[(1, 1)]):
            assert not torch.equal(logits(other), plain)
            assert torch.equal(logits(one), gated)


def test_gradients_and_training_pass_through_a_gate() -> None:
    model = deepcopy(model_of("llama")).train()
    with ww.gate(model, drop=[(None, None, "fastest half")]):
        assert model.training
        model(input_ids=prompt()).logits.sum().backward()
    rows = model.model.layers[0].self_attn.q_proj.weight.grad.unflatten(0, (4, 2, 8)).abs().sum((0, 1, 3))
    assert (rows[:4] == 0).all()  # the planes of dimensions 0-3 and 8-11 were dropped
    assert (rows[4:] > 0).all()


def lab_model() -> Transformer:
    model = Transformer(Shape(vocabulary=128, layers=3, heads=2, width=32, hidden=64), seed=1)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(2))
    return model


def test_models_of_the_lab_can_be_gated_too() -> None:
    model, ids = lab_model(), prompt()
    plain, alone = logits(model), frequency_logits(ww.capture(model, ids).placements(1))
    with ww.gate(model):
        assert torch.equal(logits(model), plain)
    total = torch.zeros(())
    for entry in range(8):
        with ww.gate(model, keep=[(1, None, entry + 1)]):
            kept = raw_logits(ww.capture(model, ids), 1)
            assert torch.equal(raw_logits(ww.capture(model, ids), 1), kept)  # the gate outlives a capture
        assert torch.allclose(kept, alone[:, :, entry], atol=1e-5)
        total = total + kept
    assert torch.allclose(total, raw_logits(ww.capture(model, ids), 1), atol=1e-5)
    still = Transformer(Shape(128, 3, 2, 32, 64, angles=model.shape.frequencies()[:4]))
    still.load_state_dict(model.state_dict())
    with ww.gate(model, freeze=[(None, None, "slowest half")]):
        assert torch.allclose(logits(model), logits(still), atol=1e-5)
    assert torch.equal(logits(model), plain)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"drop": [(9, None, None)]}, "layer 9: attention is in layers 0 to 3"),
        ({"ablate": [(0, 4)]}, "head 4: layer 0 has heads 0 to 3"),
        ({"ablate": [(0, -1)]}, "head -1: layer 0 has heads 0 to 3"),
        ({"drop": [(0, 1, 9)]}, "frequency 9: layer 0 has the frequency IDs 1 to 8"),
        ({"freeze": [(0, 1, 0)]}, "frequency 0: layer 0 has the frequency IDs 1 to 8"),
        ({"drop": [(None, None, "slowest 0")]}, "band 'slowest 0' is empty: there are 8 frequencies"),
        ({"drop": [(None, None, "fastest dozen")]}, "no band 'fastest dozen'"),
        ({"ablate": [(0, 1, 2)]}, "heads are ablated as a whole"),
        ({"drop": [(0, 1, 2, 3)]}, "a choice is"),
    ],
)
def test_a_choice_that_selects_nothing_is_refused(choices: dict[str, Any], words: str) -> None:
    model = model_of("llama")
    with pytest.raises(ww.BadInput, match=words), ww.gate(model, **choices):
        pass
    assert not gates


def test_two_layers_are_listed_and_more_are_a_range() -> None:
    model = tiny_model("llama", num_hidden_layers=2)
    with pytest.raises(ww.BadInput, match=r"layer 9: attention is in layers 0, 1$"), ww.gate(model, ablate=[(9,)]):
        pass


def test_bands_partition_the_planes() -> None:
    for planes in (1, 3, 8, 31, 64):
        for part, names in {"third": ("fastest", "middle", "slowest"), "half": ("first", "last")}.items():
            ids = [one for name in names for one in (band(f"{name} {part}", planes) if planes > 2 else ())]
            assert ids == (list(range(1, planes + 1)) if planes > 2 else [])


def test_angles_that_depend_on_the_length_are_dropped_but_not_frozen() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = tiny_model("llama", num_hidden_layers=2, rope_parameters=dynamic, max_position_embeddings=32)
    with pytest.raises(ww.NotMeasurable, match="dropped, but not frozen"), ww.gate(model, freeze=[ALL]):
        pass
    with ww.gate(model, drop=[(None, None, "fastest quarter")]):
        logits(model)
