"""Heads with weights set by hand do what theory says, on every input; pure heads fail where it says."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

import wherewhat as ww
from wherewhat.core.kinds import kind
from wherewhat.studies.theorems.checks import solves
from wherewhat.tasks import Index, Induction, Letter, Number, Retrieval
from wherewhat.theory.constructions import forced_angle, h_pos, h_sym, t_index, t_retrieval, two_angles
from wherewhat.theory.curves import fall_to_the_middle, positional_weight, reach, symbolic_weight
from wherewhat.theory.head import Head
from wherewhat.theory.witness import answer_names, exchanged, find_witness, pure_head

ONE_HOP = {"targets": 4, "pretargets": 2, "most_hops": 1}


def answer(words: list[str]) -> str | None:
    """Read off the words: Index asks for a position, Retrieval for a symbol, of which the last counts."""
    *contents, asked = words
    if asked.isdigit():
        return contents[int(asked) - 1]
    found = [word[1:] for word in contents if word[0] == asked]
    return found[-1] if found else None


def one_hop_answer(words: list[str]) -> str:
    """Number: the number of steps to the left. Letter: the digit of the token that starts with the second letter."""
    if words[-1].isdigit():
        return words[-1 - int(words[-1])]
    (found,) = [word[1:] for word in words if word[0] == words[-1][1] and word[1:].isdigit()]
    return found


def every_input(task, distinct: bool) -> list[list[str]]:
    """All inputs of a task that have an answer."""
    contents, questions = task.words[: task.contents], task.words[task.contents :]
    rows = itertools.product(contents, repeat=task.length)
    if distinct:
        rows = (row for row in rows if len({word[0] for word in row}) == task.length)
    return [[*row, asked] for row in rows for asked in questions if answer([*row, asked])]


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (h_pos(Index(5, 4)), 4**5 * 5),
        (h_pos(Index(5, 4), angle=1.2), 4**5 * 5),
        (h_sym(Retrieval(3, 4, 3)), 24 * 27 * 3),
        (forced_angle(Retrieval(3, 4, 3), angle=1.5), 24 * 27 * 3),
        (two_angles(Induction(4, 3, 2)), 6**4 * 3 - 3 * 4**4),
        (two_angles(Induction(4, 3, 2), angle=0.1), 6**4 * 3 - 3 * 4**4),
    ],
)
def test_a_construction_is_right_on_every_input(made, count):
    inputs = every_input(made.task, distinct=type(made.task) is Retrieval)
    assert len(inputs) == count
    tokens = torch.stack([made.task.encode(" ".join(words)) for words in inputs])
    with torch.no_grad():
        said = made.transformer(tokens, last=True)[:, 0].argmax(-1)
    names = answer_names(made.task)
    assert [names[number] for number in said.tolist()] == [answer(words) for words in inputs]


def test_t_index_copies_a_letter_and_keeps_all_else():
    task = Number(letters=7)
    tokens = task.sample(40, seed=5).tokens
    with torch.no_grad():
        said = t_index(task).transformer(tokens).argmax(-1)
    for row, spoken in zip(tokens, said, strict=True):
        words = task.decode(row).split()
        for place, word in enumerate(words):
            target = words[place - int(word)] if word.isdigit() else word
            assert task.symbols[int(spoken[place])] == (target if target.isalpha() else word)


def test_t_retrieval_copies_the_next_token_of_the_path():
    task = Letter(digits=3)
    sequences = task.sample(200, seed=5)
    with torch.no_grad():
        said = t_retrieval(task).transformer(sequences.tokens).argmax(-1)
    for row, hops, path, spoken in zip(sequences.tokens, sequences.hops, sequences.path, said, strict=True):
        for hop in range(int(hops)):
            assert spoken[path[hop]] == row[path[hop + 1]]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (h_pos(Index(12)), "where"),
        (h_sym(Retrieval(12, 12, 4)), "what"),
        (t_index(Number(letters=20)), "where"),
        (t_retrieval(Letter(digits=3)), "what"),
    ],
)
def test_the_score_names_a_construction_by_what_it_was_made_for(made, expected):
    scores = ww.score(ww.capture(made.transformer, made.task.sample(64).tokens))
    assert kind(scores.positional.mean().item(), scores.symbolic.mean().item()) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        h_pos(Index(8), angle=2 * math.pi / 7),
        two_angles(Induction(8, 3, 4), angle=1.5 * math.pi / 8),
        forced_angle(Retrieval(8, 8, 4), angle=1.2 * math.pi / 7),
        t_index(Number(letters=20), angle=2 * math.pi / 8),
        t_retrieval(Letter(digits=3), angle=0.8 * 2 * math.pi / 8 / 16),
    ],
    ids=["H_POS", "two angles", "forced angle", "T_Index", "T_Retrieval"],
)
def test_beyond_its_length_no_construction_works(made):
    """With an ample temperature: it is the angle that no longer tells the keys apart."""
    assert not solves([replace(made, gap=0.01)], seed=0).passed


def test_a_head_says_what_it_attends_to():
    """Half of the attention on each match, without and with the query's own token."""
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(5, 5, generator=draw)
    tokens = torch.tensor([[0, 1, 2, 1, 3]])
    queries = torch.eye(5)[[0, 0, 0, 1, 0]]
    for residual in (False, True):
        head = Head((), queries * 40, torch.eye(5), values, residual)
        with torch.no_grad():
            said = head.transformer()(tokens)[0, -1]
        expected = values[1] + residual * torch.eye(5)[3]
        assert torch.allclose(said / said.norm(), (expected / expected.norm()).double(), atol=1e-6)


