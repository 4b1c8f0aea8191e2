"""Stretched logits against those of prompts that really are longer."""

from __future__ import annotations

import pytest
import torch

import tiny
import wherewhat as ww
from wherewhat.core.stretch import stretch_logits
from wherewhat.errors import NotMeasurable
from wherewhat.lab import Shape, Transformer
from wherewhat.studies.lengths.hop_lengths import answer
from wherewhat.studies.lengths.loss_length import loss_length, predict_attention
from wherewhat.tasks import Number

SHORT, LONG = 12, 90


@pytest.fixture
def model():
    """One layer: contents do not depend on their context, so a stretch must be exact."""
    made = Transformer(Shape(vocabulary=30, layers=1, heads=2, width=32, hidden=8), seed=3)
    with torch.no_grad():
        made.blocks[0].inward.weight.mul_(40)
    return made.eval()


def prompts(length: int, start: int) -> torch.Tensor:
    """Different first and last tokens, and between them as many tokens 7 as needed."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(8, 30, (4, SHORT), generator=draw)
    middle = torch.full((4, length - SHORT + 2), 7)
    return torch.cat([ends[:, :start], middle, ends[:, start + 2 :]], 1)


@pytest.mark.parametrize("start", [0, 3])
def test_every_length_is_what_a_forward_pass_gives(model, start):
    short = prompts(SHORT, start)
    far = stretch_logits(ww.capture(model, short), 0, short == 7, LONG, start)
    for length in (SHORT, SHORT + 1, 40, LONG):
        extra = length - SHORT
        rows = ww.capture(model, prompts(length, start)).attention_rows(0)
        for token in (0, start + 3, SHORT - 1):
            at = token if token < start else token + extra
            found = far.attention(torch.full((4,), token))[..., extra]
            if start or token:  # without a start, token 0 is one of the neutral ones
                assert (found - rows[..., at]).abs().max() < 1e-5


def test_discrepancy_is_the_logit_less_its_best_rival(model):
    short = prompts(SHORT, 2)
    far = stretch_logits(ww.capture(model, short), 0, short == 7, LONG, start=2)
    long = ww.capture(model, prompts(LONG, 2)).placements(0).logits()
    asked = LONG - 3  # token SHORT - 3 of the short prompt
    others = long.clone()
    others[..., asked] = -torch.inf
    expected = long[..., asked] - others.amax(-1)
    found = far.discrepancy(torch.full((4,), SHORT - 3))[..., -1]
    assert (found - expected).abs().max() < 1e-4


def test_a_positional_bias_is_refused():
    model = tiny.tiny_model("bloom", 0)
    ids = torch.randint(10, 40, (1, 10))
    with pytest.raises(NotMeasurable, match="cannot be stretched"):
        stretch_logits(ww.capture(model, ids), 0, torch.ones(1, 10, dtype=torch.bool), 20)


@pytest.mark.slow
def test_predictions_for_the_first_layer_are_the_measured_values():
    """Contents of layer 0 do not depend on the context, and neutral contents are a fair sample of those added."""
    task, model = Number(), ww.embedded("number")
    sequences = task.sample(64, seed=1)
    predicted = predict_attention(model, task, sequences, longest=200)
    for length in (17, 50, 200):
        looks = answer(model, task.extend(sequences, length - 17, seed=2))["looks"]
        tolerance = 1e-5 if length == 17 else 0.03
        assert (looks[:, 0, 0, 1].mean() - predicted[0, 0, length - 17]).abs() < tolerance


def test_the_loss_length_is_where_attention_falls_below_half():
    lengths, attention = torch.tensor([17, 20, 40]), torch.tensor([0.8, 0.5, 0.3])
    assert loss_length(lengths, attention) == pytest.approx(800**0.5)
    assert loss_length(lengths, torch.tensor([0.5, 0.4, 0.3])) == float("inf")
