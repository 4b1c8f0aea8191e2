"""Accuracy by length: compared with Hugging Face's GPT-J, with the published figure, resumed and refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

import wherewhat as ww
from wherewhat.lab import Recipe, Shape, Transformer, to_gptj
from wherewhat.studies.lengths.figures import length_curves
from wherewhat.studies.lengths.hop_lengths import GRID, answer, measure_lengths, sharper
from wherewhat.studies.lengths.paper import FIGURE_5B, published_accuracy
from wherewhat.studies.multihop.roles import attention_on_path
from wherewhat.studies.multihop.train import train_task
from wherewhat.tasks import TASKS


def test_the_grid_is_the_papers():
    assert GRID[:3] == (17, 20, 30)
    assert {100, 200, 1000, 1500, 5000} < set(GRID)
    assert len(GRID) == 1 + 9 + 9 + 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["number", "letter"])
@pytest.mark.parametrize("length", [17, 60])
def test_answers_are_those_of_hugging_faces_gptj(name, length):
    task, model = TASKS[name](), ww.embedded(name)
    longer = task.extend(task.sample(24, seed=1), length - 17, seed=2)
    theirs = to_gptj(model, context=64)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        expected = theirs(longer.tokens, output_attentions=True)
    found = answer(model, longer)
    assert name == "letter" or length == 17 or not found["right"].all()  # some answers are wrong
    assert torch.equal(found["right"], expected.logits[:, -1].argmax(-1) == longer.answers)
    rows = torch.stack([weights[:, :, -1] for weights in expected.attentions], 1)
    following = rows.gather(-1, longer.path[:, 1, None, None, None].expand(-1, 12, 1, 1))[..., 0]
    assert (found["looks"][..., 1] - following).abs().max() < 1e-5


@pytest.mark.slow
def test_sharpened_is_what_hugging_faces_gptj_does_with_larger_queries(tmp_path):
    task, model = TASKS["letter"](), ww.embedded("letter")
    longer = task.extend(task.sample(12, seed=1), 40, seed=2)
    theirs = to_gptj(model, context=64)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        for block in theirs.transformer.h:
            block.attn.q_proj.weight *= sharper(57, trained=17)
        expected = theirs(longer.tokens, output_attentions=True)
    found = answer(model, longer, sharper(57, trained=17))
    rows = torch.stack([weights[:, :, -1] for weights in expected.attentions], 1)
    following = rows.gather(-1, longer.path[:, 1, None, None, None].expand(-1, 12, 1, 1))[..., 0]
    assert (found["looks"][..., 1] - following).abs().max() < 1e-5
    plain, sharpened = (
        measure_lengths(model, "letter", tmp_path, grid=(17, 20), prompts=6, sharpen=sharpen)
        for sharpen in (False, True)
    )
    pd.testing.assert_frame_equal(plain.heads.query("length == 17"), sharpened.heads.query("length == 17"))
    assert not plain.heads.equals(sharpened.heads)
    assert sharpened.loss["predicted"].isna().all()


@pytest.mark.slow
def test_sharpening_undoes_dilution_not_attention_to_the_wrong_place():
    """Four hops at 300 tokens: letter is restored, number is not."""
    right = {}
    for name in ("letter", "number"):
        sequences = TASKS[name]().sample(96, seed=1)
        longer = TASKS[name]().extend(sequences[sequences.hops == 4], 283, seed=2)
        for sharpness in (1.0, sharper(300, trained=17)):
            found = [answer(ww.embedded(name), longer[at : at + 8], sharpness)["right"] for at in range(0, 24, 8)]
            right[name, sharpness > 1] = torch.cat(found).double().mean().item()
    assert right["letter", False] < 0.8
    assert right["letter", True] > 0.95
    assert right["number", True] < 0.2


def test_tables_hold_every_sequence_and_head():
    task, model = TASKS["number"](), ww.embedded("number")
    made = measure_lengths(model, "number", grid=(17, 40), prompts=24, seed=1)
    asked = made.accuracy.query("hops > 0").groupby("length")["asked"].sum()
    assert dict(asked) == {17: 24, 40: 24}
    short = made.heads.query("length == 17")
    expected = attention_on_path(model, task.sample(24, seed=1), first=0)[:, 0]
    assert abs(short[["self", "next", "later"]].to_numpy() - expected.numpy()).max() < 1e-5


def test_existing_cells_are_reused(tmp_path):
    model = ww.embedded("number")
    first = measure_lengths(model, "number", tmp_path, grid=(17, 40), prompts=8)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = measure_lengths(model, "number", tmp_path, grid=(17, 40, 80), prompts=8)
    pd.testing.assert_frame_equal(again.accuracy.query("length < 80"), first.accuracy)
    assert written.items() < {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}.items()


@pytest.mark.slow
def test_what_is_saved_is_what_is_returned(tmp_path):
    found = ww.lengths("letter", longest=20, prompts=4, folder=tmp_path)
    assert isinstance(found, ww.Lengths)
    loaded = ww.Lengths.load(tmp_path)
    for name in ("accuracy", "heads", "loss"):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(found, name))
    assert loaded.about == found.about
    assert found.name == "letter, by length"
    assert {path.name for path in tmp_path.iterdir()} == {*ww.Lengths.files(), "cells", "lengths.pdf"}
    again = ww.lengths(ww.embedded("letter"), longest=20, prompts=4)
    pd.testing.assert_frame_equal(again.accuracy, found.accuracy)


def test_a_transformer_without_a_name_needs_its_task():
    model = Transformer(Shape(vocabulary=137, layers=1, heads=1, width=8, hidden=8)).eval()
    with pytest.raises(ww.BadInput, match="needs task="):
        ww.lengths(model, longest=17, prompts=2)
    found = ww.lengths(model, task="letter", longest=17, prompts=2)
    assert (found.about["task"], found.about["model"]) == ("letter", "letter")


@pytest.mark.slow
def test_the_command(run, refuse, tmp_path):
    train_task("letter", tmp_path / "run", Recipe(steps=1, batch=8))
    code, out, _ = run("lengths", tmp_path / "run", "-o", tmp_path / "made", "--prompts", 4, "--longest", 30)
    assert code == 0
    assert "letter: accuracy by length, 4 sequences each" in out
    code, out, _ = run("lengths", "letter", "-o", tmp_path / "other", "--prompts", 4, "--longest", 20, "--json")
    rows = json.loads(out)["lengths"]
    assert [(row["length"], row["accuracy"]) for row in rows if row["hops"] == 0] == [(17, 1.0), (20, 1.0)]
    assert (tmp_path / "other" / "lengths.pdf").read_bytes().startswith(b"%PDF")
    found = ww.Lengths.load(tmp_path / "other")
    assert found.accuracy.to_dict("records") == rows
    assert found.about["model"] == found.about["task"] == "letter"
    page = tmp_path / "page.html"
    code, _, err = run("report", tmp_path / "made", tmp_path / "other", "-o", page)
    assert code == 0, err
    assert "run, by length" in page.read_text("utf-8")
    (tmp_path / "other" / "loss.parquet").unlink()
    refuse("rerun the command", "report", tmp_path / "other")
    refuse("lengths start at 17 tokens", "lengths", "letter", "--longest", 10)
    refuse("holds neither a training run", "lengths", tmp_path)
    refuse("prompts must be at least 1", "lengths", "letter", "--prompts", 0)


def test_the_figure_shows_the_tables():
    made = measure_lengths(ww.embedded("number"), "number", grid=(17, 40, 100), prompts=8)
    left, right = length_curves(made, "number").axes
    drawn = {line.get_gid(): line.get_xydata() for line in (*left.lines, *right.lines)}
    for hops, name in enumerate(("all", "hops 1", "hops 2", "hops 3", "hops 4")):
        rows = made.accuracy.query(f"hops == {hops}")
        assert (drawn[name] == rows[["length", "accuracy"]].to_numpy()).all()
    assert drawn["published"].tolist() == [[17, 1.0], [40, 0.9988], [100, 0.7868]]
    assert "all, published, interpolated" in {line.get_label() for line in left.lines}
    finite = made.loss["measured"] < float("inf")
    assert (drawn["measured"][finite, 1] == made.loss["measured"][finite]).all()


def test_published_accuracy_is_that_of_figure_5b_at_added_tokens():
    figure = pd.read_csv(FIGURE_5B).set_index("added_tokens")
    for task in ("number", "letter"):
        assert published_accuracy(task, figure.index + 17) == {at + 17: share for at, share in figure[task].items()}
    assert published_accuracy("letter", (5017, 5018, 16)) == {5017: 0.484}
    between = published_accuracy("number", (1000,))[1000]  # 983 added tokens: 83 % of the way from 900 to 1,000
    assert between == pytest.approx(0.17 * 0.227 + 0.83 * 0.202, abs=1e-4)
    assert published_accuracy("distance", GRID) == {}
