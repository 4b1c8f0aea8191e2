"""Every theorem holds; a construction that is broken does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from wherewhat.studies import verify as study
from wherewhat.studies.checks import PureHead
from wherewhat.studies.verify import claim
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


def test_every_theorem_holds(run):
    code, out, err = run("verify", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert len(rows) == len(study.CLAIMS)
    for row in rows:
        assert list(row) == ["theorem", "statement", "method", "instances", "margin", "passed"]
        assert row["passed"] is True
        assert row["instances"] > 50
        assert row["margin"] > -1e-6


@pytest.mark.parametrize("broken", [other_sign, other_angle, too_hot])
@pytest.mark.parametrize("name", SMALL)
def test_a_broken_construction_answers_wrong(name, broken):
    row = claim(name).verify(subjects=[broken(SMALL[name])])
    assert not row.passed
    assert row.margin < 0


@pytest.mark.parametrize("name", SMALL)
def test_what_holds_before_it_is_broken(name):
    assert claim(name).verify(seed=1, subjects=[SMALL[name]]).passed


@pytest.mark.parametrize("name", SMALL)
def test_less_than_the_temperature_breaks_the_promise_of_attention(name):
    assert claim("temperature").verify(subjects=[SMALL[name]]).passed
    assert not claim("temperature").verify(subjects=[too_hot(SMALL[name])]).passed


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
def test_a_head_that_can_refutes_that_none_can(name, able):
    row = claim(name).verify(subjects=[able])
    assert not row.passed
    assert row.margin < 0


def test_h_sym_cannot_tell_which_match_came_last():
    task = Induction(6, 3, 4)
    row = claim("no-pure-induction").verify(subjects=[PureHead(h_sym(task).transformer, task, "what")])
    assert row.passed
    assert "wrong" in row.shown


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
    assert not claim(name).verify(subjects=[broken]).passed


def test_the_table_shows_witnesses_and_ends_with_1_if_something_fails(run, refuse, monkeypatch):
    code, out, _ = run("verify", "--only", "no-symbolic-index", "--only", "h-sym")
    assert code == 0
    assert "To a head that looks at what these are one" in out
    assert "2 of 2 hold." in out
    refuse("no theorem 'nonsense': exclusion, ", "verify", "--only", "nonsense")
    wrong = replace(claim("h-pos"), subjects=lambda _: [other_sign(SMALL["h-pos"])])
    monkeypatch.setattr(study, "CLAIMS", [wrong])
    code, out, _ = run("verify")
    assert code == 1
    assert "0 of 1 hold; not h-pos." in out
