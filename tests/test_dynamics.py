"""Learning dynamics against the published procedure, tables with known answers, and series that must be refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

import brute_force
import wherewhat as ww
from tiny import tiny_model
from wherewhat.errors import BadInput
from wherewhat.lab import Recipe, Shape, load_checkpoint, to_gptj, train_model
from wherewhat.prompts import Prompt
from wherewhat.studies.dynamics.measure import (
    measure_checkpoint,
    measure_series,
    purity_table,
    views_of_prompts,
    views_of_sequences,
)
from wherewhat.studies.dynamics.result import Dynamics
from wherewhat.studies.dynamics.series import series_of_models, series_of_run
from wherewhat.tasks import Number

TASK = Number(targets=3, pretargets=3, letters=5)
STEPS = (0, 20, 40)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "number"
    some = TASK.sample(640)
    recipe = Recipe(steps=40, warmup=2, rate=1e-2, batch=32)
    train_model(
        Shape(TASK.vocabulary, layers=2, heads=2, width=32, hidden=32), some, some[:64], recipe, folder, save_at=STEPS
    )
    return folder


def test_every_checkpoint_is_what_the_published_procedure_gives(run: Path) -> None:
    sequences = TASK.sample(6, seed=5)
    found = measure_series(series_of_run(run), views_of_sequences(sequences)).heads
    assert found["step"].unique().tolist() == list(STEPS)
    for step in (20, 40):
        exported = to_gptj(load_checkpoint(run, step))
        exported.set_attn_implementation("eager")
        blocks = [(at, at + 1) for at in range(TASK.tokens - 1)]
        each = [brute_force.scores(exported, ids[None], blocks, [1e-4])[1e-4] for ids in sequences.tokens]
        expected = torch.stack(each).mean(0)
        for axis, name in enumerate(("positional", "symbolic")):
            ours = torch.tensor(found.query("step == @step")[name].to_numpy()).reshape(2, 2)
            assert torch.allclose(ours, expected[axis].float(), atol=1e-4)


def test_accuracy_is_what_the_model_answers(run: Path) -> None:
    sequences = TASK.sample(80, seed=6)
    found = measure_series(series_of_run(run), views_of_sequences(sequences)).accuracy
    answers = to_gptj(load_checkpoint(run, 40))(sequences.tokens).logits[:, -1].argmax(-1)
    for hops in range(1, 5):
        rows = sequences.hops == hops
        expected = float((answers == sequences.answers)[rows].float().mean())
        assert found.query("step == 40 and hops == @hops")["accuracy"].item() == pytest.approx(expected)


def test_hop_positions_are_sequences_cut_there(run: Path) -> None:
    model, sequences = load_checkpoint(run, 40), TASK.sample(30, seed=7)
    found = measure_checkpoint(model, views_of_sequences(sequences, hop_positions=True), 1e-4)
    expected = []
    for row in range(len(sequences)):
        path = sequences.path[row].tolist()
        if sequences.hops[row] > 2:  # two tokens were hopped to before the leaf
            expected.append(ww.score(ww.capture(model, sequences.tokens[row : row + 1, : path[2] + 1])).symbolic[0])
    assert found["queries"].tolist() == [0, 1, 2, 3]
    assert torch.allclose(found["symbolic"][2], torch.stack(expected).mean(0), atol=1e-5)


def test_a_second_look_measures_nothing_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = views_of_sequences(TASK.sample(20))
    measure_series(series_of_run(run), views, tmp_path)
    tables = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    assert set(tables) == {"heads.parquet", "accuracy.parquet", "purity.parquet"}
    monkeypatch.setattr(
        "wherewhat.studies.dynamics.measure.measure_checkpoint", lambda *_: pytest.fail("measured again")
    )
    measure_series(series_of_run(run), views, tmp_path)
    assert tables == {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    pd.testing.assert_frame_equal(Dynamics.load(tmp_path).heads, pd.read_parquet(tmp_path / "heads.parquet"))


def test_purity_of_a_table_with_a_known_answer() -> None:
    """Head 0 is pure from 20 on; head 1 was, and is not at the end; head 2 becomes symbolic at the last step."""
    positional = {0: [0.5, 0.95, 0.99, 1.0], 1: [1.0, 1.0, 1.0, 0.6], 2: [0.9, 0.5, 0.3, 0.08]}
    symbolic = {0: [0.5, 0.03, 0.01, 0.0], 1: [0.0, 0.0, 0.0, 0.0], 2: [0.9, 0.9, 0.9, 0.93]}
    rows = [
        {"step": 20 * at, "query": 0, "layer": 0, "head": head, "positional": p, "symbolic": s}
        for head in positional
        for at, (p, s) in enumerate(zip(positional[head], symbolic[head], strict=True))
    ]
    found = purity_table(pd.DataFrame(rows))
    assert found.to_dict("records") == [
        {"gamma": 0.2, "layer": 0, "head": 0, "kind": "where", "step": 20},
        {"gamma": 0.2, "layer": 0, "head": 2, "kind": "what", "step": 60},
        {"gamma": 0.1, "layer": 0, "head": 0, "kind": "where", "step": 20},
        {"gamma": 0.1, "layer": 0, "head": 2, "kind": "what", "step": 60},
        {"gamma": 0.05, "layer": 0, "head": 0, "kind": "where", "step": 20},
    ]


def save_tiny(folder: Path, seed: int) -> str:
    tiny_model("llama", seed).save_pretrained(folder)
    return str(folder)


def test_folders_of_hugging_face_models(tmp_path: Path) -> None:
    names = [save_tiny(tmp_path / f"step{number}00", number) for number in (1, 2)]
    prompts = [Prompt(tuple(range(3, 20)), ((2, 6), (6, 10), (10, 14)), answer=5)]
    found = measure_series(series_of_models(names), views_of_prompts(prompts))
    assert found.heads["step"].unique().tolist() == [100, 200]
    expected = ww.score(ww.capture(ww.load(names[1]), torch.tensor([prompts[0].ids])), prompts[0].blocks)
    ours = found.heads.query("step == 200")["positional"].to_numpy()
    assert torch.allclose(torch.tensor(ours), expected.positional[0].flatten(), atol=1e-5)


def test_repeated_weights_are_refused(run: Path, tmp_path: Path) -> None:
    first = save_tiny(tmp_path / "step1", 1)
    prompts = [Prompt(tuple(range(3, 20)), ((2, 6), (6, 10)))]
    shutil.copytree(first, tmp_path / "step2")
    with pytest.raises(BadInput, match=r"step1 and .*step2 hold the same weights"):
        measure_series(series_of_models([first, str(tmp_path / "step2")]), views_of_prompts(prompts))
    # The same weights in another file: seen once they are loaded.
    ww.load(first).save_pretrained(tmp_path / "step3", max_shard_size="20KB")
    with pytest.raises(BadInput, match=r"step1 and .*step3 hold the same weights"):
        measure_series(series_of_models([first, str(tmp_path / "step3")]), views_of_prompts(prompts))
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/checkpoints/step-000020.safetensors").write_bytes(
        (tmp_path / "run/checkpoints/step-000040.safetensors").read_bytes()
    )
    with pytest.raises(BadInput, match="step 20 and step 40 hold the same weights"):
        measure_series(series_of_run(tmp_path / "run"), views_of_sequences(TASK.sample(8)))


def test_folders_without_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no checkpoints here"):
        series_of_run(tmp_path)
    with pytest.raises(BadInput, match="no dynamics here"):
        Dynamics.load(tmp_path)
    with pytest.raises(BadInput, match="at least one"):
        measure_series([], [])
