"""Profiles at level prompt, and of models that differ in their configuration only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.errors import BadInput, NotMeasurable
from wherewhat.prompts import Prompt
from wherewhat.studies.profile.result import Profile


def test_level_prompt_profiles_a_model_that_adds_positions(tmp_path: Path) -> None:
    """GPT-2 has no scores at level keys; at level prompt its table holds what score_prompt gives."""
    from wherewhat.studies.profile.prompt_level import score_prompt

    model = tiny_model("gpt2")
    prompts = [Prompt(tuple(range(3 + at, 23 + at)), ((2, 6), (6, 10), (10, 14)), answer=5) for at in range(2)]
    with pytest.raises(NotMeasurable, match="level"):
        ww.profile(model, prompts)
    made = ww.profile(model, prompts, level="prompt", folder=tmp_path, seed=4)
    each = [score_prompt(model, torch.tensor([prompt.ids]), prompt.blocks) for prompt in prompts]
    for axis in ("positional", "symbolic"):
        expected = torch.stack([getattr(one, axis) for one in each]).mean(0).flatten()
        assert torch.allclose(torch.tensor(made.heads[axis].to_numpy()).float(), expected, atol=1e-6)
    assert made.frequencies.empty
    assert made.heads["exclusion_bound"].isna().all()
    assert made.about["swaps"] == {"run": 6, "of": 6, "unseen_weight": 0.0}
    assert Profile.load(tmp_path).about["level"] == "prompt"


def test_level_prompt_agrees_with_level_keys_at_the_first_layer(stories260k: Any) -> None:
    prompts = [Prompt(tuple(range(40, 70)), tuple((at, at + 4) for at in range(2, 26, 4)))]
    keys, whole = (ww.profile(stories260k, prompts, level=level) for level in ("keys", "prompt"))
    first = keys.heads["layer"] == 0
    for axis in ("positional", "symbolic"):
        assert np.allclose(keys.heads.loc[first, axis], whole.heads.loc[first, axis], atol=1e-4)
    assert not np.allclose(keys.heads["positional"], whole.heads["positional"], rtol=0, atol=1e-4)


def test_a_single_prompt_has_the_interval_of_its_sample(stories260k: Any) -> None:
    prompts = [Prompt(tuple(range(40, 80)), tuple((at, at + 3) for at in range(2, 38, 3)))]
    made = ww.profile(stories260k, prompts, level="prompt", swaps=12, tau=0.1).heads
    assert (made["positional_low"] <= made["positional"]).all()
    assert (made["positional_low"] < made["positional_high"]).any()


def test_swaps_belong_to_level_prompt(stories260k: Any) -> None:
    prompts = [Prompt(tuple(range(40, 60)), ((2, 6), (6, 10)))]
    with pytest.raises(BadInput, match="belongs to level prompt"):
        ww.profile(stories260k, prompts, swaps=5)
    with pytest.raises(BadInput, match="at least 1"):
        ww.profile(stories260k, prompts, level="prompt", swaps=0)
    with pytest.raises(BadInput, match="level is keys or prompt"):
        ww.profile(stories260k, prompts, level="tokens")


@pytest.mark.slow
def test_another_configuration_is_another_model(tmp_path: Path) -> None:
    """The same weights with another base have other scores: neither profile nor cells are taken over."""
    prompts = [Prompt(tuple(range(40, 70)), tuple((at, at + 4) for at in range(2, 26, 4)))]
    first = ww.profile(ww.load(weights("stories260K")), prompts, folder=tmp_path)
    changed = LlamaForCausalLM.from_pretrained(
        weights("stories260K"), rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    ).eval()
    with pytest.raises(BadInput, match="another model"):
        ww.profile(changed, prompts, folder=tmp_path)
    second = ww.profile(changed, prompts, folder=tmp_path, overwrite=True)
    assert np.allclose(second.heads["positional"], ww.profile(changed, prompts).heads["positional"])
    assert not np.allclose(second.heads["positional"], first.heads["positional"], atol=1e-2)
