"""Heads ablated from a shared prefix against plain runs with the head's weights set to zero."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from wherewhat.core.deposit import deposit_of
from wherewhat.lab.classifier import Classifier, Design
from wherewhat.lab.fit import batches, fit, held_out, learn, pieces
from wherewhat.lab.train import Recipe
from wherewhat.studies.encodings.ablation import ablate_heads, head_means
from wherewhat.studies.encodings.settings import ENCODINGS, FLAWED, SIZES, EncodingSetting, settings
from wherewhat.tasks import Count, Distance

RECIPE = Recipe(
    steps=40,
    batch=64,
    rate=3e-3,
    betas=(0.9, 0.999),
    decay=1e-5,
    warmup=2,
    schedule="cosine",
    clip=math.inf,
    dropout=0.0,
)
TASK = Distance(vocabulary=20, side=2, middle=4, tokens=10, samples=None)


@pytest.fixture(scope="module", params=["rope", "mla", "alibi", "rope + sinusoidal", "quirky"])
def trained(request) -> Classifier:
    """A model that has learnt something, so that heads matter."""
    name = request.param
    design = EncodingSetting(
        "rope" if name == FLAWED else name, "distance", 0, FLAWED if name == FLAWED else "clean"
    ).design(replace(SIZES["small"], layers=2, heads=4, width=32, hidden=32))
    design = replace(design, vocabulary=TASK.vocabulary, classes=TASK.classes, tokens=TASK.tokens)
    return fit(Classifier(design), TASK, RECIPE).eval()


def plain_accuracy(model: Classifier, tokens: Tensor, answers: Tensor) -> float:
    with torch.no_grad():
        return float((model(tokens).argmax(-1) == answers).float().mean())


@pytest.mark.slow
def test_ablation_is_a_plain_run_without_the_head(trained: Classifier) -> None:
    tokens, answers = held_out(TASK, RECIPE, 300)
    before = copy.deepcopy(trained.state_dict())
    found = ablate_heads(trained, tokens, answers)
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    assert float(found.whole) == pytest.approx(plain_accuracy(trained, tokens, answers))
    width = trained.design.head_dim
    means = own_means(trained, tokens)
    for layer in range(2):
        for head in range(4):
            other = copy.deepcopy(trained)
            outward, columns = other.block(layer).attention_out, slice(head * width, (head + 1) * width)
            share = outward.weight.data[:, columns] @ means[layer, columns]
            outward.weight.data[:, columns] = 0
            assert float(found.zero[layer, head]) == pytest.approx(plain_accuracy(other, tokens, answers), abs=1e-6)
            outward.bias.data += share
            assert float(found.mean[layer, head]) == pytest.approx(plain_accuracy(other, tokens, answers), abs=1e-6)
    assert (found.zero < found.whole - 0.02).any()  # some head mattered


def own_means(model: Classifier, tokens: Tensor) -> Tensor:
    """What each head brings on average, sequence by sequence without padding where it is masked."""
    brought: list[list[Tensor]] = [[], []]
    for row in tokens:
        row = row if model.design.unmasked else row[row != 0]
        with torch.no_grad():
            model(row[None], watch=lambda layer, asked: brought[layer].append(asked.attended()[0]))
    return torch.stack([torch.cat(some).mean(0) for some in brought])


@pytest.mark.slow
def test_means_are_over_tokens_that_count(trained: Classifier) -> None:
    tokens, answers = held_out(TASK, RECIPE, 100)
    assert torch.allclose(head_means(trained, tokens, answers).flatten(1), own_means(trained, tokens), atol=1e-5)


def test_measures_of_a_deposit() -> None:
    alone = deposit_of(torch.tensor([[0.0, 0.5], [-0.1, 0.0]]))
    assert [float(part) for part in alone] == pytest.approx([0.5, 1.0, 0.5, 1.0])
    even = deposit_of(torch.full((3, 8), 0.1))
    assert [float(part) for part in even] == pytest.approx([0.1, 1 / 24, 0.0, 24.0])
    assert deposit_of(torch.zeros(2, 2)).share.isnan()


# The trainer.


def test_pieces_give_the_gradient_of_the_whole_batch() -> None:
    model = Classifier(Design(TASK.vocabulary, TASK.classes, TASK.tokens, ENCODINGS["rope"], 2, 4, 32, 32))
    other = copy.deepcopy(model)
    drawn = TASK.sample(100, 3)
    told = learn(model, drawn.tokens, drawn.answers, RECIPE, 0, torch.optim.SGD(model.parameters(), lr=0.0))
    logits = other(drawn.tokens)
    loss = torch.nn.functional.cross_entropy(logits, drawn.answers)
    loss.backward()
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one.grad, same.grad, atol=1e-6)
    assert float(told.loss) == pytest.approx(float(loss.detach()), abs=1e-5)
    assert float(told.accuracy) == pytest.approx(float((logits.argmax(-1) == drawn.answers).float().mean()))
    squares = [float(value.grad.square().sum()) for value in other.parameters()]
    assert float(told.norm) == pytest.approx(math.sqrt(sum(squares)), rel=1e-4)
    inward = other.block(1).attention.inward.weight.grad
    rows = torch.cat([inward[8:16], inward[32 + 8 : 32 + 16]])  # queries and keys of head 1
    assert float(told.heads[1, 1]) == pytest.approx(float(rows.square().sum()), rel=1e-4)


def test_training_follows_from_its_seed() -> None:
    design = Design(TASK.vocabulary, TASK.classes, TASK.tokens, ENCODINGS["rope"], 1, 2, 16, 16)
    recipe = replace(RECIPE, steps=3, dropout=0.1)
    one, two, other = (
        fit(Classifier(design, seed), TASK, replace(recipe, seed=seed)).readout.weight for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_a_data_set_is_split_and_no_test_sequence_is_trained_on() -> None:
    task = replace(TASK, samples=200)
    recipe = replace(RECIPE, batch=20)
    stream = batches(task, recipe)
    drawn = task.sample(200, recipe.seed)
    for _ in range(2):  # epochs
        seen = torch.cat([next(stream)[0] for _ in range(7)])
        assert sorted(seen.tolist()) == sorted(drawn.tokens[:140].tolist())
    assert torch.equal(held_out(task, recipe, 0)[0], drawn.tokens[140:])


def test_pieces_hold_every_sequence_once_uncut() -> None:
    drawn = Distance.small().sample(100)
    held = [
        (row[row > 0].tolist(), int(label))
        for some, labels in pieces(*_both(drawn), size=32)
        for row, label in zip(some, labels, strict=True)
    ]
    assert sorted(held) == sorted((row[row > 0].tolist(), int(label)) for row, label in zip(*_both(drawn), strict=True))


def _both(drawn) -> tuple[Tensor, Tensor]:
    return drawn.tokens, drawn.answers


# The tasks.


@pytest.mark.parametrize("task", [Distance(), Distance.small(), TASK])
def test_distance_is_from_trigger_to_trigger(task: Distance) -> None:
    drawn = task.sample(500, seed=1)
    sides, middles = set(), set()
    for row, label in zip(drawn.tokens.tolist(), drawn.answers.tolist(), strict=True):
        words = [word for word in row if word]
        assert row[: len(words)] == words  # padding at the end only
        first, second = words.index(1), words.index(2)
        assert label == second - first
        parts = words[:first], words[first + 1 : second], words[second + 1 :]
        assert all(len(set(part)) == len(part) and min(part, default=3) >= 3 for part in parts)
        sides |= {len(parts[0])}
        middles |= {len(parts[1])}
    assert (min(sides), max(sides)) == (1, task.side)
    assert min(middles) == 1
    assert max(middles) >= task.middle - 3
    assert drawn.tokens.shape == (500, task.tokens)
    assert torch.equal(drawn.tokens, task.sample(500, seed=1).tokens)


def test_paper_sizes_are_the_published_ones() -> None:
    far = Distance().sample(4000, seed=2)
    assert (int(far.answers.min()), int(far.answers.max())) == (2, 71)
    assert int(far.tokens.max()) == 573
    assert (len({*range(574)}), Distance().samples, Count().samples) == (574, 100_000, 50_000)
    counted = Count().sample(4000, seed=2)
    assert (int(counted.answers.min()), int(counted.answers.max()), counted.tokens.shape[1]) == (0, 100, 120)


@pytest.mark.parametrize("task", [Count(), Count.small()])
def test_count_is_the_number_of_triggers_wherever_they_stand(task: Count) -> None:
    drawn = task.sample(2000, seed=1)
    triggers = drawn.tokens <= task.triggers
    assert torch.equal(triggers.sum(1), drawn.answers)
    assert (drawn.tokens > 0).all()
    share = triggers.float().mean(0)
    assert (share - share.mean()).abs().max() < 0.06


def test_every_setting_is_there_once_the_telling_ones_first() -> None:
    made = settings(range(3))
    assert len(set(made)) == len(made)
    assert {(one.encoding, one.task, one.seed) for one in made if one.variant == "clean"} == {
        (name, task, seed) for name in ENCODINGS for task in ("distance", "count") for seed in range(3)
    }
    assert [one.encoding for one in made[:4]] == ["rope", "nope", "alibi", "sinusoidal"]
