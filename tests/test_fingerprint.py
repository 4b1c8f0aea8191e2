"""The hash of a model changes with its weights, and with nothing else; the fast list of modules is torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tiny import tiny_model
from wherewhat.tracing.fingerprint import weights_hash
from wherewhat.tracing.modules import modules_of


@pytest.mark.parametrize("threads", [1, 3])
def test_tied_weights_are_hashed_like_equal_ones(threads):
    tied = tiny_model("llama", tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    apart = tiny_model("llama", tie_word_embeddings=False)
    apart.load_state_dict(tied.state_dict())
    assert apart.lm_head.weight.data_ptr() != apart.model.embed_tokens.weight.data_ptr()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        expected = weights_hash(tied)
        assert weights_hash(apart) == expected
        with torch.no_grad():
            apart.lm_head.weight[3, 5] += 1e-3
        assert weights_hash(apart) != expected
    finally:
        torch.set_num_threads(before)


def test_parts_of_one_tensor_are_different_weights():
    """They share their memory, but not its beginning or its order."""
    whole = torch.arange(16.0).reshape(4, 4)
    hashes = set()
    for part in (whole[:2], whole[2:], whole[:, :2], whole.T[:2], whole[:2].clone() + 1):
        model = nn.Module()
        model.register_buffer("part", part)
        hashes.add(weights_hash(model))
    assert len(hashes) == 5


def test_modules_are_those_of_torch_in_the_same_order():
    shared = nn.Linear(2, 2)
    nested = nn.ModuleDict({"a": nn.Sequential(nn.ReLU(), shared), "b": shared, "c": nn.ModuleList([nn.Tanh()])})
    nested.register_module("none", None)
    for model in (nested, tiny_model("gemma3"), tiny_model("bamba")):
        assert modules_of(model) == list(model.modules())
