"""Whatever is wrong with a capture, the self-check refuses the model instead of returning wrong numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AttentionMaskInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import wherewhat as ww
import wherewhat.tracing.self_check as check
from tiny import tiny_config, tiny_model
from wherewhat.core.rotation import Rotation
from wherewhat.tracing.hook import NAME, Record, Recorder, recording
from wherewhat.tracing.self_check import TOLERANCE, Position, certify, exchange_by_hand, make_prompt, measure_positions

TOLERATED = TOLERANCE[torch.float32]


def untrained(model_type: str = "llama") -> PreTrainedModel:
    """As initialised by transformers: attention is nearly uniform, so mistakes barely show in its rows."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(model_type), dtype=torch.float32).eval()


@pytest.fixture(params=["peaked", "untrained"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_model("llama") if request.param == "peaked" else untrained()


def prompt() -> Tensor:
    return torch.randint(10, 128, (1, 25), generator=torch.Generator().manual_seed(1))


def test_a_correct_capture_passes(model: PreTrainedModel) -> None:
    assert max(ww.capture(model, prompt()).check.values()) < TOLERATED / 3


def test_lost_causality_is_caught(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(batch_size: int, q_length: int, kv_length: int, **_: object) -> Tensor:
        return torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool)

    monkeypatch.setitem(AttentionMaskInterface._global_mapping, NAME, everything)
    with pytest.raises(ww.NotMeasurable, match="logits change"):
        ww.capture(model, prompt())


def test_a_mask_that_was_never_registered_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask, causality survives but a sliding window does not."""
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, NAME)
    with pytest.raises(ww.NotMeasurable, match="attention rows"):
        ww.capture(tiny_model("mistral"), prompt())


def test_a_family_that_ignores_the_hook_is_caught(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(ALL_ATTENTION_FUNCTIONS), "get_interface", lambda _, name, default: default)
    with pytest.raises(ww.NotMeasurable, match="does not use the attention interface"):
        ww.capture(model, prompt())


def test_a_single_layer_that_ignores_the_hook_is_caught(model: PreTrainedModel) -> None:
    attention = model.model.layers[2].self_attn
    attention.config = copy.deepcopy(attention.config)
    attention.config._attn_implementation_internal = "eager"
    with pytest.raises(ww.NotMeasurable, match="3 attention calls captured, but the model returns 4"):
        ww.capture(model, prompt())


def other_layout(rotation: Rotation) -> Rotation:
    return replace(rotation, layout="interleaved" if rotation.layout == "half-split" else "half-split")


def one_plane_off(rotation: Rotation) -> Rotation:
    angles = rotation.angles.clone()
    angles[2] *= 1.01
    return replace(rotation, angles=angles)


def other_base(rotation: Rotation) -> Rotation:
    return replace(rotation, angles=rotation.angles**1.05)


def backwards(rotation: Rotation) -> Rotation:
    return replace(rotation, angles=-rotation.angles)


def nothing(rotation: Rotation) -> Rotation:
    return Rotation.none(rotation.head_dim)


WRONG = [other_layout, one_plane_off, other_base, backwards, nothing]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("model_type", ["llama", "gptj", "deepseek_v3"])
def test_wrong_rotations_of_keys_are_caught(
    model_type: str, wrong: Callable[[Rotation], Rotation], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = check.fit_rotation

    def measured(*arguments: object) -> tuple[Rotation, float]:
        rotation, rest = right(*arguments)
        return wrong(rotation), rest

    monkeypatch.setattr(check, "fit_rotation", measured)
    with pytest.raises(ww.NotMeasurable, match="keys rotated by the measured angles"):
        ww.capture(tiny_model(model_type), prompt())


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_the_exchange_by_hand_catches_a_wrong_rotation_alone(
    model: PreTrainedModel, wrong: Callable[[Rotation], Rotation]
) -> None:
    """Without the check of the keys: the two checks are independent."""
    own, recorder = make_prompt(model, 25), Recorder([22])
    with recording(model, recorder):
        own.run(model)
    records: list[Record] = recorder.records
    positions, _ = measure_positions(model, own, 25, records)
    assert exchange_by_hand(model, own, records, positions) < TOLERATED / 3
    for layer in range(len(positions)):
        mistaken = list(positions)
        mistaken[layer] = Position(wrong(positions[layer].rotation))
        assert exchange_by_hand(model, own, records, tuple(mistaken)) > TOLERATED


def test_a_rotary_model_that_ignores_position_ids_is_caught(model: PreTrainedModel) -> None:
    """The probe measures no rotation and would call it NoPE; the exchange by hand reveals the error."""
    rotary = model.model.rotary_emb
    original = rotary.forward
    rotary.forward = lambda x, position_ids: original(x, torch.arange(x.shape[1])[None])
    with pytest.raises(ww.NotMeasurable, match="exchanging contents by hand"):
        ww.capture(model, prompt())


@pytest.mark.parametrize("off", [1.01, 0.5])
def test_wrong_scaling_is_caught(model: PreTrainedModel, off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Recorder.add
    monkeypatch.setattr(
        Recorder, "add", lambda self, *args, scaling, **rest: right(self, *args, scaling=scaling * off, **rest)
    )
    with pytest.raises(ww.NotMeasurable, match="attention rows"):
        ww.capture(model, prompt())


@pytest.mark.parametrize("missing", ["softcap", "sinks"])
def test_a_feature_that_was_missed_is_caught(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma2" if missing == "softcap" else "gpt_oss")
    attend = ALL_ATTENTION_FUNCTIONS[NAME]
    name = "softcap" if missing == "softcap" else "s_aux"
    monkeypatch.setitem(
        ALL_ATTENTION_FUNCTIONS._global_mapping, NAME, lambda *args, **rest: attend(*args, **rest | {name: None})
    )
    with pytest.raises(ww.NotMeasurable, match=r"attention rows|logits change"):
        ww.capture(model, prompt())


@pytest.mark.parametrize("weight", ["layers.2.self_attn.k_proj.weight", "layers.3.mlp.down_proj.weight", "norm.weight"])
def test_nan_weights_are_caught(model: PreTrainedModel, weight: str) -> None:
    with torch.no_grad():
        model.model.get_parameter(weight).fill_(math.nan)
    with pytest.raises(ww.NotMeasurable):
        ww.capture(model, prompt())


def test_nan_on_the_prompt_in_use_is_caught() -> None:
    """The self-check's own prompt may not contain the broken embedding."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[3] = math.nan
    ids = prompt()
    ids[0, 4] = 3
    with pytest.raises(ww.NotMeasurable, match="on this prompt"):
        ww.capture(model, ids)


def test_a_model_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when dtype or implementation change, and with check=True."""
    model, ids, runs = tiny_model("llama"), prompt(), []
    examine = check.examine
    monkeypatch.setattr(check, "examine", lambda *arguments: runs.append(1) or examine(*arguments))
    ww.capture(model, ids)
    ww.capture(model, ids[:, :12])
    assert len(runs) == 1
    ww.capture(model, ids, check=True)
    assert len(runs) == 2
    ww.capture(model.to(torch.bfloat16), ids)
    assert len(runs) == 3
    model.set_attn_implementation("eager")
    ww.capture(model, ids)
    assert len(runs) == 4
    ww.capture(tiny_model("llama"), ids)
    assert len(runs) == 5


def test_angles_that_depend_on_the_length_are_checked_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model, runs = tiny_model("llama", rope_parameters=dynamic, max_position_embeddings=32), []
    examine = check.examine
    monkeypatch.setattr(check, "examine", lambda *arguments: runs.append(1) or examine(*arguments))
    lengths = [25, 30, 40, 40, 60, 40, 25]  # angles change beyond 32; at 40 after 60 they are still those of 60
    ids = torch.randint(10, 128, (1, 60))
    for length in lengths:
        ww.capture(model, ids[:, :length])
    assert len(runs) == 3


def test_a_refusal_is_not_remembered_as_a_pass() -> None:
    model, ids = tiny_model("llama"), prompt()
    weight = model.model.layers[0].self_attn.k_proj.weight
    right = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(math.nan)
    for _ in range(2):
        with pytest.raises(ww.NotMeasurable):
            ww.capture(model, ids)
    with torch.no_grad():
        weight.copy_(right)
    assert certify(model, 25).deviation["swap"] < TOLERATED
