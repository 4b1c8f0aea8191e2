"""What is measured on runs of encodings, against autograd and plain definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from wherewhat.lab.classifier import Classifier, Design
from wherewhat.lab.encodings import NOPE, Encoding
from wherewhat.studies.encodings.signals import diagonal_means, of_logits, of_stream, pulls


def test_the_pull_is_the_gradient_of_a_bias_by_distance() -> None:
    """Compared with finite differences of the loss when a constant is added to all logits at one distance."""
    model = Classifier(Design(20, 5, 8, Encoding(bias="t5-plain"), 2, 2, 16, 16), seed=1).double()
    draw = torch.Generator().manual_seed(0)
    tokens, answers = torch.randint(1, 20, (3, 8), generator=draw), torch.randint(5, (3,), generator=draw)
    stream, reading = model.begin(tokens)

    def loss(layer: int, head: int, distance: int, extra: float) -> float:
        state = stream
        for number in range(2):
            block, inputs = model.block(number), model.project(number, state, reading)
            bias = inputs.bias.expand(-1, -1, -1, -1).clone()
            if number == layer:
                bias[:, head].diagonal(distance, -2, -1).add_(extra)
            state = block.mlp(state + block.attention_out(inputs._replace(bias=bias).attended()))
        return float(torch.nn.functional.cross_entropy(model.finish(state, reading), answers, reduction="sum"))

    with torch.no_grad():
        slopes = [
            (loss(1, 0, distance, 1e-5) - loss(1, 0, distance, -1e-5)) / 2e-5 / (8 - abs(distance)) / 3
            for distance in range(-7, 8)
        ]
    assert float(pulls(model, tokens, answers)["pull"][1, 0]) == pytest.approx(np.linalg.norm(slopes), rel=1e-4)


@pytest.mark.parametrize("encoding", [Encoding(rotary=True), Encoding(bias="alibi"), NOPE])
def test_the_seed_is_the_gradient_of_a_gain_of_positions(encoding: Encoding) -> None:
    """Compared with finite differences: what rotation and bias add to the logits of a head, times a gain near 1."""
    model = Classifier(Design(20, 5, 8, encoding, 2, 2, 16, 16), seed=1).double()
    draw = torch.Generator().manual_seed(0)
    tokens, answers = torch.randint(1, 20, (3, 8), generator=draw), torch.randint(5, (3,), generator=draw)
    tokens[0, 6:] = 0

    def losses(layer: int, head: int, gain: float) -> torch.Tensor:
        state, reading = model.begin(tokens)
        for number in range(2):
            block, inputs = model.block(number), model.project(number, state, reading)
            plain = model.project(number, state, reading, positions=False)
            content, whole = (one._replace(mask=None).logits() for one in (plain, inputs))
            logits = whole.clone()
            if number == layer:
                logits[:, head] = content[:, head] + gain * (whole - content)[:, head]
            zero = torch.zeros_like(inputs.queries)
            attended = inputs._replace(queries=zero, bias=logits).attended()
            state = block.mlp(state + block.attention_out(attended))
        return torch.nn.functional.cross_entropy(model.finish(state, reading), answers, reduction="none")

    found = pulls(model, tokens, answers)
    for layer, head in ((0, 1), (1, 0)):
        with torch.no_grad():
            slopes = (losses(layer, head, 1 + 1e-5) - losses(layer, head, 1 - 1e-5)) / 2e-5
        # 2e-11 is the rounding error of a difference of losses
        assert float(found["seed"][layer, head]) == pytest.approx(float(slopes.mean().abs()), rel=1e-4, abs=1e-10)
        agreement = float(slopes.mean().abs() / slopes.abs().mean())
        if encoding == NOPE:
            assert found["seed_agreement"].isnan().all()
        else:
            assert float(found["seed_agreement"][layer, head]) == pytest.approx(agreement, rel=1e-3)


def test_the_stream_before_the_first_layer_is_words_and_positions() -> None:
    """Random words of variance 1 each, and sinusoids of mean square 1/2: both shares are known."""
    design = Design(2000, 5, 40, Encoding(added="sinusoidal"), 2, 2, 64, 16)
    tokens = torch.randint(1, 2000, (200, 40), generator=torch.Generator().manual_seed(0))
    model = Classifier(design, seed=1)
    places = model.add_position(0, torch.zeros(1, 40, 64))[0]
    variance = (places - places.mean(0)).square().mean()
    found = of_stream(model, tokens)
    assert float(found["position_share"][0]) == pytest.approx(float(variance / (1 + variance)), rel=0.05)
    assert float(found["position_cosine"][0]) > 0.95
    without = of_stream(Classifier(replace(design, encoding=NOPE), seed=1), tokens)
    assert without["position_share"].abs().max() < 0.01
    assert without["position_cosine"].isnan().all()


def test_identical_sequences_agree() -> None:
    model = Classifier(Design(20, 5, 8, Encoding(rotary=True), 2, 2, 16, 16), seed=1)
    tokens = torch.randint(1, 20, (1, 8)).expand(4, -1)
    assert torch.allclose(
        pulls(model, tokens, torch.zeros(4, dtype=torch.long))["agreement"], torch.ones(2, 2), atol=1e-4
    )


def test_condition_numbers_are_those_of_the_models_own_logits() -> None:
    model = Classifier(Design(20, 5, 8, NOPE, 1, 2, 16, 16), seed=1)
    tokens = torch.randint(1, 20, (1, 12), generator=torch.Generator().manual_seed(0))
    seen = []
    model(tokens, watch=lambda _, inputs: seen.append(inputs.logits()[0].detach().double()))
    values = torch.linalg.svdvals(seen[0])
    assert torch.allclose(of_logits(model, tokens)["condition"][0].double(), values[:, 0] / values[:, 7], rtol=1e-2)
    assert torch.equal(diagonal_means(torch.eye(3)), torch.tensor([0.0, 0, 1, 0, 0]))
