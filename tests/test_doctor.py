"""The doctor finds what was tampered with, in models that really run, and alarms at nothing else."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral

from conftest import mostly_slow, weights
from tiny import tiny_model
from wherewhat import cli
from wherewhat.errors import NotMeasurable
from wherewhat.studies.doctor.doctor import NOT_STATED, Diagnosis, doctor
from wherewhat.studies.doctor.terminal import show_diagnosis
from wherewhat.tracing.declared import gguf_settings

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 32, "factor": 16.0, "rope_theta": 1e4,
}  # fmt: skip
PHI3_LONG = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32, "sliding_window": None}

# Every way in which families differ: layouts, spans, windows, chunks, NoPE layers, bases a kind of layer, scaling,
# soft-capping, sinks, latent attention, shared keys, norms after the turn, no rotation at all.
FAMILIES = """afmoe apertus bailing_hybrid bamba beam bloom codegen cohere2 cohere_compass_text dbrx deepseek_v2
deepseek_v3 diffllama ernie4_5 exaone4 falcon falcon_h1 flint gemma2 gemma3n_text gemma4_text glm glm4_moe_lite gpt2
gpt_neo gpt_neox gpt_oss gptj granite granite_swa granitemoehybrid hunyuan_v1_dense jamba kimi_linear laguna llama4
mimo_v2_flash minimax ministral3 mistral mllama modernbert-decoder mpt nanochat nemotron_h olmo3 phi qwen2 qwen3_next
recurrent_gemma smollm3 stablelm zamba2""".split()


def wrong(diagnosis: Diagnosis) -> dict[str, tuple[int, ...]]:
    """What the doctor alarms at, and in which layers."""
    return {finding.subject: finding.layers for finding in diagnosis.wrong}


def geometric(base: float, dims: int = 16) -> Tensor:
    return torch.tensor([base ** (-at / dims) for at in range(0, dims, 2)])


@pytest.mark.parametrize("family", mostly_slow(FAMILIES, "codegen", "cohere2", "deepseek_v2", "bloom"))
def test_no_false_alarm(family: str) -> None:
    diagnosis = doctor(tiny_model(family))
    assert diagnosis.healthy, diagnosis.verdict
    assert "healthy" in diagnosis.verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"rope_parameters": YARN}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}),
        ("phi3", PHI3_LONG),
        ("deepseek_v3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
        ("gpt_neox", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}),
    ],
)
def test_no_false_alarm_where_angles_are_scaled(family: str, options: dict[str, Any]) -> None:
    diagnosis = doctor(tiny_model(family, **options))
    assert diagnosis.healthy, diagnosis.verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_false_alarm_in_half_precision(dtype: torch.dtype) -> None:
    diagnosis = doctor(tiny_model("llama", rope_parameters=YARN).to(dtype))
    assert diagnosis.healthy, diagnosis.verdict


def test_real_models_are_healthy_and_their_base_is_estimated(stories15m: PreTrainedModel) -> None:
    diagnosis = doctor(stories15m)
    angles = next(finding for finding in diagnosis.findings if finding.subject == "angles")
    assert diagnosis.healthy
    assert (angles.layers, angles.declared) == ((0, 1, 2, 3, 4, 5), "base 10,000")
    assert angles.measured == "1 … 0.000147, base 10,000"
    assert angles.deviation is not None
    assert angles.deviation < 1e-6
    # 14 of 24: those with 256 * 10000 ** (-k / 24) < 2 pi
    assert diagnosis.about["reach"][0].endswith("over the 256 tokens of the context; 14 planes never complete one")


@pytest.mark.parametrize("settings", [YARN, LLAMA3, {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}])
def test_scaling_that_is_stated_but_not_applied(settings: dict[str, Any]) -> None:
    model = tiny_model("llama", rope_parameters=settings)
    model.model.rotary_emb.inv_freq = geometric(1e4)
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"angles": (0, 1, 2, 3)}
    original = settings.get("original_max_position_embeddings", 512)
    assert f"the angles are unscaled: beyond {original} tokens" in diagnosis.verdict


def test_scaling_that_is_applied_but_not_stated() -> None:
    model = tiny_model("llama")
    model.model.rotary_emb.inv_freq = geometric(1e4) / 4
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"angles": (0, 1, 2, 3)}
    assert "4 times slower" in diagnosis.verdict


def test_scaling_that_fails_only_on_long_prompts() -> None:
    model = tiny_model("phi3", **PHI3_LONG)
    model.model.rotary_emb.long_inv_freq = model.model.rotary_emb.original_inv_freq.clone()
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"angles at 512 tokens": (0, 1, 2, 3)}


def test_a_wrong_base(stories15m: PreTrainedModel) -> None:
    model = copy.deepcopy(stories15m)
    model.config.rope_parameters["rope_theta"] = 500_000.0  # what the loader should have used
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"angles": (0, 1, 2, 3, 4, 5)}
    assert "angles follow base 10,000, not 500,000" in diagnosis.verdict


def test_a_rotation_the_other_way_round() -> None:
    model = tiny_model("llama")
    model.model.rotary_emb.inv_freq *= -1
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"angles": (0, 1, 2, 3)}
    assert "opposite direction" in diagnosis.verdict


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation of GPT-J from the tables of Llama, which hold every angle twice."""
    cos, sin = (table[..., : table.shape[-1] // 2].repeat_interleave(2, dim=-1).unsqueeze(1) for table in (cos, sin))
    swapped = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cos + swapped * sin


def test_a_wrong_layout_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: object) -> tuple[Tensor, Tensor]:
        return interleaved(q, cos, sin), interleaved(k, cos, sin)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply)
    diagnosis = doctor(tiny_model("llama"))
    assert wrong(diagnosis) == {"layout": (0, 1, 2, 3)}


