"""The canonical tasks against solvers that read the words one by one."""

from __future__ import annotations

import time

import pytest
import torch

from wherewhat.errors import BadInput
from wherewhat.tasks import Index, Induction, LookupTask, Retrieval


def find_index(words: list[str]) -> int:
    """The position asked for, from 0."""
    return int(words[-1]) - 1


def find_pair(words: list[str]) -> int:
    """The only pair that begins with the symbol asked for."""
    found = [place for place, word in enumerate(words[:-1]) if word.rstrip("0123456789") == words[-1]]
    assert len(found) == 1
    return found[0]


def find_last_pair(words: list[str]) -> int:
    return max(place for place, word in enumerate(words[:-1]) if word.rstrip("0123456789") == words[-1])


SOLVERS = {"index": find_index, "retrieval": find_pair, "induction": find_last_pair}
DEFAULT = [Index(), Retrieval(), Induction()]
OTHERS = [Index(length=40, symbols=30), Retrieval(length=5, symbols=30, attributes=3), Induction(9, 2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("task", [*DEFAULT, *OTHERS])
def test_a_solver_agrees_on_every_prompt(task: LookupTask) -> None:
    prompts = task.sample(3000, seed=7)
    assert prompts.tokens.shape == (3000, task.length + 1)
    for row in range(len(prompts)):
        words = task.decode(prompts.tokens[row]).split()
        place = SOLVERS[task.name](words)
        assert place == prompts.places[row]
        answer = int(prompts.answers[row])
        said = words[place].lstrip("abcdefghijklmnopqrstuvwxyz") if task.name != "index" else words[place]
        assert said == (str(answer + 1) if task.name != "index" else task.words[answer])
        assert torch.equal(task.encode(" ".join(words)), prompts.tokens[row])
    content = prompts.tokens.gather(1, prompts.places[:, None])[:, 0]
    assert torch.equal(task.carried[content], prompts.answers)
    assert (prompts.tokens[:, :-1] < task.contents).all()
    assert (prompts.tokens[:, -1] >= task.contents).all()


def test_the_published_definitions() -> None:
    """Retrieval binds distinct symbols; induction repeats them and wants the last; sizes as in the recipe."""
    symbols = Retrieval().sample(500).tokens[:, :-1] // 16
    assert all(len(row.unique()) == 16 for row in symbols)
    repeated = Induction(symbols=12).sample(500).tokens[:, :-1] // 16
    assert all(len(row.unique()) < 16 for row in repeated)
    assert (Index().vocabulary, Retrieval().vocabulary, Induction().vocabulary) == (32, 272, 272)
    assert (Index().answers, Retrieval().answers, Induction(attributes=5).answers) == (16, 16, 5)
    assert find_last_pair("a1 b2 a3 c4 a".split()) == 2
    assert find_index("c b a d 2".split()) == 1


@pytest.mark.parametrize("task", [Index(), Retrieval()])
def test_places_and_answers_are_balanced_and_the_rest_is_uniform(task: LookupTask) -> None:
    prompts = task.sample(256 * 40)
    pairs = torch.stack([prompts.places, prompts.answers], 1).unique(dim=0, return_counts=True)[1]
    assert len(pairs) == 256
    assert (pairs == 40).all()
    questions = torch.bincount(prompts.tokens[:, -1] - task.contents)
    assert len(questions) == task.questions
    assert (questions - len(prompts) / task.questions).abs().max() < 5 * (len(prompts) / task.questions) ** 0.5


@pytest.mark.parametrize("symbols", [2, 8, 16])
def test_induction_asks_for_the_symbol_of_any_place(symbols: int) -> None:
    """The last occurrence is at p if the symbol there is asked for, itself or through an earlier place, and no later
    one has it."""
    prompts, count = Induction(symbols=symbols).sample(40_000), 40_000
    place = torch.arange(16).double()
    expected = count / 16 * (1 + place / symbols) * (1 - 1 / symbols) ** (15 - place)
    assert float(expected.sum()) == pytest.approx(count)
    found = torch.bincount(prompts.places, minlength=16)
    assert ((found - expected).abs() < 5 * expected.sqrt() + 1).all()
    for kinds, ids in ((symbols, prompts.tokens[:, -1] - symbols * 16), (16, prompts.answers)):
        assert (torch.bincount(ids, minlength=kinds) - count / kinds).abs().max() < 5 * (count / kinds) ** 0.5


@pytest.mark.parametrize("task", DEFAULT)
def test_seeds(task: LookupTask) -> None:
    assert torch.equal(task.sample(500, 3).tokens, task.sample(500, 3).tokens)
    assert not torch.equal(task.sample(500, 3).tokens, task.sample(500, 4).tokens)


def test_sizes_that_make_no_task() -> None:
    with pytest.raises(BadInput, match="retrieval needs at least 16 symbols, got 12"):
        Retrieval(symbols=12)
    with pytest.raises(BadInput, match="induction needs at least 2 symbols, got 1"):
        Induction(symbols=1)
    with pytest.raises(BadInput, match="must be positive"):
        Index(length=0)


@pytest.mark.parametrize("task", DEFAULT)
def test_speed(task: LookupTask) -> None:
    """A batch of 256 in 2 ms on one core: cheap enough for every step of training."""
    times = []
    for seed in range(20):
        start = time.process_time()
        task.sample(256, seed)
        times.append(time.process_time() - start)
    assert min(times) < 2e-3, min(times)
