"""Plans of rotations: what is kept, what a plan does to a model, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jaxtyping
import pandas as pd
import pytest
import torch
from transformers.models.llama import modeling_llama

import wherewhat as ww
from conftest import weights
from synthetic import random_plan, random_profile
from tiny import tiny_model
from wherewhat.core.rotation_effect import rotation_effect
from wherewhat.errors import BadInput
from wherewhat.explorer.page import explorer_html
from wherewhat.prompts.documents import packaged_documents
from wherewhat.studies.rotations.calibrate import Calibration, calibrate, queries_of
from wherewhat.studies.rotations.evaluate import Material, measure_plans
from wherewhat.studies.rotations.plan import (
    BASELINES,
    CONTROLS,
    baseline,
    frozen,
    most_needed,
    needed_by_effect,
    shuffled,
)
from wherewhat.studies.rotations.rotations import by_criterion

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
    with ww.gate(model, whole):
        assert torch.equal(logits(model), plain)


@pytest.mark.weights
def test_a_plan_that_keeps_nothing_is_nope() -> None:
    """Against the same model with all angles of its rotary module set to zero."""
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    none = ww.rotations(model, tokenizer=tokenizer, keep=0, length=[16], samples=1)
    with ww.gate(model, none):
        frozen = logits(model)
    model.model.rotary_emb.inv_freq.zero_()
    assert torch.allclose(frozen, logits(model), atol=1e-4)


def test_plans_of_a_model_with_layers_without_rotation() -> None:
    """Nothing is kept: the same as with all angles of its rotary module set to zero."""
    model = tiny_model("smollm3")  # layer 3 is not rotary
    found = calibrate(model, [tuple(range(3, 40))], None)
    assert found.layers[3] == 3
    assert found.effect[3].isnan().all()
    assert not found.effect[:3].isnan().any()
    none = most_needed(found.effect, 0, "model")
    dropped = list(frozen(none, found.present, found.layers, found.groups))
    assert {layer for layer, _, _ in dropped} == {0, 1, 2}
    with ww.gate(model, freeze=dropped):
        gated = logits(model)
    model.model.rotary_emb.inv_freq.zero_()
    assert torch.allclose(gated, logits(model), atol=1e-4)


def test_effects_are_summed_over_query_heads_and_averaged_over_documents() -> None:
    model = tiny_model("llama")
    documents = [tuple(range(3, 30)), tuple(range(40, 80))]
    found = calibrate(model, documents, None)
    expected = torch.zeros_like(found.effect)
    for ids in documents:
        trace = ww.capture(model, torch.tensor([ids]), queries=range(1, len(ids)))
        effect = rotation_effect(trace).effect[0]
        for head in range(effect.shape[1]):
            expected[:, head // found.groups[0]] += effect[:, head] / 2
    assert found.groups[0] > 1
    assert torch.allclose(found.effect, expected)


@pytest.mark.weights
@pytest.mark.parametrize("budget", ["model", "head"])
def test_a_plan_is_the_model_with_these_planes_unrotated(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Hugging Face's own rotation, skipped in the planes that the plan drops."""
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    plan = ww.rotations(model, tokenizer=tokenizer, keep=2, budget=budget, length=[32], samples=1)
    with ww.gate(model, plan):
        gated = logits(model)
    layers = iter(plan.tensors["kept"])  # (key heads, planes), in the order in which layers run
    rotate = modeling_llama.apply_rotary_pos_emb

    def partly(query: torch.Tensor, key: torch.Tensor, *angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = next(layers).repeat(1, 2)[:, None]  # both dimensions of a plane
        rotated = rotate(query, key, *angles)
        shared = kept.repeat_interleave(query.shape[1] // key.shape[1], 0)
        return torch.where(shared, rotated[0], query), torch.where(kept, rotated[1], key)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", partly)
    assert torch.allclose(gated, logits(model), atol=1e-4)


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
    options = ("--keep", 2, "--length", 64, "--samples", 1, "--evaluate", "--draws", 1)
    code, out, _ = run("rotations", weights(STORIES), *options, "-o", tmp_path, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["keep"] == 2
    for measure in ("kl", "loss", "copy_loss", "binding", "binding_loss"):
        assert told[measure].keys() == {"none", "plan", *BASELINES, "norm over the model", *CONTROLS}
        assert told["by_length"]["64"][measure] == told[measure]
    assert sum(told["kept_by_layer"]) == told["kept"] == 40
    assert (tmp_path / "rotations.png").exists()
    code, out, _ = run("rotations", weights(STORIES), *options, "-o", tmp_path)
    assert code == 0
    assert "2 of 4 rotations per key head, spread over the whole model" in out


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


def test_a_budget_for_the_model_adds_the_norm_with_that_budget() -> None:
    norm = torch.tensor([[[9.0, 8.0, 7.0]], [[3.0, 2.0, 1.0]]])
    found = Calibration(norm.flip(0), norm, [0, 1], [1, 1], torch.ones(2, 3))
    spread, even = (by_criterion(found, found, 1, budget, 20, 0) for budget in ("model", "head"))
    assert spread["norm over the model", 0].tolist() == [[[True, True, False]], [[False] * 3]]
    assert spread["norm", 0].tolist() == even["norm", 0].tolist() == [[[True, False, False]]] * 2
    assert {name for name, _ in spread} - {name for name, _ in even} == {"norm over the model"}
    drawn = torch.stack([spread["random", draw] for draw in range(20)])
    assert (drawn.sum(-1) == 1).all()
    assert drawn.any(0).all()


def test_what_a_loss_needs_holds_at_every_length() -> None:
    plan = random_plan(random_profile(2, 2, 3, blocks=4))
    rows = [("plan", keep, length, kl) for length, kls in ((64, (0.3, 0.004, 0.0)), (256, (0.9, 0.02, 0.001)))
            for keep, kl in enumerate(kls, 1)]  # fmt: skip
    losses = pd.DataFrame(rows, columns=["criterion", "keep", "length", "value"]).assign(measure="kl")
    plan = replace(plan, losses=losses)
    assert plan.curve() == {1: 0.9, 2: 0.02, 3: 0.001}
    needed = [plan.needed(tolerance) for tolerance in (1.0, 0.01)]
    assert [int(kept.sum()) for kept in needed if kept is not None] == [1 * 2, 3 * 2]
    assert plan.needed(1e-9) is None


def test_what_effects_need_keeps_as_many_in_every_head_under_that_budget() -> None:
    effect = torch.tensor([[[3.0, 0.2, 0.1], [1.0, 0.5, 0.0]]])
    kept = {total: needed_by_effect(effect, total, "head").sum(-1).tolist() for total in (5.0, 0.9, 0.7, 0.05)}
    assert kept == {5.0: [[0, 0]], 0.9: [[1, 1]], 0.7: [[2, 2]], 0.05: [[3, 3]]}  # 0.7 is less than 0.2 + 0.1 + 0.5


def test_a_plan_without_losses_leaves_none_behind(tmp_path: Path) -> None:
    plan = random_plan(random_profile(2, 2, 3, blocks=4))
    replace(plan, losses=pd.DataFrame({"keep": [1]})).save(tmp_path)
    (tmp_path / "mine.parquet").touch()
    plan.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*plan.files(), "mine.parquet"} - {"losses.parquet"}


def test_a_report_shows_one_plan_of_a_model() -> None:
    profile = random_profile(2, 2, 3, blocks=4)
    with pytest.raises(BadInput, match="two plans of rotations"):
        explorer_html([profile, random_plan(profile), random_plan(profile, keep=2)])


def test_long_documents_are_seen_from_evenly_spaced_queries() -> None:
    assert queries_of(2048) == [*range(1, 2048)]
    some = queries_of(8192)
    assert (some[0], some[-1], len(some)) == (1, 8191, 512)
    assert {after - before for before, after in pairwise(some)} == {16, 17}
    assert len(queries_of(2**20)) == 64


def test_predictions_are_compared_at_evenly_spaced_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four documents of 600 tokens, 128 positions each."""
    model, documents = tiny_model("llama"), torch.randint(3, 128, (4, 600))
    found = calibrate(model, [tuple(range(3, 40))], None)
    plan = most_needed(found.effect, 2, "head")
    loss = measure_plans(model, Material(documents), [plan], found)["loss"]
    predicted = model(input_ids=documents).logits.log_softmax(-1)
    each = -predicted[:, :-1].gather(-1, documents[:, 1:, None])[..., 0]
    assert torch.allclose(loss[0].float(), each[:, torch.linspace(0, 598, 128).round().long()].mean(1), atol=1e-5)


def test_scores_are_shuffled_between_heads_that_have_as_many_planes() -> None:
    scores = torch.arange(24.0).view(2, 3, 4)
    scores[1, :, 2:] = torch.nan
    mixed = shuffled(scores, seed=1)
    assert torch.equal(mixed.isnan(), scores.isnan())
    assert not torch.equal(mixed.nan_to_num(), scores.nan_to_num())
    for layer in range(2):
        assert sorted(mixed[layer].nan_to_num().tolist()) == sorted(scores[layer].nan_to_num().tolist())


@pytest.mark.weights
def test_a_plan_of_another_model_is_refused(plan: ww.RotationPlan) -> None:
    model = ww.load(weights(STORIES))
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] += 1
    with pytest.raises(BadInput, match="the plan was made for other weights"), ww.gate(model, plan):
        pass
    with ww.gate(model, freeze=plan.frozen()):  # as for a model that was trained further
        logits(model)


@pytest.mark.weights
def test_losses_are_those_of_the_gated_model(plan: ww.RotationPlan) -> None:
    """KL and loss of the plan, recomputed from all logits of the documents that follow the calibration text."""
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    ids = tokenizer("\n\n".join(packaged_documents().values()), add_special_tokens=False)["input_ids"]
    kl, loss = [], []
    for at in range(2):
        document = torch.tensor([[tokenizer.bos_token_id, *ids[64 + 31 * at : 64 + 31 * (at + 1)]]])
        with torch.no_grad():
            own = model(input_ids=document).logits[0, :-1].log_softmax(-1)
            with ww.gate(model, plan):
                changed = model(input_ids=document).logits[0, :-1].log_softmax(-1)
        kl.append((own.exp() * (own - changed)).sum(-1).mean())
        loss.append(-changed.gather(1, document[0, 1:, None]).mean())
    told = plan.summary()
    assert told["kl"]["plan"] == pytest.approx(float(torch.stack(kl).mean()), rel=1e-4)
    assert told["loss"]["plan"] == pytest.approx(float(torch.stack(loss).mean()), rel=1e-4)


@pytest.mark.weights
def test_a_plan_comes_from_prompts_too() -> None:
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    prompts = ww.binding(tokenizer, pairs=4, samples=2)
    found = ww.rotations(model, prompts, keep=2, tokenizer=tokenizer)
    assert found.about["lengths"] == sorted({len(prompt.ids) for prompt in prompts})
    assert (found.planes["effect"] >= 0).all()


@pytest.mark.weights
def test_neighbouring_lengths_and_few_documents() -> None:
    """Both lengths have the same random tokens; two documents are too few for an interval, four sequences are not."""
    found = ww.rotations(weights(STORIES), keep=2, length=[16], evaluate=True, test_length=[8, 9], draws=1)
    losses: Any = found.losses
    assert set(losses["length"]) == {8, 9}
    assert losses.query("measure == 'kl'")[["low", "high"]].isna().all(axis=None)
    assert losses.query("measure == 'copy_loss'")[["low", "high"]].notna().all(axis=None)


@pytest.mark.weights
def test_bad_input_is_refused_in_one_line(refuse: Any, tmp_path: Path) -> None:
    refuse("keep must be 0 to 4", "rotations", weights(STORIES), "--keep", 5, "-o", tmp_path)
    refuse("budget is model or head", "rotations", weights(STORIES), "--budget", "layer", "-o", tmp_path)
    refuse("reads no text", "rotations", "number", "-o", tmp_path)
    (tmp_path / "short.txt").write_text("Once upon a time.")
    refuse("the text is too short", "rotations", weights(STORIES), "--text", tmp_path / "short.txt", "-o", tmp_path)
    refuse("a test length needs evaluate", "rotations", weights(STORIES), "--test-length", 64, "-o", tmp_path)
    refuse("the model takes 512 tokens", "rotations", weights(STORIES), "--length", 4096, "-o", tmp_path)
    options = ("--length", 64, "--evaluate", "--test-length", 4)
    refuse("lengths of 8 tokens or more.*got 4, 64 tokens", "rotations", weights(STORIES), *options, "-o", tmp_path)


@pytest.mark.weights
def test_a_model_without_rotation_is_refused(refuse: Any, capsys: Any, tmp_path: Path) -> None:
    """Bloom biases its logits by distance, GPT-2 adds positions to its embeddings."""
    for family, words in (("bloom", "no layer of this model rotates"), ("gpt2", "there is no rotation to measure")):
        tiny_model(family, vocab_size=512).save_pretrained(tmp_path / family)
        ww.load_tokenizer(weights(STORIES)).save_pretrained(tmp_path / family)
        capsys.readouterr()
        refuse(words, "rotations", tmp_path / family, "--length", 16, "-o", tmp_path / "plan")


@pytest.mark.weights
def test_what_python_alone_can_get_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users
    with pytest.raises(BadInput, match=r"a plan is the result of ww\.rotations.*got list"), ww.gate(model, [(0, 0, 1)]):  # type: ignore[arg-type]
        pass
    with pytest.raises(BadInput, match="length is for text"):
        ww.rotations(model, ww.binding(tokenizer, pairs=4, samples=2), length=[64], keep=2, tokenizer=tokenizer)
    with pytest.raises(BadInput, match=r"keep must be a whole number, got 1\.5"):
        ww.rotations(model, keep=1.5, tokenizer=tokenizer)  # type: ignore[arg-type]


def test_a_report_needs_the_profile_of_the_model_of_a_plan() -> None:
    plan = random_plan(random_profile(2, 2, 3, blocks=4))
    with pytest.raises(
        BadInput, match="the plan is shown with the profile of its model, some, and no profile is given"
    ):
        explorer_html([plan])