@pytest.mark.parametrize(
    ("task", "looks_at"),
    [
        (Index(6, 5), "what"),
        (Retrieval(6, 7, 4), "where"),
        (Induction(6, 3, 4), "what"),
        (Induction(6, 3, 4), "where"),
        (Number(**ONE_HOP, letters=9), "what"),
        (Letter(**ONE_HOP, letters=5, digits=5), "where"),
    ],
)
def test_pairs_are_inputs_of_the_task_with_different_answers(task, looks_at):
    rule = one_hop_answer if isinstance(task, Number | Letter) else answer
    pairs = exchanged(task, looks_at, 200)
    names = answer_names(task)
    assert pairs.answers.shape[1] > 20
    for inputs, answers in zip(pairs.tokens.transpose(0, 1), pairs.answers.T.tolist(), strict=True):
        words = [task.decode(tokens).split() for tokens in inputs]
        assert [rule(line) for line in words] == [names[number] for number in answers]
        assert answers[0] != answers[1]
        assert sum(one != other for one, other in zip(*words, strict=True)) == 2
        if type(task) is Retrieval:
            assert len({word[0] for word in words[1][:-1]}) == task.length
    witness = find_witness(pure_head(task, looks_at, seed=7).transformer(2.0), task, looks_at)
    assert witness is not None
    assert witness.predictions[0] == witness.predictions[1]
    assert "wrong" in str(witness)


def test_a_head_that_can_has_no_witness():
    assert find_witness(h_pos(Index(5, 5)).transformer, Index(5, 5), "what") is None
    assert find_witness(h_sym(Retrieval(5, 5, 4)).transformer, Retrieval(5, 5, 4), "where") is None
    for looks_at in ("what", "where"):
        task = Induction(6, 3, 4)
        assert find_witness(two_angles(task).transformer, task, looks_at) is None


def test_the_published_u():
    for angle, published in ((0.02, (0.041, 0.034, 0.041)), (0.1, (0.160, 0.087, 0.160))):
        weights = positional_weight(32, angle, 5.0)
        assert weights[[0, 15, 31]].tolist() == pytest.approx(published, abs=5e-4)
        assert fall_to_the_middle(weights) > 0
    assert fall_to_the_middle(positional_weight(32, 0.5, 5.0)) < 0


def test_both_shapes_hold_up_to_a_full_turn():
    """The U exactly up to n * angle = 2 pi, the inverse U to (n - 2) * angle = 2 pi."""
    for length in (5, 12):
        assert reach(positional_weight, 1, length, 3.0) == pytest.approx(2 * math.pi, abs=0.02)
        assert reach(symbolic_weight, -1, length, 3.0) == pytest.approx(2 * math.pi * length / (length - 2), abs=0.02)
    flat = positional_weight(12, 2 * math.pi / 12, 3.0)
    assert flat.max() - flat.min() < 1e-12
