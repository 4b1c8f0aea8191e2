"""Models inside the wrappers of other packages: scores and gates are those of the bare model."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import Tensor, distributed

import wherewhat as ww
from tiny import tiny_model
from wherewhat.tracing.fingerprint import model_hash

IDS = torch.randint(3, 100, (1, 25), generator=torch.Generator().manual_seed(0))


def scores(model: object) -> Tensor:
    found = ww.score(ww.capture(model, IDS))
    return torch.stack([found.positional, found.symbolic])


def logits(model: object) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def adapted(**options: object) -> object:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(
            tiny_model("llama"),
            LoraConfig(r=4, target_modules=["q_proj", "k_proj"], init_lora_weights=False, lora_dropout=0.3, **options),
        )


def test_adapters_are_in_force_until_they_are_disabled_and_equal_their_merged_weights():
    bare, model = tiny_model("llama"), adapted()
    with_adapters = scores(model)
    assert (with_adapters - scores(bare)).abs().max() > 0.1
    with model.disable_adapter():
        assert torch.equal(scores(model), scores(bare))
    torch.testing.assert_close(scores(model.merge_and_unload()), with_adapters, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_profile_of_the_same_model_without_its_adapters_is_another_profile(tmp_path):
    model = adapted()
    prompts = [ww.Prompt(tuple(IDS[0].tolist()), tuple((at, at + 2) for at in range(4, 24, 2)))]
    first = ww.profile(model, prompts, folder=tmp_path)
    with model.disable_adapter():
        without = ww.profile(model, prompts)
        with pytest.raises(ww.BadInput, match="holds the profile of another model"):
            ww.profile(model, prompts, folder=tmp_path)
    assert without.heads["symbolic"].equals(ww.profile(tiny_model("llama"), prompts).heads["symbolic"])
    assert not first.heads["symbolic"].equals(without.heads["symbolic"])
    assert ww.profile(model, prompts, folder=tmp_path).heads.equals(first.heads)


def test_the_hash_of_a_model_covers_which_adapters_act_and_how_strongly():
    model = adapted()
    bare, hashes = tiny_model("llama"), set()
    base = model.get_base_model()
    hashes.add(model_hash(base))
    with model.disable_adapter():
        hashes.add(model_hash(base))
    base.model.layers[0].self_attn.q_proj.scaling["default"] *= 2
    hashes |= {model_hash(base), model_hash(bare)}
    assert len(hashes) == 4


def test_learned_prompts_are_refused():
    model = get_peft_model(tiny_model("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(ww.NotMeasurable, match="prompt_tuning puts learned keys in front of the prompt"):
        ww.capture(model, IDS)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_measured_and_gated(in_place):
    model = bare = tiny_model("llama")
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(bare, backend="eager")
    before = logits(model)  # makes the graph, which knows of no hooks
    assert torch.equal(scores(model), scores(tiny_model("llama")))
    with ww.gate(model, ablate=[(1, None)]):
        gated = logits(model)
    fresh = tiny_model("llama")
    with ww.gate(fresh, ablate=[(1, None)]):
        assert torch.equal(gated, logits(fresh))
    assert torch.equal(logits(model), before)


def test_mixed_precision_is_measured_in_the_precision_of_the_weights():
    AcceleratorState._reset_state(True)  # another test may have set it
    try:
        model = Accelerator(cpu=True, mixed_precision="bf16").prepare(tiny_model("llama"))
        forward = model.forward
        assert torch.equal(scores(model), scores(tiny_model("llama")))
        assert model.forward is forward
        with ww.gate(model, ablate=[(1, None)]):
            assert (logits(model) - logits(tiny_model("llama"))).abs().max() > 0.1
    finally:
        AcceleratorState._reset_state(True)
    expected = scores(tiny_model("llama"))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(scores(tiny_model("llama")), expected)


@pytest.mark.slow
def test_a_distributed_model_is_the_model_inside():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(adapted())
        assert torch.equal(scores(model), scores(adapted()))
    finally:
        distributed.destroy_process_group()
