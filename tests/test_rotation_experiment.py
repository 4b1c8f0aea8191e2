"""The experiments on rotations: trials and their table, fine-tuning, and effects beside scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.core.rotation_effect import rotation_effect
from wherewhat.errors import BadInput
from wherewhat.prompts import Prompt
from wherewhat.studies.ablation.measures import answers
from wherewhat.studies.rotations.calibrate import calibrate
from wherewhat.studies.rotations.evaluate import lists_that_fit, probabilities
from wherewhat.studies.rotations.experiment import (
    CRITERIA,
    Experiment,
    Trial,
    Variant,
    experiment,
    summarise,
    trials,
)
from wherewhat.studies.rotations.finetune import finetune
from wherewhat.studies.rotations.plan import CONTROLS, baseline, most_needed
from wherewhat.studies.rotations.relation import relation

STORIES = "stories260K"


@pytest.mark.weights
def test_effects_beside_scores_are_those_of_the_trace() -> None:
    model, tokenizer = ww.load(weights(STORIES)), ww.load_tokenizer(weights(STORIES))
    (prompt,) = ww.binding(tokenizer, pairs=4, samples=1)
    rows = relation(model, prompt)
    trace = ww.capture(model, torch.tensor([prompt.ids]))
    scores, effect = ww.score_frequencies(trace, prompt.blocks), rotation_effect(trace).effect
    for row in rows.sample(20, random_state=0).to_dict("records"):
        at = (0, int(row["layer"]), int(row["head"]), int(row["frequency"]) - 1)
        assert row["effect"] == pytest.approx(float(effect[at]))
        assert row["positional"] == pytest.approx(float(scores.positional[at]))
        assert row["radians"] == pytest.approx(float(trace.angles[at[1], at[3]]) * (len(prompt.ids) - 1))
    assert len(rows) == effect.isfinite().sum()


@pytest.mark.weights
def test_an_experiment_is_tested_on_other_text_than_it_is_calibrated_on(tmp_path: Path) -> None:
    running = Experiment(str(weights(STORIES)), tmp_path, lengths=[32])
    for number in range(5):
        tested = running.material(Trial(number, 32, 32)).documents
        assert tested is not None
        assert not {tuple(one) for one in tested.tolist()} & set(running.documents(number, 32))
        assert tested.tolist() == [list(one) for one in running.documents((number + 1) % 5, 32)]


@pytest.mark.slow
@pytest.mark.weights
def test_training_with_a_plan_in_force_comes_closer_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wherewhat.studies.rotations.finetune.DRAWN", 40)
    monkeypatch.setattr("wherewhat.studies.rotations.finetune.EVERY", 10)
    monkeypatch.setattr("wherewhat.studies.rotations.finetune.TOKENS", 64)
    rows: Any = finetune(str(weights(STORIES)), tmp_path, share=2, steps=20)
    kl = rows.set_index(["criterion", "step"])["kl"].to_dict()
    assert kl["all", 0] == pytest.approx(0, abs=1e-6)
    for criterion in ("plan", "norm", "highest"):
        assert kl[criterion, 20] < kl[criterion, 0]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "smollm3"])
def test_questions_about_one_list_have_the_answers_that_they_have_alone(family: str) -> None:
    model, drawn = tiny_model(family), torch.Generator().manual_seed(0)
    asked = []
    for questions in ((5, 7, 5), (6, 6, 6)):  # tokens of each question, behind a list of its own
        first = torch.randint(3, 100, (20,), generator=drawn).tolist()
        rest = [torch.randint(3, 100, (tokens,), generator=drawn).tolist() for tokens in questions]
        asked += [Prompt((*first, *one), blocks=(), answer=9) for one in rest]
    plain = answers(model, asked)[1]
    torch.testing.assert_close(probabilities(model, asked, 3), plain, rtol=1e-4, atol=0)
    with ww.gate(model, freeze=[(1, 0, 1), (1, 2, 3), (2, None, 2)]):
        gated = answers(model, asked)[1]
        torch.testing.assert_close(probabilities(model, asked, 3), gated, rtol=1e-4, atol=0)
    assert not torch.allclose(gated, plain, rtol=1e-2, atol=0)


@pytest.mark.weights
def test_lists_have_several_questions_and_fit() -> None:
    tokenizer = ww.load_tokenizer(weights(STORIES))
    asked = lists_that_fit(tokenizer, 256, 2, 0, questions=3)
    lists = [[prompt.text.split(" What color")[0] for prompt in asked[at : at + 3]] for at in (0, 3)]
    assert [len(set(one)) for one in lists] == [1, 1]
    assert lists[0][0] != lists[1][0]
    assert len({prompt.target for prompt in asked}) == 6
    assert 240 < max(len(prompt.ids) for prompt in asked) <= 256
    assert not lists_that_fit(tokenizer, 16, 2, 0)


@pytest.mark.slow
@pytest.mark.weights
def test_an_experiment_resumes_from_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherewhat.studies.rotations.experiment.SETS", 2)
    monkeypatch.setattr("wherewhat.studies.rotations.experiment.SHARES", (2,))
    model = str(weights(STORIES))

    def run(known: pd.DataFrame | None = None, part: tuple[int, int] = (0, 1)) -> list[pd.DataFrame]:
        return list(experiment(model, tmp_path, lengths=[64, 128], tokens=128, known=known, part=part))

    each = run()
    # Everything at two lengths and across them, and plans for copies, for two sets each.
    assert len(each) == 2 * (3 * 2 + 1 + 3 * 2)
    rows = pd.concat(each, ignore_index=True)
    assert set(rows.query("measure == 'binding'")["criterion"]) == {"none"}  # the model does not answer lists
    assert not run(rows)
    for lost in (3, -5, -3, -14):  # copying, text and copying across lengths, plans for copies
        (again,) = run(pd.concat(each[:lost] + each[lost:][1:]))
        pd.testing.assert_frame_equal(again, each[lost])
    parts = [one for number in (0, 1) for one in run(part=(number, 2))]
    assert pd.concat(parts).sort_values([*rows]).to_numpy().tolist() == rows.sort_values([*rows]).to_numpy().tolist()
    found = rows.query("length == 64 and calibrated == 64 and documents == 'packaged'")
    table: Any = summarise(found).query("measure == 'kl' and share == 2")
    kl = table.set_index("criterion")["value"].to_dict()
    assert kl["plan"] < min(kl["random"], kl["shuffled heads"])


@pytest.mark.slow
@pytest.mark.weights
def test_an_experiment_adds_the_criteria_that_are_missing_and_no_others(tmp_path: Path) -> None:
    running = Experiment(str(weights(STORIES)), tmp_path, lengths=[32], tokens=64)
    trial = Trial(0, 32, 32)
    rows = running.run(trial)
    missing = (rows["criterion"] == "lowest") | (rows["draw"] == 3)
    again = running.run(trial, rows[~missing])
    pd.testing.assert_frame_equal(again.reset_index(drop=True), rows[missing].reset_index(drop=True))
    for column, other in (("version", 0), ("tokens", 128), ("weights", "others"), ("dtype", "bfloat16")):
        assert len(running.run(trial, rows.assign(**{column: other}))) == len(rows)
    for values in (rows["value"] + 0.1, rows["value"].where(rows["unit"] > 0)):
        with pytest.raises(BadInput, match="measured on another text"):
            running.run(trial, rows.assign(value=values)[~missing])


@pytest.mark.slow
@pytest.mark.weights
def test_a_model_that_answers_lists_is_asked_under_every_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherewhat.studies.rotations.experiment.ANSWERED", 0.0)
    running = Experiment(str(weights(STORIES)), tmp_path, lengths=[64], tokens=64)
    rows = running.run(Trial(0, 64, 64, "binding"))
    assert set(rows["measure"]) == {"binding", "binding_loss"}
    assert rows.groupby(["measure", "criterion", "share", "draw"]).size().eq(16).all()
    assert set(rows["criterion"]) == {"none", *CRITERIA}


def test_all_pairs_of_three_lengths_are_tested_once() -> None:
    order = list(trials((256, 1024, 2048)))
    assert len(set(order)) == len(order) == 5 * (3 * 3 + 1 + 2 * 3 + 4)
    for number in range(5):
        text = {(one.calibrated, one.length) for one in order if one.kind == "text" and one.number == number}
        assert text == {(one, other) for one in (256, 1024, 2048) for other in (256, 1024, 2048)}


@pytest.mark.weights
def test_every_criterion_keeps_its_planes(tmp_path: Path) -> None:
    running = Experiment(str(weights(STORIES)), tmp_path, lengths=[32], tokens=64)
    trial, keep = Trial(1, 32, 32), 2
    kept = {name: running.kept(trial, Variant(name, 2)) for name in CRITERIA}
    for name, masks in kept.items():
        numbers = masks.sum(-1)
        spread = name in ("plan", "norm over the model", *CONTROLS)
        assert int(numbers.sum()) == keep * numbers.numel()
        assert bool((numbers == keep).all()) != spread, name
    documents = running.documents(1, 32)
    effect, norm = (getattr(calibrate(running.model, documents, None), name) for name in ("effect", "norm"))
    assert torch.equal(kept["plan"], most_needed(effect, keep, "model"))
    assert torch.equal(kept["plan per head"], most_needed(effect, keep, "head"))
    assert torch.equal(kept["norm"], most_needed(norm, keep, "head"))
    mixed = [(one[0], *torch.tensor(one[1:])[order(one, 1)].tolist()) for one in documents]
    assert torch.equal(kept["shuffled text"], most_needed(calibrate(running.model, mixed, None).effect, keep, "model"))
    on_copies = calibrate(running.model, [tuple(row) for row in running.copies(6, 32).tolist()], None).effect
    copies = Trial(1, 32, 32, "copies")
    for name, budget, of in (("plan", "model", 0), ("plan per head", "head", 0), ("plan for both", "model", effect)):
        assert torch.equal(running.kept(copies, Variant(name, 2)), most_needed(on_copies + of, keep, budget))
    assert torch.equal(kept["random"], baseline("random", norm, keep, 1))
    drawn = [
        running.kept(Trial(number, 32, 32), Variant("random", 2, draw)) for number in range(5) for draw in range(5)
    ]
    assert len({tuple(masks.flatten().tolist()) for masks in drawn}) == 25


def order(ids: tuple[int, ...], seed: int) -> torch.Tensor:
    """The random order of the tokens behind the first one."""
    return torch.randperm(len(ids) - 1, generator=torch.Generator().manual_seed(seed))
