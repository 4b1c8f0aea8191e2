"""Roles of heads whose weights were set by hand."""

from __future__ import annotations

import pytest
import torch

import wherewhat as ww
from wherewhat.studies.multihop.roles import accuracy_without, attention_on_path, roles
from wherewhat.tasks import Letter, Number
from wherewhat.theory.constructions import t_index, t_retrieval


def scores_of(model, tokens: torch.Tensor) -> torch.Tensor:
    scores = ww.score(ww.capture(model, tokens))
    return torch.stack([scores.positional, scores.symbolic], -1).mean(0)


@pytest.mark.slow
def test_a_head_built_as_index_is_found() -> None:
    task = Number()
    model, sequences = t_index(task).transformer, task.sample(400)
    found = roles(model, sequences, scores_of(model, sequences.tokens)).iloc[0]
    assert found["role"] == "Index"
    assert found["last_next"] > 0.95
    assert found["hop_next"] > 0.95
    # One layer makes one hop: what it knows is lost with it, the longer paths it never knew.
    assert found["lost_zero_1"] > 0.9
    assert abs(found["lost_zero_4"]) < 0.2


@pytest.mark.slow
def test_a_head_built_as_retrieval_is_found() -> None:
    task = Letter()
    model, sequences = t_retrieval(task).transformer, task.sample(400)
    found = roles(model, sequences, scores_of(model, sequences.tokens)).iloc[0]
    assert found["role"] == "Retrieval"
    assert found["last_next"] > 0.95
    assert found["hop_next"] > 0.95
    assert found["lost_mean_1"] > 0.5


def test_attention_on_the_path_is_what_softmax_gives() -> None:
    """Against rows read off one at a time."""
    task = Letter()
    model, sequences = t_retrieval(task).transformer, task.sample(40, seed=2)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.02 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    found = attention_on_path(model, sequences, first=0)[0, 0]
    expected = torch.zeros(3)
    for row in range(len(sequences)):
        attention = ww.capture(model, sequences.tokens[row : row + 1]).attention_rows(0)[0, 0]
        path = [place for place in sequences.path[row].tolist() if place >= 0]
        expected += torch.tensor([attention[path[0]], attention[path[1]], sum(attention[place] for place in path[2:])])
    assert torch.allclose(found, expected / len(sequences), atol=1e-5)


def test_ablation_leaves_the_model_as_it_was() -> None:
    task = Number()
    model, sequences = t_index(task).transformer, task.sample(50)
    before = model(sequences.tokens)
    accuracy_without(model, sequences, 0, 0, "zero")
    assert torch.equal(model(sequences.tokens), before)
