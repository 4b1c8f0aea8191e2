"""Nothing mixes devices: a pretended accelerator gives the numbers of the CPU, and refuses tensors of both at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import wherewhat as ww
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


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gptj", "hunyuan_v1_dense"])
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
