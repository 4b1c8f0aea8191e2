"""One hop as text: a window of symbols and a query that names one of them, by its position or by its letter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import cycle
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np

from ..errors import BadInput

LETTERS, DIGITS = np.array(list(ascii_lowercase)), np.array(list("123456789"))


class Wording(NamedTuple):
    """The instruction of a task, its worked examples (the paper's), and the form of an answer."""

    instruction: str
    examples: tuple[tuple[str, str], ...]
    form: str


WORDINGS = {
    "number": Wording(
        "You are given a sequence of letters that ends with an integer n. Start at the integer, move n positions to "
        "the left, and tell the letter that stands there. Reply with that letter only, without explanation.",
        (("a z b y c x d w 5", "y"), ("v t k g n k o h m p 4", "o"), ("w y b c v t r i p p 10", "w")),
        "[b-hj-z]|[ai](?!['\u2019 ]+[a-z])",  # but not the first word of a sentence
    ),
    "letter": Wording(
        "You are given a sequence of tokens, each a letter and a digit, that ends with a query of two letters. Find "
        "the token that starts with the second letter of the query. Reply with that token only, without explanation.",
        (
            ("a4 b3 c2 d1 fc", "c2"),
            ("w9 t7 l5 g1 n4 l6 u9 k7 m5 p8 gk", "k7"),
            ("q5 r7 x4 t7 f4 k7 q4 u2 u3 r5 ex", "x4"),
        ),
        "[a-z][0-9]",
    ),
}


@dataclass(frozen=True)
class Question:
    """A sequence of `window` symbols and a query, with its only right answer.

    A chat has one turn per example, which keeps small models to the form of the answer, or, as published, everything
    in `one_message`.
    """

    task: str
    window: int
    seed: int
    sequence: str
    answer: str
    one_message: bool = False

    @property
    def prompt(self) -> str:
        """Instruction, three worked examples and the sequence; the answer comes next."""
        instruction, examples, _ = WORDINGS[self.task]
        shown = [f"Sequence: {sequence}\nAnswer: {answer}" for sequence, answer in examples]
        return "\n\n".join([instruction, *shown, f"Sequence: {self.sequence}\nAnswer:"])

    @property
    def messages(self) -> list[dict[str, str]]:
        """The same as a chat."""
        if self.one_message:
            return [{"role": "user", "content": self.prompt}]
        instruction, examples, _ = WORDINGS[self.task]
        turns = [text for sequence, answer in examples for text in (f"Sequence: {sequence}", answer)]
        turns = [f"{instruction}\n\n{turns[0]}", *turns[1:], f"Sequence: {self.sequence}"]
        roles = cycle(("user", "assistant"))
        return [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]


def one_hop(task: str, window: int, count: int, seed: int = 0, one_message: bool = False) -> list[Question]:
    """`count` questions about windows of this size, with answers spread evenly over the window.

    number: random letters, then how many positions to the left the answer is. letter: (letter, digit) tokens, then a
    pair of letters; only the answer starts with the second of them. The other 25 letters may repeat; the first of the
    pair is one of these.

    >>> question = one_hop("letter", window=12, count=1, seed=3)[0]
    >>> question.sequence, question.answer
    ('g2 o4 u4 j4 s4 r4 n6 s6 v4 f2 m7 t6 zj', 'j4')
    """
    if task not in WORDINGS:
        raise BadInput(f"no task {task!r}: {', '.join(WORDINGS)}")
    if min(window, count) < 1:
        raise BadInput(f"window and count must be at least 1, got {min(window, count)}")
    draw = np.random.default_rng([seed, window, *task.encode()])
    rows, places = np.arange(count), (draw.permutation(count) * window + draw.integers(window, size=count)) // count
    if task == "number":
        letters = draw.integers(26, size=(count, window))
        symbols, queries = LETTERS[letters], (window - places).astype(str)
    else:
        wanted = draw.integers(26, size=count)
        letters = (wanted[:, None] + draw.integers(1, 26, size=(count, window + 1))) % 26  # any but the wanted one
        queries = np.char.add(LETTERS[letters[:, -1]], LETTERS[wanted])
        letters[rows, places] = wanted
        symbols = np.char.add(LETTERS[letters[:, :-1]], DIGITS[draw.integers(9, size=(count, window))])
    sequences = (" ".join([*row, query]) for row, query in zip(symbols, queries, strict=True))
    answers = symbols[rows, places].tolist()
    return [Question(task, window, seed, *pair, one_message) for pair in zip(sequences, answers, strict=True)]


def read_answer(task: str, text: str) -> str | None:
    """The first word without punctuation and a leading `Answer:`; None if it does not have the form of an answer.

    >>> read_answer("letter", "**K7**."), read_answer("number", "Answer: y"), read_answer("letter", "The token is k7")
    ('k7', 'y', None)
    """
    form = WORDINGS[task].form
    match = re.match(rf"[^a-z0-9]*(?:answer[^a-z0-9]+)?({form})(?![a-z0-9])", text.lower())
    return match[1] if match else None
