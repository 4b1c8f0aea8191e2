"""Two profiles are compared head by head, with intervals, or side by side where their heads do not match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import wherewhat as ww
from conftest import weights
from wherewhat.prompts import binding
from wherewhat.studies.profile.compare import compare
from wherewhat.studies.profile.profile import profile
from wherewhat.tracing import load_tokenizer


def made(model, name: str, **options):
    return profile(model, binding(load_tokenizer(weights(name)), pairs=6, samples=4, **options), settings=options)


@pytest.fixture(scope="module")
def color(stories260k):
    return made(stories260k, "stories260K")


@pytest.fixture(scope="module")
def city(stories260k):
    return made(stories260k, "stories260K", kind="city")


def shifted(one, axis: str, layer: int, head: int, by: list[float]):
    """The same profile with one head's scores moved by known amounts, a prompt each."""
    tensors = {name: value.clone() for name, value in one.tensors.items()}
    tensors[axis][:, layer, head] += torch.tensor(by)
    heads = one.heads.copy()
    heads.loc[(heads["layer"] == layer) & (heads["head"] == head), axis] += float(np.mean(by))
    return replace(one, heads=heads, tensors=tensors)


def test_a_profile_is_like_itself(color):
    found = compare(color, color)
    assert found.about["changed_kind"] == 0
    assert found.about["same_prompts"]
    assert found.about["warnings"] == []
    assert (found.heads["moved"] == 0).all()
    for axis, agreement in found.about["agreement"].items():
        assert agreement["r"] == pytest.approx(1)
        assert agreement["clear"] == 0
        assert (found.heads[f"{axis}_low"] == 0).all()


def test_one_head_that_moved_is_found_with_the_interval_of_its_differences(color):
    found = compare(color, shifted(color, "symbolic", 2, 3, by=[-0.1, -0.2, -0.3, -0.4]))
    first, second = found.heads.iloc[0], found.heads.iloc[1]
    assert (first["layer"], first["head"]) == (2, 3)
    assert first["moved"] == pytest.approx(0.25)
    assert second["moved"] == 0
    assert first["symbolic_difference"] == pytest.approx(-0.25)
    draws = np.random.default_rng(1).choice([-0.1, -0.2, -0.3, -0.4], size=(100_000, 4)).mean(1)
    assert first["symbolic_low"] == pytest.approx(np.quantile(draws, 0.025), abs=0.02)
    assert first["symbolic_high"] == pytest.approx(np.quantile(draws, 0.975), abs=0.02)
    assert found.about["agreement"]["symbolic"]["clear"] == 1
    assert found.about["agreement"]["positional"]["clear"] == 0


def test_other_prompts_are_resampled_on_their_own_and_said(color, city):
    found = compare(color, city)
    assert not found.about["same_prompts"]
    assert found.about["warnings"] == ["kind differs: None and city"]
    rows = found.heads.set_index(["layer", "head"])
    for _, head in color.heads.iterrows():
        row = rows.loc[(head["layer"], head["head"])]
        assert row["positional_a"] == head["positional"]
        assert row["kind_a"] == head["kind"]
        assert row["positional_low"] <= row["positional_difference"] + 1e-6
        assert row["positional_high"] >= row["positional_difference"] - 1e-6
    changed = (found.heads["kind_a"] != found.heads["kind_b"]).sum()
    assert found.about["changed_kind"] == changed


def test_models_of_other_shapes_are_only_summed_up(color, stories15m):
    found = compare(color, made(stories15m, "stories15M"))
    assert found.heads is None
    assert found.about["not_matched"] == "40 heads in 5 layers and 36 heads in 6 layers: heads cannot be matched"
    assert [one["heads"] for one in found.about["profiles"]] == [40, 36]
    assert ww.compare is compare