def test_weights_laid_out_for_the_other_pairs_cannot_be_seen() -> None:
    """The limit that the documentation of the doctor states: the rotation itself is as declared."""
    model = tiny_model("llama")
    order = torch.arange(16).view(8, 2).T.flatten()
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.copy_(projection.weight.unflatten(0, (-1, 16))[:, order].flatten(0, 1))
    assert doctor(model).healthy


def test_a_partial_rotary_factor_that_is_ignored() -> None:
    model = tiny_model("llama")
    model.config.rope_parameters["partial_rotary_factor"] = 0.5
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"rotary dimensions": (0, 1, 2, 3)}
    assert "16 dimensions are rotated, but the configuration declares 8 of 16" in diagnosis.verdict


def tables_changed(model: PreTrainedModel, layer: int, change: Callable[[Tensor, Tensor], Any]) -> None:
    """Another (cos, sin) for one layer only."""

    def enter(_: object, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"position_embeddings": change(*kwargs["position_embeddings"])}

    model.model.layers[layer].self_attn.register_forward_pre_hook(enter, with_kwargs=True)


def test_one_layer_that_silently_does_not_turn() -> None:
    model = tiny_model("llama")
    tables_changed(model, 2, lambda cos, sin: (torch.ones_like(cos), torch.zeros_like(sin)))
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"rotary dimensions": (2,)}
    assert "layer 2: keys are not rotated" in diagnosis.verdict


def test_queries_that_are_left_unturned(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, *rest, **more: (q, turn(q, *rest, **more)[1]))
    assert wrong(doctor(tiny_model("llama"))) == {"query rotation": (0, 1, 2, 3)}


def test_a_window_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_mistral, "create_sliding_window_causal_mask", modeling_mistral.create_causal_mask)
    diagnosis = doctor(tiny_model("mistral"))
    assert wrong(diagnosis) == {"window": (0, 1, 2, 3)}
    assert "window (10 tokens) is ignored" in diagnosis.verdict


def test_a_window_longer_than_the_self_check_and_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("mistral", sliding_window=300)
    diagnosis = doctor(model)
    assert diagnosis.healthy
    assert ("window", "300 tokens") in [(finding.subject, finding.measured) for finding in diagnosis.findings]
    make = modeling_mistral.create_sliding_window_causal_mask

    def shorter(config: Any, **rest: Any) -> Any:
        changed = copy.copy(config)
        changed.sliding_window = 299
        return make(config=changed, **rest)

    monkeypatch.setattr(modeling_mistral, "create_sliding_window_causal_mask", shorter)
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"window": (0, 1, 2, 3)}
    assert "sees 299 tokens, but the configuration declares 300 tokens" in diagnosis.verdict


def test_attention_scaling_that_is_not_applied() -> None:
    model = tiny_model("llama", rope_parameters=YARN)
    model.model.rotary_emb.attention_scaling = 1.0
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"attention scaling": (0, 1, 2, 3)}
    assert "multiplied by 1, but the declared attention scaling is 1.139" in diagnosis.verdict  # 1 + 0.1 ln 4


@pytest.mark.parametrize("settings", [None, DYNAMIC, LLAMA3, {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}])
def test_attention_scaling_that_no_setting_asks_for(settings: dict[str, Any] | None) -> None:
    model = tiny_model("llama", **({"rope_parameters": settings} if settings else {}))
    model.model.rotary_emb.register_forward_hook(lambda *call: tuple(2 * table for table in call[2]))
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"attention scaling": (0, 1, 2, 3)}
    assert "multiplied by 2, but the declared attention scaling is 1: logits are 4 times as large" in diagnosis.verdict


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_a_softmax_scale_that_no_setting_asks_for(family: str) -> None:
    model = tiny_model(family, head_dim=32)
    assert doctor(model).healthy
    model.model.layers[1].self_attn.scaling *= 3
    diagnosis = doctor(model)
    assert wrong(diagnosis) == {"softmax scale": (1,)}
    assert "logits are 3 times as large" in diagnosis.verdict


