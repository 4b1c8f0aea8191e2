"""Plans of rotations: what is kept, what a plan does to a model, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.errors import BadInput
from wherewhat.studies.rotations.plan import BASELINES, baseline, most_needed

STORIES = "stories260K"


@pytest.fixture(scope="module")
def plan() -> ww.RotationPlan:
    return ww.rotations(weights(STORIES), keep=2, length=[32], samples=2, evaluate=True, draws=2)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=torch.arange(3, 40)[None]).logits


@pytest.mark.weights
def test_a_plan_that_keeps_everything_changes_nothing() -> None:
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    plain = logits(model)
    whole = ww.rotations(model, tokenizer=tokenizer, keep=4, length=[16], samples=1)
    assert not list(whole.frozen())
    with ww.gate(model, freeze=whole.frozen()):
        assert torch.equal(logits(model), plain)


@pytest.mark.weights
def test_a_plan_that_keeps_nothing_is_nope() -> None:
    """Against the same model with all angles of its rotary module set to zero."""
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    none = ww.rotations(model, tokenizer=tokenizer, keep=0, length=[16], samples=1)
    with ww.gate(model, freeze=none.frozen()):
        frozen = logits(model)
    model.model.rotary_emb.inv_freq.zero_()
    assert torch.allclose(frozen, logits(model), atol=1e-4)


@pytest.mark.weights
def test_the_plan_loses_less_than_a_random_one(plan: ww.RotationPlan) -> None:
    kl = plan.summary()["kl"]
    assert kl["none"] == 0
    assert 0 < kl["plan"] < min(kl["random"], kl["lowest"])


@pytest.mark.weights
def test_budgets_keep_the_same_number(plan: ww.RotationPlan) -> None:
    model = weights(STORIES)
    even = ww.rotations(model, keep=2, budget="head", length=[32], samples=2)
    assert (even.tensors["kept"].sum(-1) == 2).all()
    assert int(plan.tensors["kept"].sum()) == int(even.tensors["kept"].sum())
    dropped = [effects.masked_fill(kept, 0).sum() for effects, kept in
               ((one.tensors["effect"], one.tensors["kept"]) for one in (plan, even))]  # fmt: skip
    assert dropped[0] <= dropped[1]


@pytest.mark.weights
def test_a_saved_plan_loads_equal(plan: ww.RotationPlan, tmp_path: Path) -> None:
    plan.save(tmp_path)
    again = ww.RotationPlan.load(tmp_path)
    assert again.about == plan.about
    pd.testing.assert_frame_equal(again.planes, plan.planes)
    assert again.losses is not None
    pd.testing.assert_frame_equal(again.losses, plan.losses)
    assert all(torch.equal(again.tensors[name], value) for name, value in plan.tensors.items())
    assert list(again.frozen()) == list(plan.frozen())


@pytest.mark.weights
def test_the_command(run: Any, tmp_path: Path) -> None:
    options = ("--keep", 2, "--length", 32, "--samples", 1, "--evaluate", "--draws", 1)
    code, out, _ = run("rotations", weights(STORIES), *options, "-o", tmp_path, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["keep"] == 2
    assert {"plan", *BASELINES} <= told["kl"].keys()
    assert (tmp_path / "rotations.png").exists()
    code, out, _ = run("rotations", weights(STORIES), *options, "-o", tmp_path)
    assert code == 0
    assert "2 of 4 rotations per key head" in out


def test_criteria_keep_what_they_say() -> None:
    norm = torch.tensor([[[3.0, 1.0, 2.0, 4.0], [1.0, 2.0, torch.nan, torch.nan]]])
    kept = {name: baseline(name, norm, 2).tolist()[0] for name in BASELINES if name != "random"}
    yes, no = True, False
    assert kept["norm"] == [[yes, no, no, yes], [yes, yes, no, no]]
    assert kept["highest"] == [[yes, yes, no, no], [yes, yes, no, no]]
    assert kept["lowest"] == [[no, no, yes, yes], [yes, yes, no, no]]
    assert kept["uniform"] == [[yes, no, yes, no], [yes, yes, no, no]]
    assert baseline("random", norm, 2, seed=1).sum(-1).tolist() == [[2, 2]]
    assert most_needed(norm, 1, "model").tolist() == [[[yes, no, no, yes], [no] * 4]]


@pytest.mark.weights
def test_bad_input_is_refused_in_one_line(refuse: Any, tmp_path: Path) -> None:
    refuse("keep must be 0 to 4", "rotations", weights(STORIES), "--keep", 5, "-o", tmp_path)
    refuse("budget is model or head", "rotations", weights(STORIES), "--budget", "layer", "-o", tmp_path)
    refuse("reads no text", "rotations", "number", "-o", tmp_path)
    (tmp_path / "short.txt").write_text("Once upon a time.")
    refuse("the text is too short", "rotations", weights(STORIES), "--text", tmp_path / "short.txt", "-o", tmp_path)
    refuse("the model takes 512 tokens", "rotations", weights(STORIES), "--length", 4096, "-o", tmp_path)


def test_a_model_without_rotation_is_refused(stories260k: Any) -> None:
    with pytest.raises((BadInput, ww.NotMeasurable)):
        ww.rotations(tiny_model("bloom"), tokenizer=ww.load_tokenizer(weights(STORIES)), length=[16], samples=1)
