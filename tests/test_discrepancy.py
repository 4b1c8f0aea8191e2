"""By how much the largest logit wins, and what bounds it: against every input, one after another."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wherewhat.core.discrepancy import (
    discrepancy,
    index_bound,
    index_worst,
    retrieval_bound,
    retrieval_worst,
    temperature,
)
from wherewhat.errors import BadInput


@given(st.lists(st.tuples(st.floats(-9, 9, width=32), st.integers(0, 3)), min_size=1, max_size=9))
def test_the_winner_is_compared_with_the_best_of_another_label(keys):
    top, label = max(keys, key=lambda key: key[0])
    winners = [number for logit, number in keys if logit == top]
    rivals = [logit for logit, number in keys if number != label]
    logits, labels = torch.tensor([key[0] for key in keys]), torch.tensor([key[1] for key in keys])
    expected = top - max(rivals) if rivals else math.inf
    if len(set(winners)) > 1:
        expected = 0.0
    assert discrepancy(logits, labels).item() == pytest.approx(expected)


def test_without_labels_every_other_position_competes():
    rows = torch.randn(4, 3, 7, generator=torch.Generator().manual_seed(0))
    best = rows.sort(-1, descending=True).values
    assert torch.equal(discrepancy(rows), best[..., 0] - best[..., 1])
    assert discrepancy(torch.zeros(1)) == math.inf


@given(st.lists(st.floats(0.3, 20), min_size=1, max_size=20), st.sampled_from([0.6, 0.75, 0.99]))
def test_the_temperature_gives_the_weight_it_promises(behind, weight):
    keys = len(behind) + 1
    logits = torch.tensor([0.0, *(-distance for distance in behind)], dtype=torch.float64)
    beta = temperature(min(behind), keys, weight)
    assert (beta * logits).softmax(-1)[0] >= weight - 1e-12
    level = torch.tensor([0.0] + [-0.3] * (keys - 1), dtype=torch.float64)
    assert (temperature(0.3, keys, weight) * level).softmax(-1)[0].item() == pytest.approx(weight)


def test_no_temperature_helps_a_logit_that_is_not_ahead():
    with pytest.raises(BadInput, match="not the largest"):
        temperature(0.0, keys=4)


def index_discrepancies(length: int, angle: float) -> list[float]:
    """Of every distance that the last of n tokens may ask for."""
    found = []
    for asked in range(length):
        logits = sorted(math.cos((back - asked) * angle) for back in range(length))
        found.append(logits[-1] - logits[-2])
    return found


def retrieval_discrepancies(length: int, angle: float, letters: int) -> list[float]:
    """Of every row of first letters in which the one asked for, 0, occurs and another does."""
    omega, found = 2 * math.pi / letters, []
    for row in itertools.product(range(letters), repeat=length):
        if 0 in row and set(row) != {0}:
            logits = [(math.cos(letter * omega + back * angle), letter) for back, letter in enumerate(row)]
            top, winner = max(logits)
            assert winner == 0
            found.append(top - max(logit for logit, letter in logits if letter != 0))
    return found


@pytest.mark.parametrize("angle", [0.8, 1.0, 0.05, 2.5])
def test_the_worst_input_of_index(angle):
    lengths = torch.arange(2, 40)
    worst = [min(index_discrepancies(length, angle)) for length in lengths.tolist()]
    assert index_worst(lengths, angle).tolist() == pytest.approx(worst, abs=1e-12)


@pytest.mark.parametrize(("angle", "letters"), [(0.0027, 4), (0.1, 4), (0.15, 3), (0.0, 5)])
def test_the_worst_input_of_retrieval(angle, letters):
    lengths = torch.arange(2, 7)
    assert 2 * 6 * angle < 2 * math.pi / letters
    worst = [min(retrieval_discrepancies(length, angle, letters)) for length in lengths.tolist()]
    assert retrieval_worst(lengths, angle, letters).tolist() == pytest.approx(worst, abs=1e-12)
    assert (retrieval_worst(lengths, angle, letters) <= retrieval_bound(lengths, angle, letters) + 1e-12).all()


@given(st.floats(1e-3, 2 * math.pi))
def test_the_worst_input_of_index_is_below_its_bound(angle):
    lengths = torch.arange(2, 400)
    assert (index_worst(lengths, angle) <= index_bound(lengths, angle) + 1e-12).all()


def test_figure_5a():
    plateau = index_bound(torch.arange(2, 12), 0.8)
    assert plateau[:7].tolist() == pytest.approx([0.303] * 7, abs=5e-4)
    assert (plateau[6:].diff() < 0).all()
    curve = retrieval_bound(torch.tensor([0, 100]), 0.0027, letters=8, printed=True)
    assert curve.tolist() == pytest.approx([0.293, 0.130], abs=5e-4)
    assert retrieval_bound(torch.arange(9), 0.0, letters=8).tolist() == pytest.approx([1 - math.cos(math.pi / 4)] * 9)


def test_the_printed_bounds_are_exceeded():
    largest = max(index_discrepancies(9, 0.8))
    assert (largest, index_bound(torch.tensor(9), 0.8).item()) == pytest.approx((0.3033, 0.2437), abs=5e-5)
    assert max(retrieval_discrepancies(2, 0.0027, letters=8)) == pytest.approx(2, abs=1e-4)
    ten = torch.tensor(10)
    both = retrieval_worst(ten, 0.0027, 8), retrieval_bound(ten, 0.0027, 8, printed=True)
    assert [value.item() for value in both] == pytest.approx([0.2757, 0.2741], abs=5e-5)
