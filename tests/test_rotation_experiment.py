"""The experiments on rotations: trials and their table, fine-tuning, and effects beside scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import wherewhat as ww
from conftest import weights
from wherewhat.core.rotation_effect import rotation_effect
from wherewhat.studies.rotations.experiment import Experiment, Trial, experiment, summarise
from wherewhat.studies.rotations.finetune import finetune
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


@pytest.mark.slow
@pytest.mark.weights
def test_an_experiment_resumes_from_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherewhat.studies.rotations.experiment.SETS", 2)
    model = str(weights(STORIES))
    trials = list(experiment(model, tmp_path, lengths=[16, 32], tokens=64))
    assert len(trials) == 2 * (2 + 2 + 2 + 1)  # sets; text and tasks of two lengths; text across lengths; copies
    rows = pd.concat(trials, ignore_index=True)
    assert not list(experiment(model, tmp_path, lengths=[16, 32], tokens=64, known=rows))
    for lost in (3, 7, -1):  # tasks, text across lengths, copies
        known = pd.concat(trials[:lost] + trials[lost:][1:])
        (again,) = experiment(model, tmp_path, lengths=[16, 32], tokens=64, known=known)
        pd.testing.assert_frame_equal(again, trials[lost])
    rows = rows.query("length == 16 and calibrated == 16 and documents == 'packaged'")
    table: Any = summarise(rows).query("measure == 'kl' and share == 2")
    kl = table.set_index("criterion")["value"].to_dict()
    assert kl["plan"] < min(kl["random"], kl["shuffled heads"])
