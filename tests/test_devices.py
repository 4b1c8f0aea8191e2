"""Nothing mixes devices: a pretended accelerator gives the numbers of the CPU, and refuses tensors of both at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import wherewhat as ww
from conftest import mostly_slow
from fake_device import DEVICE, Mixed, OnDevice, fake_device, move
from tiny import tiny_model


def prompt() -> Tensor:
    return torch.randint(10, 128, (1, 25), generator=torch.Generator().manual_seed(1))


def here(tensor: Tensor) -> Tensor:
    return tensor.raw if isinstance(tensor, OnDevice) else tensor


def test_the_pretended_device_refuses_tensors_of_the_cpu() -> None:
    with fake_device():
        there = torch.arange(3, device=DEVICE)
        assert isinstance(there + 1, OnDevice)
        assert torch.tensor([1, 2], device=DEVICE).device == DEVICE
        assert (there.cpu() + torch.ones(3)).tolist() == [1, 2, 3]
        assert int(there.sum()) == 3
        with pytest.raises(Mixed):
            there + torch.ones(3)
    with fake_device(without_float64=True), pytest.raises(TypeError, match="has no torch"):
        there.double()


@pytest.mark.parametrize("model_type", mostly_slow(["llama", "gemma2", "gptj", "hunyuan_v1_dense"], "llama"))
def test_scores_on_a_device_are_those_of_the_cpu(model_type: str) -> None:
    ids = prompt()
    expected = ww.capture(tiny_model(model_type), ids)
    model = move(tiny_model(model_type))
    with fake_device():
        trace = ww.capture(model, OnDevice(ids))
        found = ww.score(trace), ww.score_frequencies(trace), ww.exclusion(trace), ww.entropy(trace)
    assert trace.attention[0].keys.device == DEVICE
    wanted = ww.score(expected), ww.score_frequencies(expected), ww.exclusion(expected), ww.entropy(expected)
    for one, other in zip(found[:2], wanted[:2], strict=True):
        torch.testing.assert_close(here(one.positional), other.positional, atol=1e-5, rtol=0)
        torch.testing.assert_close(here(one.symbolic), other.symbolic, atol=1e-5, rtol=0)
    torch.testing.assert_close(here(found[2].bound), wanted[2].bound, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(here(found[3]), wanted[3], atol=1e-5, rtol=0)


def test_a_gate_on_a_device_is_the_gate_of_the_cpu() -> None:
    ids, chosen = prompt(), {"drop": [(0, 1, 2)], "freeze": [(1, None, "slowest half")], "ablate": [(2, 0)]}
    model = tiny_model("llama")
    with torch.no_grad(), ww.gate(model, **chosen):
        expected = model(input_ids=ids).logits
    there = move(tiny_model("llama"))
    with fake_device(), ww.gate(there, **chosen):
        found = there(input_ids=OnDevice(ids)).logits
    torch.testing.assert_close(here(found), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("level", ["keys", pytest.param("prompt", marks=pytest.mark.slow)])
def test_a_profile_on_a_device_is_that_of_the_cpu(level: str, tmp_path: Path) -> None:
    ids = prompt()[0].tolist()
    given = [ww.Prompt(tuple(ids), ((3, 6), (6, 9), (12, 15), (15, 18)), answer=ids[13], target=2)]
    expected = ww.profile(tiny_model("llama"), given, level=level)
    model = move(tiny_model("llama"))
    with fake_device():
        found = ww.profile(model, given, level=level, folder=tmp_path)
    assert ww.Profile.load(tmp_path).heads.equals(found.heads)
    for name in ("heads", "frequencies"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    assert found.about["settings"] == expected.about["settings"]  # the fingerprint of the weights among them


@pytest.mark.parametrize("model_type", mostly_slow(["llama", "gemma2", "gptj", "hunyuan_v1_dense"], "llama"))
def test_a_device_without_float64_gives_the_same_scores(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apple's: captured tensors are kept on the CPU, where sums are in float64."""
    monkeypatch.setattr("wherewhat.tracing.offload.WITHOUT_FLOAT64", {DEVICE.type})
    expected = ww.capture(tiny_model(model_type), prompt())
    model = move(tiny_model(model_type))
    with fake_device(without_float64=True):
        trace = ww.capture(model, OnDevice(prompt()))
        with ww.gate(model, freeze=[(1, None, "slowest half")]):
            ww.capture(model, OnDevice(prompt()))
    assert trace.attention[0].keys.device.type == "cpu"
    for measure in (ww.score, ww.score_frequencies):
        one, other = measure(trace), measure(expected)
        torch.testing.assert_close(one.positional, other.positional, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.symbolic, other.symbolic, atol=1e-5, rtol=0)
    torch.testing.assert_close(ww.exclusion(trace).bound, ww.exclusion(expected).bound, atol=1e-4, rtol=1e-3)


FACTORIES = {
    getattr(torch, name)
    for name in "zeros ones empty full arange tensor linspace rand randn randint eye as_tensor logspace".split()
}


class Strict(TorchFunctionMode):
    """Tensors made by the code under test must state their device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in FACTORIES and "device" not in (kwargs or {}):
            caller = Path(sys._getframe(1).f_code.co_filename)
            if {"core", "tracing"} & set(caller.parts) and "wherewhat" in caller.parts:
                raise AssertionError(f"{caller.name}:{sys._getframe(1).f_lineno}: {func.__name__} without a device")
        return func(*args, **kwargs or {})


def test_every_new_tensor_states_its_device() -> None:
    model, ids = tiny_model("llama"), prompt()
    with Strict():
        trace = ww.capture(model, ids)
        for measure in (ww.score, ww.score_frequencies, ww.exclusion, ww.entropy, ww.frequency_use):
            measure(trace)
        ww.singular_values(ww.capture(model, ids, queries=range(1, 25)))
        with ww.gate(model, drop=[(0, 1, 2)], freeze=[(1, None, "slowest half")], ablate=[(2, 0)]):
            model(input_ids=ids)
