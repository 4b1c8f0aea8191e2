"""HeadCallback: a real fine-tuning of stories15M with and without it, and what trackers receive."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainingArguments

import wherewhat as ww
from conftest import needed, weights
from tiny import tiny_model
from wherewhat.prompts.text import included_story

STEPS = 6
PROMPT = ww.Prompt(tuple(range(5, 30)), tuple((at, at + 4) for at in range(1, 21, 4)))


def trainer_on(folder: Path, trackers: list[str], **options: Any) -> Trainer:
    path = weights("stories15M")
    ids = ww.load_tokenizer(path)(included_story())["input_ids"]
    rows = [{"input_ids": ids[at : at + 64], "labels": ids[at : at + 64]} for at in range(0, 64 * 24, 64)]
    model = ww.load(path)
    model.config.attention_dropout = 0.1  # so that training draws random numbers
    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1, report_to=trackers, use_cpu=True,
        save_strategy="no", disable_tqdm=True, seed=3, **options,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:2])


def callback(folder: Path | None = None, **options: Any) -> ww.HeadCallback:
    tokenizer = ww.load_tokenizer(weights("stories15M"))
    return ww.HeadCallback(ww.binding(tokenizer, pairs=4, samples=2), folder=folder, **options)


def after(trainer: Trainer) -> tuple[list[float], list[torch.Tensor], Any]:
    """Losses, weights and random states after training."""
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    states = torch.get_rng_state().tolist(), random.random(), np.random.rand()  # noqa: NPY002 - the global one
    return losses, [one.detach() for one in trainer.model.parameters()], states


@pytest.mark.slow
@pytest.mark.weights
def test_training_is_the_same_with_and_without_it_and_the_series_is_that_of_the_models(tmp_path):
    evaluating = {"eval_strategy": "steps", "eval_steps": 4}
    plain = after(trainer_on(tmp_path / "a", [], **evaluating))
    watching = callback(
        tmp_path / "heads", every=2, share=1e6
    )  # before the Trainer sets the seeds: beartype draws, too
    trainer = trainer_on(tmp_path / "b", ["tensorboard"], **evaluating)
    watching.attach(trainer)
    losses, parameters, states = after(trainer)
    assert losses == plain[0]
    assert len(losses) == STEPS
    assert all(torch.equal(one, other) for one, other in zip(parameters, plain[1], strict=True))
    assert states == plain[2]

    series = ww.Dynamics.load(tmp_path / "heads")
    trainer.save_model(str(tmp_path / "tuned"))
    prompts = ww.binding(ww.load_tokenizer(weights("stories15M")), pairs=4, samples=2)
    for step, model in ((0, weights("stories15M")), (STEPS, tmp_path / "tuned")):
        alone = ww.dynamics([str(model)], prompts=prompts).heads
        np.testing.assert_allclose(
            series.heads.loc[series.heads["step"] == step, "symbolic"], alone["symbolic"], atol=1e-5
        )

    events = EventAccumulator(str(next((tmp_path / "b").rglob("events*")).parent)).Reload()
    tag = next(name for name in events.Tags()["scalars"] if name.endswith("heads/symbolic"))
    medians = {step: sorted(rows)[(len(rows) - 1) // 2] for step, rows in series.heads.groupby("step")["symbolic"]}
    assert [*medians] == [0, 2, 4, 6]
    assert {one.step: one.value for one in events.Scalars(tag)} == pytest.approx(medians, abs=1e-6)
    assert ww.report([tmp_path / "heads"], tmp_path / "film.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.weights
def test_measurements_that_would_cost_too_much_are_skipped(tmp_path):
    trainer = trainer_on(tmp_path, [])
    watched = callback(every=1, share=1e-9).attach(trainer)
    trainer.train()
    assert [*watched.measured] == [0, STEPS]
    assert watched.series.about["skipped"] == [*range(1, STEPS)]


def test_what_cannot_be_attached_is_refused(tmp_path):
    (tmp_path / "dynamics.json").write_text("{}")
    prompt = ww.Prompt((1, 2, 3, 4), ((1, 2), (2, 3)))
    with pytest.raises(ww.BadInput, match="holds a series already"):
        ww.HeadCallback([prompt], folder=tmp_path)
    with pytest.raises(ww.BadInput, match="at least one prompt"):
        ww.HeadCallback([])
    with pytest.raises(ww.BadInput, match=r"callback.attach\(trainer\)"):
        ww.HeadCallback([prompt]).on_train_begin(None, None, None)


@pytest.mark.integrations
@pytest.mark.weights
def test_trackio_receives_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    needed("trackio")
    trainer = trainer_on(tmp_path / "run", ["trackio"])
    watched = callback().attach(trainer)
    trainer.train()
    stored = b"".join(file.read_bytes() for file in (tmp_path / "trackio").rglob("*") if file.is_file())
    assert b"heads/symbolic" in stored
    assert [*watched.measured] == [0, STEPS]


def at_step(step: int, first: bool = True) -> Any:
    return SimpleNamespace(is_world_process_zero=first, global_step=step, max_steps=STEPS)


def test_other_processes_of_a_distributed_training_measure_nothing():
    watching = ww.HeadCallback([PROMPT], every=1, share=1e6)
    watching.trainer = object()  # would fail if anything were logged
    watching.on_train_begin(None, at_step(0, first=False), None, None)
    watching.on_step_end(None, at_step(1, first=False), None, None)
    watching.on_evaluate(None, at_step(1, first=False), None, None)
    watching.on_train_end(SimpleNamespace(load_best_model_at_end=False), at_step(STEPS, first=False), None, None)
    assert not watching.measured
    with pytest.raises(ww.BadInput, match="the series of one training"):
        watching.on_train_begin(None, at_step(0, first=False), None, None)


def test_the_best_model_is_not_recorded_as_that_of_the_last_step():
    model, logged = tiny_model("llama"), []
    watching = ww.HeadCallback([PROMPT], share=1e6)
    watching.trainer = SimpleNamespace(log=logged.append, control=SimpleNamespace(should_log=False))
    best = SimpleNamespace(load_best_model_at_end=True)
    watching.on_train_begin(best, at_step(0), None, model)
    watching.on_step_end(best, at_step(STEPS), None, model)
    assert [*watching.measured] == [0, STEPS]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0)  # an earlier model takes its place
    watching.on_train_end(best, at_step(STEPS + 1), None, model)
    assert [*watching.measured] == [0, STEPS]
    kinds = ("where", "what", "unfocused", "mixed")
    assert sum(logged[0][f"heads/{kind}"] for kind in kinds) == pytest.approx(1)
