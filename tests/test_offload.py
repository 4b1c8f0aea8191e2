"""Models larger than the available memory: accelerate loads weights when their layer runs; results do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from transformers import PreTrainedModel

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.errors import BadInput
from wherewhat.prompts import Prompt
from wherewhat.studies.doctor.doctor import doctor
from wherewhat.tracing.fingerprint import model_hash, weights_hash
from wherewhat.tracing.offload import read_device_map
from wherewhat.tracing.self_check import certify

PROMPTS = [Prompt(tuple(range(3 + at, 43 + at)), ((2, 10), (10, 18), (18, 26)), answer=5) for at in range(2)]
MIXED = {"model.embed_tokens": "cpu", "lm_head": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"} | {
    f"model.layers.{layer}": "disk" if layer % 2 else "cpu" for layer in range(5)
}


def offloaded(way: str, folder: Path) -> PreTrainedModel:
    """stories260K with its weights offloaded in the given way."""
    path = weights("stories260K")
    if way == "cpu":
        return cpu_offload(ww.load(path), execution_device=torch.device("cpu"))
    if way == "disk":
        return disk_offload(ww.load(path), str(folder), execution_device=torch.device("cpu"))
    if way == "memory in part, disk in part":
        return ww.load(path, device_map=MIXED)
    return ww.load(path, device_map="auto:cpu=500KB")


def away(model: PreTrainedModel) -> int:
    return sum(value.device.type == "meta" for value in model.parameters())


@pytest.mark.parametrize("way", ["cpu", "disk", "memory in part, disk in part", "auto"])
def test_offloading_does_not_change_the_scores(way: str, stories260k: PreTrainedModel, tmp_path: Path) -> None:
    model = offloaded(way, tmp_path)
    before = away(model)
    assert before > 9
    assert weights_hash(model) == weights_hash(stories260k)
    assert model_hash(model) == model_hash(stories260k)
    plain, ours = ww.profile(stories260k, PROMPTS), ww.profile(model, PROMPTS)
    assert ours.heads.equals(plain.heads)
    assert ours.frequencies.equals(plain.frequencies)
    assert ours.about["self_check"] == plain.about["self_check"]
    assert doctor(model).as_dict() == doctor(stories260k).as_dict()
    with ww.gate(stories260k, drop=[(1, 2, None)]), ww.gate(model, drop=[(1, 2, None)]):
        ids = torch.tensor([PROMPTS[0].ids])
        assert torch.equal(model(ids).logits, stories260k(ids).logits)
    assert away(model) == before


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gptj", "falcon", "bloom", "gemma3_text", "qwen3", "hunyuan_v1_dense", "zamba2"])
def test_offloaded_families_score_the_same(family: str) -> None:
    ids, blocks = torch.arange(20, 44)[None], [(14, 17), (17, 20), (20, 23)]  # inside all windows
    plain = tiny_model(family)
    model = cpu_offload(tiny_model(family), execution_device=torch.device("cpu"))
    assert away(model) > 9
    level = "prompt" if certify(plain, 24).absolute else "keys"
    one, other = (ww.capture(which, ids, level=level) for which in (plain, model))
    assert one.check == other.check
    for layer in range(len(one.attention)):
        assert torch.equal(one.attention_rows(layer), other.attention_rows(layer))
    if level == "keys":
        assert torch.equal(ww.score(one, blocks).positional, ww.score(other, blocks).positional)


@pytest.mark.weights
def test_the_weights_of_only_one_module_are_in_memory_at_a_time(tmp_path: Path) -> None:
    model = disk_offload(ww.load(weights("stories260K")), str(tmp_path), execution_device=torch.device("cpu"))
    there: list[int] = []

    def look(*_: object) -> None:
        there.append(sum(value.nbytes for value in model.parameters() if value.device.type != "meta"))

    for module in model.modules():
        module.register_forward_pre_hook(look)
        module.register_forward_hook(look)
    ww.capture(model, torch.tensor([PROMPTS[0].ids]))
    assert max(there) == 0  # our hooks run outside the hook that loads the weights, so no weights were loaded


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_capture_holds_the_keys_and_one_query_per_head(stories260k: PreTrainedModel, kind: torch.dtype) -> None:
    model = ww.load(weights("stories260K"), dtype=kind)
    trace = ww.capture(model, torch.tensor([PROMPTS[0].ids]))
    held = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for layer in trace.attention
            for part in (layer.queries, layer.keys)}  # fmt: skip
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    each = config.num_key_value_heads * len(PROMPTS[0].ids) + config.num_attention_heads
    assert sum(held.values()) == config.num_hidden_layers * each * width * kind.itemsize


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_half_precision_reports_its_deviation(kind: str, stories260k: PreTrainedModel) -> None:
    """Equal with and without offloading, and within the deviation from float32 that the self-check suggests."""
    plain = ww.load(weights("stories260K"), dtype=kind)
    model = ww.load(weights("stories260K"), dtype=kind, device_map="auto:cpu=200KB")
    assert away(model) > 9
    one, other = (ww.profile(which, PROMPTS) for which in (plain, model))
    assert one.heads.equals(other.heads)
    assert one.about["self_check"] == other.about["self_check"]
    whole = ww.profile(stories260k, PROMPTS)
    assert max(whole.about["self_check"].values()) < 1e-4 < max(one.about["self_check"].values()) < 4e-2
    assert (one.heads["positional"] - whole.heads["positional"]).abs().median() < 0.02


@pytest.mark.slow
@pytest.mark.weights
def test_the_command_line(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """The output of every command is the same; a profile in half precision counts as different."""
    path, few = weights("stories260K"), ("--pairs", 8, "--samples", 2)
    commands = {
        "profile": few,
        "doctor": (),
        "ablate": ("--profile", tmp_path / "profile-plain", "--ablate", "1.2", "--draws", 2, *few),
        "dynamics": ("--prompts", 1, "--pairs", 8),
    }
    for command, options in commands.items():
        told = []
        for name, limit in {"plain": (), "limited": ("--device-map", "auto:cpu=500KB")}.items():
            place = () if command == "doctor" else ("-o", tmp_path / f"{command}-{name}")
            code, out, err = run(command, path, *place, *options, *limit, "--json")
            assert (code, err) == (0, ""), (command, err)
            told.append(out.replace(f"{command}-{name}", "FOLDER"))
        assert told[0] == told[1], command


def test_invalid_limits_are_refused() -> None:
    assert read_device_map("auto:0=20GiB,cpu=1.5GB")["max_memory"] == {0: "20GiB", "cpu": "1.5GB"}
    assert read_device_map("sequential") == {"device_map": "sequential"}
    for wrong in ("auto:cpu", "auto:cpu=lots", "auto:cpu=1GB,"):
        with pytest.raises(BadInput, match="limits are written as"):
            read_device_map(wrong)
    with torch.device("meta"):
        nowhere = tiny_model("llama")
    with pytest.raises(BadInput, match="meta device: load them first"):
        ww.capture(nowhere, torch.arange(3, 20)[None])
