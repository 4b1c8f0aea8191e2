"""Every theorem holds; a broken construction violates it."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

import wherewhat as ww
from wherewhat.studies.theorems import verify as study
from wherewhat.studies.theorems.checks import PureHead
from wherewhat.studies.theorems.verify import find_theorem
from wherewhat.tasks import Index, Induction, Letter, Number, Retrieval
from wherewhat.theory.constructions import Construction, forced_angle, h_pos, h_sym, t_index, t_retrieval, two_angles

SMALL = {
    "h-pos": h_pos(Index(8)),
    "h-sym": h_sym(Retrieval(8, 8, 4)),
    "two-angles": two_angles(Induction(8, 4, 4)),
    "forced-angle": forced_angle(Retrieval(8, 8, 4)),
    "t-index": t_index(Number(letters=20)),
    "t-retrieval": t_retrieval(Letter(letters=6, digits=2)),
}


def other_sign(made: Construction) -> Construction:
    return replace(made, head=replace(made.head, keys=-made.head.keys))


def other_angle(made: Construction) -> Construction:
    return replace(made, head=replace(made.head, angles=tuple(angle + 0.7 for angle in made.head.angles or (0.0,))))


def too_hot(made: Construction) -> Construction:
    return replace(made, gap=20 * made.gap)


@pytest.mark.slow
def test_every_theorem_holds(run):
    code, out, err = run("verify", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert len(rows) == len(study.THEOREMS)
    for row in rows:
        assert list(row) == ["name", "theorem", "form", "statement", "method", "instances", "margin", "passed", "shown"]
        assert row["passed"] is True
        assert row["instances"] > 50
        assert row["margin"] > -1e-6


@pytest.mark.slow
def test_a_saved_verification_is_the_one_returned(tmp_path):
    threads = torch.get_num_threads()
    found = ww.verify(["h-pos", "no-symbolic-index"], seed=3, folder=tmp_path)
    loaded = ww.Verification.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.rows, found.rows)
    assert loaded.about == found.about
    assert found.passed
    assert list(loaded) == [find_theorem(name).verify(3) for name in ("h-pos", "no-symbolic-index")]
    assert torch.get_num_threads() == threads


@pytest.mark.slow
@pytest.mark.parametrize("broken", [other_sign, other_angle, too_hot])
@pytest.mark.parametrize("name", SMALL)
def test_a_broken_construction_answers_wrong(name, broken):
    row = find_theorem(name).verify(subjects=[broken(SMALL[name])])
    assert not row.passed
    assert row.margin < 0


@pytest.mark.parametrize("name", SMALL)
def test_the_same_construction_unbroken_holds(name):
    assert find_theorem(name).verify(seed=1, subjects=[SMALL[name]]).passed


@pytest.mark.parametrize("name", SMALL)
def test_a_lower_inverse_temperature_breaks_the_promised_attention(name):
    assert find_theorem("temperature").verify(subjects=[SMALL[name]]).passed
    assert not find_theorem("temperature").verify(subjects=[too_hot(SMALL[name])]).passed


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("no-symbolic-index", PureHead(SMALL["h-pos"].transformer, SMALL["h-pos"].task, "what")),
        ("no-positional-retrieval", PureHead(SMALL["h-sym"].transformer, SMALL["h-sym"].task, "where")),
        ("no-pure-induction", PureHead(SMALL["two-angles"].transformer, SMALL["two-angles"].task, "what")),
        ("no-pure-induction", PureHead(SMALL["two-angles"].transformer, SMALL["two-angles"].task, "where")),
        ("no-pure-hop", PureHead(SMALL["t-index"].transformer, SMALL["t-index"].task, "what")),
    ],
)
def test_a_head_that_solves_the_task_refutes_that_none_does(name, able):
    row = find_theorem(name).verify(subjects=[able])
    assert not row.passed
    assert row.margin < 0


def test_h_sym_does_not_know_which_match_came_last():
    task = Induction(6, 3, 4)
    row = find_theorem("no-pure-induction").verify(subjects=[PureHead(h_sym(task).transformer, task, "what")])
    assert row.passed
    assert "wrong" in row.shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("u-shape", h_pos(Index(32), angle=0.5)),
        ("u-shape", other_sign(h_pos(Index(9)))),
        ("inverse-u", forced_angle(Retrieval(9, 9, 1), angle=1.0)),
        ("inverse-u", other_angle(forced_angle(Retrieval(9, 9, 1)))),
        ("index-bound", other_angle(t_index(Number(5, 3, letters=1)))),
        ("index-bound", other_sign(t_index(Number(5, 3, letters=1)))),
        ("retrieval-bound", other_angle(t_retrieval(Letter(2, 1, 1, letters=3, digits=1)))),
        ("retrieval-bound", other_sign(t_retrieval(Letter(2, 1, 1, letters=3, digits=1)))),
        ("printed-bounds", t_index(Number(2, 2, 1, letters=1), angle=0.1)),
    ],
)
def test_shapes_and_bounds_need_their_head(name, broken):
    assert not find_theorem(name).verify(subjects=[broken]).passed


def test_the_table_shows_witnesses_and_ends_with_1_if_something_fails(run, refuse, monkeypatch):
    code, out, _ = run("verify", "--only", "no-symbolic-index", "--only", "h-sym")
    assert code == 0
    assert "A head that looks at what cannot distinguish these" in out
    assert "2 of 2 hold." in out
    refuse("no theorem 'nonsense': exclusion, ", "verify", "--only", "nonsense")
    wrong = replace(find_theorem("h-pos"), subjects=lambda _: [other_sign(SMALL["h-pos"])])
    monkeypatch.setattr(study, "THEOREMS", [wrong])
    code, out, _ = run("verify")
    assert code == 1
    assert "0 of 1 hold; failed: h-pos." in out
