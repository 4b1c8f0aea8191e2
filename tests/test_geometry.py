"""Geometry of trained heads against heads set by hand, whose geometry is known; discrepancy against its formula."""

from __future__ import annotations

import math

import pytest
import torch

import wherewhat as ww
from wherewhat.core.discrepancy import index_worst, retrieval_worst
from wherewhat.studies.multihop.figures import discrepancy_figure, geometry_figure
from wherewhat.studies.multihop.geometry import geometry, slope_of_phases
from wherewhat.studies.theorems.discrepancy import INDEX_ANGLE, RETRIEVAL_ANGLE, discrepancy_curves
from wherewhat.tasks import Letter, Number
from wherewhat.theory.constructions import t_index, t_retrieval


def test_index_set_by_hand_has_one_key_and_a_fan_as_wide_as_its_angle() -> None:
    task = Number(letters=20)
    made = t_index(task, angle=0.31)
    (head,) = geometry(made.transformer, task.sample(200)).heads.to_dict("records")
    assert head["frequency"] == head["mean_frequency"] == 1
    assert head["angle"] == head["mean_angle"] == pytest.approx(0.31)
    assert head["concentration"] == pytest.approx(1, abs=1e-5)
    assert head["fan"] == pytest.approx(1, abs=1e-5)
    assert head["slope"] == pytest.approx(1, abs=1e-3)


def test_retrieval_set_by_hand_has_letters_all_around_and_no_fan() -> None:
    """Its queries turn with the letter asked for, which says nothing of the distance."""
    task = Letter()
    (head,) = geometry(t_retrieval(task).transformer, task.sample(400)).heads.to_dict("records")
    assert head["concentration"] < 0.1
    assert head["fan"] < 0.3


@pytest.mark.parametrize("slope", [-3.0, -0.9, 0.0, 0.002, 1.7])
def test_the_slope_of_noisy_phases(slope: float) -> None:
    draw = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 17, (500,), generator=draw)
    noise = 0.3 * torch.randn(500, generator=draw)
    points = torch.polar(torch.rand(500, generator=draw) + 0.5, slope * steps + noise + 1.0)
    found, fan = slope_of_phases(points[:, None], steps)
    assert float(found[0]) == pytest.approx(slope, abs=0.012)
    assert float(fan[0]) == pytest.approx(math.exp(-(0.3**2) / 2), abs=0.03)  # the resultant of normal noise


@pytest.mark.slow
def test_the_trained_models_hold_keys_and_queries_as_published() -> None:
    """Number: aligned keys and a fan in the positional layers 1 to 3; nothing like it in letter."""
    number = geometry(ww.embedded("number"), Number().sample(200))
    positional = number.heads.query("1 <= layer <= 3")
    assert positional["concentration"].min() > 0.99
    assert positional["fan"].min() > 0.97
    assert positional["slope"].between(0.9, 1.1).all()
    assert (positional["mean_frequency"] <= 6).all()
    letter = geometry(ww.embedded("letter"), Letter().sample(200))
    assert letter.heads["concentration"].max() < 0.3
    assert letter.heads["mean_frequency"].between(30, 42).all()
    assert (positional["softmax_mean_frequency"] <= 3).all()  # published: 2, 2, 2
    assert letter.heads["softmax_mean_frequency"].between(30, 46).all()
    use = number.use.query("layer == 1").sort_values("largest")
    assert use["frequency"].iloc[-1] <= 2
    figure = geometry_figure(number, "number")
    (drawn,) = (line for line in figure.axes[0].lines if line.get_gid() == "mean")
    assert drawn.get_xdata().tolist() == number.heads["softmax_mean_frequency"].tolist()


@pytest.mark.slow
def test_heads_really_run_meet_the_worst_case_at_every_length() -> None:
    curves = discrepancy_curves([3, 8, 9, 10, 24, 100, 5000])
    assert (curves["smallest"] <= curves["bound"] + 1e-12).all()
    for row in curves.to_dict("records"):
        at = torch.tensor([row["length"]])
        index = row["mechanism"] == "index"
        worst = index_worst(at, row["angle"]) if index else retrieval_worst(at, row["angle"], 8)
        assert row["smallest"] == pytest.approx(worst.item(), abs=1e-11)
    plateau = curves.query("mechanism == 'index' and length == 3")["printed"].item()
    assert round(plateau, 3) == 0.303  # the figure's, theta 0.8
    assert 1 - math.cos(INDEX_ANGLE) == pytest.approx(plateau)
    far = curves.query(f"mechanism == 'retrieval' and length == 100 and angle == {RETRIEVAL_ANGLE}")["printed"].item()
    assert round(far, 3) == 0.130  # the figure's, theta 0.0027 and 8 letters
    nine = curves.query("mechanism == 'index' and length == 9").to_dict("records")[0]
    assert nine["largest"] > nine["printed"] + 0.05  # as printed, for every input, the bound is false
    ten = curves.query("mechanism == 'retrieval' and length == 10").to_dict("records")[0]
    assert ten["smallest"] > ten["printed"] + 1e-3  # and for Retrieval even for the worst one
    assert len(discrepancy_figure(curves).axes) == 2
