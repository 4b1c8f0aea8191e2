"""All members at once, each as if alone."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

import wherewhat as ww
from wherewhat.errors import BadInput
from wherewhat.lab.ensemble import RECIPE, SHARPNESS, Ensemble, train_ensemble
from wherewhat.lab.train import Recipe
from wherewhat.tasks import Index, Induction, LookupTask, Retrieval


def short(steps: int) -> Recipe:
    return Recipe(steps, 256, 3e-2, betas=(0.9, 0.999), warmup=0, schedule="cosine")


ANGLES = {1: [[1.0], [0.1], [0.01]], 2: [[0.0, 0.3], [0.0, 0.03]]}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "planes"), [(Index(), 1), (Retrieval(), 1), (Induction(), 2)])
def test_every_member_learns_what_it_would_have_learnt_alone(task: LookupTask, planes: int) -> None:
    angles, seeds = torch.tensor(ANGLES[planes], dtype=torch.float64), (3, 8)
    together = train_ensemble(Ensemble(task, angles, seeds, dtype=torch.float64), short(200))
    for row in (0, len(angles) - 1):
        alone = train_ensemble(Ensemble(task, angles[row : row + 1], seeds[1:], dtype=torch.float64), short(200))
        for name in ("keys", "queries", "values"):
            one, among = getattr(alone, name)[0, ..., 0], getattr(together, name)[1, ..., row]
            torch.testing.assert_close(among, one, rtol=0, atol=1e-8)
            assert (one - getattr(together, name)[0, ..., row]).abs().max() > 1e-3  # another seed learns otherwise


@pytest.mark.parametrize(("task", "planes"), [(Index(5, 4), 1), (Induction(5, 2, 3), 2)])
def test_answers_are_those_of_attention_written_out_with_complex_numbers(task: LookupTask, planes: int) -> None:
    angles = torch.tensor(ANGLES[planes], dtype=torch.float64)
    heads = Ensemble(task, angles, (0, 1), spread=1.0, dtype=torch.float64)
    tokens = task.sample(6).tokens
    logits = heads(tokens.expand(2, -1, -1)).detach()
    for seed, row, prompt in [(0, 0, 0), (1, 1, 3), (1, 0, 5)]:
        ids = tokens[prompt].tolist()
        scores = []
        for place, number in enumerate(ids):
            score = 0.0
            for plane, angle in enumerate(angles[row].tolist()):
                kx, ky = heads.keys[seed, number, 2 * plane : 2 * plane + 2, row].tolist()
                qx, qy = heads.queries[seed, ids[-1] - task.contents, 2 * plane : 2 * plane + 2, row].tolist()
                key = complex(kx, ky) * cmath.exp(1j * angle * place)
                query = complex(qx, qy) * cmath.exp(1j * angle * task.length)
                score += (query * key.conjugate()).real
            scores.append(math.exp(score))
        for answer in range(task.answers):
            said = [heads.values[seed, number, answer, row].item() for number in ids]
            mean = sum(score * word for score, word in zip(scores, said, strict=True)) / sum(scores)
            assert float(logits[seed, prompt, answer, row]) == pytest.approx(SHARPNESS * mean, abs=1e-12)


def test_a_trace_holds_the_attention_of_every_member() -> None:
    heads = Ensemble(Retrieval(), torch.tensor([[0.0, 0.7], [0.02, 0.1]]), range(3), spread=1.5)
    tokens = Retrieval().sample(4).tokens
    trace = heads.trace(tokens)
    expected = heads.attention(tokens.expand(3, -1, -1)).detach()  # S B T A
    for row in range(2):
        torch.testing.assert_close(trace.attention_rows(row), expected[..., row].movedim(0, 1), rtol=0, atol=2e-6)
    assert ww.score(trace).positional.shape == (4, 2, 3)


@pytest.mark.slow
def test_a_fast_head_learns_to_index_and_a_slow_one_to_retrieve() -> None:
    angles = torch.tensor([[0.7], [0.002]])
    for task, fast, slow in ((Index(8, 8), True, False), (Retrieval(8, 8, 8), False, True)):
        accuracy = train_ensemble(Ensemble(task, angles, (0,)), short(400)).accuracy(task.sample(1024, 5))[0]
        assert (accuracy > 0.95).tolist() == [fast, slow]


@pytest.mark.parametrize(("symbols", "turn", "solved"), [(16, 0.98, True), (8, 0.98, True), (8, 2.5, False)])
def test_one_angle_is_enough_for_partial_induction_if_it_is_sharp(symbols: int, turn: float, solved: bool) -> None:
    """Symbols stand around a circle; while length * angle stays below half their distance, a match is always closer
    to the query than anything else, and the later it stands the closer. Training needs not find it."""
    task = Induction(symbols=symbols)
    angle = turn * math.pi / symbols / task.length
    head = Ensemble(task, torch.tensor([[angle]], dtype=torch.float64), [0], dtype=torch.float64)
    around = torch.arange(symbols) * 2 * math.pi / symbols
    head.keys, head.queries = torch.zeros_like(head.keys), torch.zeros_like(head.queries)
    for table, turns in ((head.keys, around.repeat_interleave(task.attributes)), (head.queries, around - angle / 2)):
        table[0, : len(turns), :, 0] = torch.stack([turns.cos(), turns.sin()], 1) * 1e3
    head.values = torch.zeros_like(head.values)
    head.values[0, torch.arange(task.contents), task.carried, 0] = 1.0
    accuracy = float(head.accuracy(task.sample(4096)))
    assert (accuracy == 1.0) == solved


def test_the_recipe_and_what_makes_no_ensemble() -> None:
    assert (RECIPE.steps, RECIPE.batch, RECIPE.rate, RECIPE.rate_at(0)) == (3000, 256, 3e-2, 3e-2)
    assert RECIPE.rate_at(1500) == pytest.approx(1.5e-2)
    with pytest.raises(BadInput, match="at least one angle and one seed"):
        Ensemble(Index(), torch.zeros(0, 1), (0,))
