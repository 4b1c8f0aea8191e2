"""The embedded models as the demo shows them, and handmade heads where theory puts them."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

import brute_force
import handmade
import wherewhat as ww
from wherewhat.core.kinds import kind
from wherewhat.lab import to_gptj
from wherewhat.prompts.multihop import prompts_of
from wherewhat.tasks import TASKS


@pytest.mark.parametrize("seed", range(3))
def test_the_forward_pass_gives_the_closed_form(seed):
    made, ids = handmade.build(seed), handmade.prompts(3, seed)
    trace = ww.capture(made.model, ids)
    for head in range(len(handmade.HEADS)):
        table = torch.stack([made.table(prompt)[head, :-1, :-1] for prompt in ids])
        assert (trace.placement(0, head) - table).abs().max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_head_is_what_it_was_built_to_be(seed):
    made, ids = handmade.build(seed), handmade.prompts(16, seed)
    scores, theory = ww.score(ww.capture(made.model, ids)), torch.stack([made.theory(prompt) for prompt in ids]).mean(0)
    found = torch.stack([scores.positional, scores.symbolic], -1).mean(0)[0]
    assert (found - theory).abs().max() < 1e-4
    assert [kind(*pair) for pair in found.tolist()] == ["where", "what", "mixed", "unfocused"]


@pytest.mark.slow
def test_the_demo_shows_what_the_embedded_models_learnt(run, tmp_path):
    code, out, err = run("demo", "--prompts", 4, "-o", tmp_path)
    assert code == 0
    assert "number: from an integer m" in out
    assert "4 of 4 answers correct" in out
    assert "report.html in a browser" in " ".join(err.split())
    assert "number, learning" in (tmp_path / "report.html").read_text()
    assert "wherewhat demo --prompts 4 --seed 0" in (tmp_path / "report.html").read_text()
    drawn = tmp_path / "plane.png"
    code, _, _ = run("plot", tmp_path / "number", "--figure", "plane-projection", "--layer", 1, "-o", drawn)
    assert code == 0
    assert drawn.exists()
    warnings = json.loads((tmp_path / "number" / "profile.json").read_text())["warnings"]
    assert not any("sink" in warning for warning in warnings)  # an answer that draws all attention is none
    number, letter = (pd.read_parquet(tmp_path / name / "heads.parquet") for name in ("number", "letter"))
    assert list(number["kind"][1:4]) == ["where"] * 3
    assert list(number["kind"][5:]) == ["what"] * 7
    assert set(letter["kind"]) == {"what"}
    code, out, _ = run("demo", "--prompts", 4, "-o", tmp_path, "--json")
    answer = json.loads(out)
    assert answer["letter"]["accuracy"]["right"] == 4
    assert answer["number"]["heads"][1]["positional"] == number["positional"][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["number", "letter"])
def test_profiles_of_embedded_models_are_those_of_the_published_procedure(name):
    task = TASKS[name]()
    sequences = task.sample(1, seed=3)
    (prompt,) = prompts_of(task, sequences)
    heads = ww.profile(ww.embedded(name), [prompt]).heads
    model = to_gptj(ww.embedded(name))
    model.set_attn_implementation("eager")
    expected = brute_force.scores(model, sequences.tokens, list(prompt.blocks), [1e-4])[1e-4]
    for axis, scores in zip(("positional", "symbolic"), expected, strict=True):
        assert abs(heads[axis] - scores.flatten().numpy()).max() < 1e-4


def test_help_shows_an_example_and_bad_input_exits_with_2(run, refuse):
    assert "wherewhat demo --prompts 200" in run("demo", "--help")[1]
    code, out, err = run("demo", "--prompts", 0)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
