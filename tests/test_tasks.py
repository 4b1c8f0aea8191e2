"""The multi-hop tasks against a solver that follows the hops symbol by symbol."""

from __future__ import annotations

import time

import pytest
import torch

from wherewhat.tasks import Letter, Number, Sequences


def follow_numbers(symbols: list[str]) -> list[int]:
    """Positions visited, by the rule of the task alone."""
    path = [len(symbols) - 1]
    while symbols[path[-1]].isdigit():
        path.append(path[-1] - int(symbols[path[-1]]))
    return path


def follow_letters(symbols: list[str]) -> list[int]:
    path = [len(symbols) - 1]
    while not symbols[path[-1]][1].isdigit():
        wanted = symbols[path[-1]][1]
        found = [place for place in range(path[-1]) if symbols[place][0] == wanted]
        assert len(found) == 1, f"{wanted} starts {len(found)} earlier tokens of {symbols}"
        path.append(found[0])
    return path


SOLVERS = {"number": follow_numbers, "letter": follow_letters}


def assert_solved(task: Number | Letter, sequences: Sequences) -> None:
    for row in range(len(sequences)):
        symbols = task.decode(sequences.tokens[row]).split()
        path = SOLVERS[task.name](symbols)
        assert path == [place for place in sequences.path[row].tolist() if place >= 0]
        assert symbols[path[-1]] == task.symbols[sequences.answers[row]]
        assert len(path) - 1 == sequences.hops[row]


@pytest.mark.parametrize("task", [Number(), Letter(), Number(targets=3, pretargets=5), Letter(targets=5, letters=12)])
def test_a_solver_agrees_on_every_sequence(task: Number | Letter) -> None:
    sequences = task.sample(4000, seed=7)
    assert_solved(task, sequences)
    assert_solved(task, task.extend(sequences[:1000], 23, seed=8))
    assert not (sequences.tokens == 0).any()


def test_published_examples() -> None:
    number, letter = Number(targets=3, pretargets=5), Letter(targets=3, pretargets=5, letters=9)
    symbols = number.decode(number.encode("c b a 1 4 1 3 2 1")).split()
    assert follow_numbers(symbols) == [8, 7, 5, 4, 0]
    assert symbols[0] == "c"
    symbols = letter.decode(letter.encode("C2 B1 A3 FA EC DE HF GD IG")).split()
    assert [symbols[place] for place in follow_letters(symbols)] == ["IG", "GD", "DE", "EC", "C2"]


def test_vocabularies() -> None:
    assert Number().vocabulary == 137
    assert (Number().symbols[1], Number().symbols[16], Number().symbols[17], Number().symbols[-1]) == (
        "1", "16", "a", "dp",
    )  # fmt: skip
    assert Letter().vocabulary == 129


def test_balance() -> None:
    number = Number()
    sequences = number.sample(3840 * 3)
    leaf = sequences.path.gather(1, sequences.hops[:, None])[:, 0]
    triples = torch.stack([leaf, sequences.answers, sequences.hops], 1).unique(dim=0, return_counts=True)[1]
    assert len(triples) == 3840
    assert (triples == 3).all()
    letter = Letter()
    sequences = letter.sample(2048 * 2 + 100)
    leaf = sequences.path.gather(1, sequences.hops[:, None])[:, 0]
    counts = torch.stack([leaf, sequences.answers, sequences.hops], 1).unique(dim=0, return_counts=True)[1]
    assert len(counts) == 2048
    assert set(counts.tolist()) == {2, 3}


@pytest.mark.parametrize("task", [Number(), Letter()])
def test_pretargets_visited_and_distractors_are_uniform(task: Number | Letter) -> None:
    sequences = task.sample(40_000, seed=1)
    visits = torch.bincount(sequences.path[:, 1:].flatten().clamp(min=0), minlength=17)[8:16]
    expected = visits.sum() / 8
    assert (visits - expected).abs().max() < 4 * expected.sqrt()  # six standard deviations would be chance
    if task.name == "number":
        idle = torch.stack([(sequences.path != place).all(1) for place in range(17)], 1)
        for place in (8, 12, 15):
            steps = sequences.tokens[idle[:, place], place]
            counts = torch.bincount(steps, minlength=place + 1)[1:]
            assert len(counts) == place
            assert (counts - counts.sum() / place).abs().max() < 5 * (counts.sum() / place).sqrt()


@pytest.mark.slow
@pytest.mark.parametrize("task", [Number(), Letter()])
def test_splits(task: Number | Letter) -> None:
    train, validation, test = task.splits()
    assert (len(train), len(validation), len(test)) == (432_000, 2_400, 45_600)
    for split in (train, validation, test):
        assert set(torch.bincount(split.hops)[1:].tolist()) == {len(split) // 4}
    again = task.splits()[1]
    assert torch.equal(again.tokens, validation.tokens)
    assert_solved(task, validation)


@pytest.mark.parametrize("task", [Number(), Letter()])
def test_seeds(task: Number | Letter) -> None:
    assert torch.equal(task.sample(500, 3).tokens, task.sample(500, 3).tokens)
    assert not torch.equal(task.sample(500, 3).tokens, task.sample(500, 4).tokens)


@pytest.mark.parametrize("task", [Number(), Letter()])
def test_extension_keeps_the_end(task: Number | Letter) -> None:
    sequences = task.sample(50)
    longer = task.extend(sequences, 83)
    assert longer.tokens.shape[1] == 100
    assert torch.equal(longer.tokens[:, 83:], sequences.tokens)


@pytest.mark.parametrize("task", [Number(), Letter()])
def test_speed(task: Number | Letter) -> None:
    """200,000 sequences a second on one core; the best of a few tries, for the machine may be busy."""
    rates = []
    for seed in range(3):
        start = time.process_time()
        task.sample(100_000, seed)
        rates.append(100_000 / (time.process_time() - start))
    assert max(rates) > 200_000