def test_what_was_not_compared_is_named_and_is_no_markup() -> None:
    model = tiny_model("llama")
    assert "not stated" not in doctor(model).verdict
    model.config.rope_parameters["rope_type"] = "[red]spiral"
    diagnosis = doctor(model)
    skipped = {found.subject for found in diagnosis.findings if found.verdict == NOT_STATED}
    assert skipped == {"rotary dimensions", "angles", "attention scaling"}
    assert diagnosis.healthy
    named = "angles (layers 0-3: base 10,000, unknown type [red]spiral)"
    assert named in diagnosis.verdict
    screen = Console(file=io.StringIO(), width=1000)
    show_diagnosis(replace(diagnosis, about=diagnosis.about | {"model": "[bold]name"}), screen)
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert shown.startswith("[bold]name: llama")
    assert named in shown
    assert shown.count("[red]spiral") == 2  # in the table and in the verdict


def test_factors_and_caps_of_logits_that_are_not_applied() -> None:
    granite, gemma = tiny_model("granite"), tiny_model("gemma2")
    granite.model.layers[1].self_attn.scaling = 0.5
    assert wrong(doctor(granite)) == {"softmax scale": (1,)}
    gemma.model.layers[3].self_attn.attn_logit_softcapping = None
    assert wrong(doctor(gemma)) == {"soft-capping": (3,)}


@pytest.mark.parametrize(("family", "subject"), [("gemma3_text", "soft-capping"), ("moshi", "window")])
def test_settings_that_a_family_itself_never_applies_are_found(family: str, subject: str) -> None:
    """transformers' own code passes over these settings when they are given."""
    assert set(wrong(doctor(tiny_model(family)))) == {subject}


def test_settings_as_written_go_before_what_the_loader_made_of_them() -> None:
    model = tiny_model("llama")
    assert doctor(model, stated={"rope_theta": 10_000.0}).healthy
    scaled = doctor(model, stated={"rope_theta": 10_000.0, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert set(wrong(scaled)) == {"angles"}
    assert not doctor(model, stated={"rope_theta": 1e6}).healthy


def write_gguf(path: Path, factors: np.ndarray | None = None, yarn: float | None = None) -> dict[str, Any]:
    """A GGUF file with nothing but what it says of rotary positions; what the doctor reads from it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_rope_freq_base(10_000.0)
    if yarn is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(yarn)
        writer.add_rope_scaling_orig_ctx_len(128)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf_settings(str(path))


def test_scaling_that_a_gguf_file_states_is_held_against_the_model(tmp_path: Path) -> None:
    """transformers passes over it when it loads the file."""
    model = tiny_model("llama")
    assert doctor(model, stated=write_gguf(tmp_path / "plain.gguf")).healthy
    stated = write_gguf(tmp_path / "yarn.gguf", yarn=4.0)
    diagnosis = doctor(model, stated=stated)
    assert set(wrong(diagnosis)) == {"angles", "attention scaling"}
    assert "declares base 10,000, yarn factor 4, but the angles are unscaled: beyond 128 tokens" in diagnosis.verdict
    assert doctor(tiny_model("llama", rope_parameters=YARN), stated=stated).healthy


def test_factors_of_planes_that_a_gguf_file_holds_are_held_against_the_model(tmp_path: Path) -> None:
    """So do files of Llama 3 state their scaling."""
    model, angles = tiny_model("llama"), tiny_model("llama", rope_parameters=LLAMA3).model.rotary_emb.inv_freq
    stated = write_gguf(tmp_path / "llama3.gguf", factors=(geometric(1e4) / angles).numpy())
    assert set(wrong(doctor(model, stated=stated))) == {"angles"}
    model.model.rotary_emb.inv_freq = angles
    assert doctor(model, stated=stated).healthy


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["wherewhat", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    healthy = str(weights("stories260K"))
    assert run(["doctor", healthy], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "base 10,000" in said
    assert "Healthy" in said

    model = tiny_model("gptj")
    model.config.rope_scaling = {"type": "linear", "factor": 4.0}  # a setting that GPT-J's code knows nothing of
    model.save_pretrained(tmp_path / "gptj")
    assert run(["doctor", str(tmp_path / "gptj"), "--json"], monkeypatch) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert "the angles are unscaled" in told["verdict"]

    assert run(["doctor", str(tmp_path / "nothing")], monkeypatch) == 2
    assert run(["doctor", healthy, "--dtype", "int3"], monkeypatch) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.startswith("wherewhat: ") for line in lines] == [True, True]


@pytest.mark.parametrize("family", ["mamba", "rwkv"])
def test_models_without_attention_are_refused(family: str) -> None:
    with pytest.raises(NotMeasurable):
        doctor(tiny_model(family))
