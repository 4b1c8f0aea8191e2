"""How far a language model generalises in length: one hop as text, by position and by letter, in growing windows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadInput
from ...prompts.one_hop import WORDINGS, Question, one_hop, read_answer
from ...results import Progress, Result, Say, ignore_progress, ignore_sentence
from ..stats import wilson
from .answers import Answerer, AnswerLog, Reply
from .paper import KEPT_ACCURACY, KEPT_WINDOW

WINDOWS = (12, 16, 24, 32, 48, 64, 80, 100, 150, 200, 300)  # the paper's, as are the five seeds
PROMPTS, RUNS = 20, 5
OUTCOMES = ("right", "wrong", "malformed", "unfit")


@dataclass(frozen=True)
class TextLengths(Result, file="text-lengths.json", kind="lengths of a language model"):
    """Answers of a language model to one hop as text, in windows of several sizes.

    `answers`: one row per prompt, with the answer and its outcome: right, wrong, malformed (its first word does not
    have the form of an answer) or unfit (the prompt did not fit into the context). `accuracy`: one row per task and
    window, with 95 % intervals.
    """

    answers: pd.DataFrame
    accuracy: pd.DataFrame
    about: dict[str, Any]

    @property
    def kept(self) -> bool | None:
        """Whether the paper would keep the model: 85 % on letter at a window of 16; None if that was not measured."""
        shares = self.accuracy.query(f"task == 'letter' and window == {KEPT_WINDOW}")["accuracy"].dropna().tolist()
        return shares[0] >= KEPT_ACCURACY if shares else None

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens read and written by the model."""
        return sum(self.answers["read"].tolist()), sum(self.answers["written"].tolist())

    @property
    def cost(self) -> float | None:
        """The cost of all tokens at the prices in `about`; None if no price was given."""
        prices = [self.about.get(f"price_{way}") for way in ("in", "out")]
        if prices == [None, None]:
            return None
        return sum(tokens * (price or 0.0) for tokens, price in zip(self.tokens, prices, strict=True)) / 1e6


def measure_text_lengths(
    answerer: Answerer,
    folder: str | Path | None = None,
    *,
    windows: Sequence[int] = WINDOWS,
    prompts: int = PROMPTS,
    seeds: Sequence[int] = range(RUNS),
    one_message: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
) -> TextLengths:
    """Accuracy on both tasks at every window, with 95 % intervals, from `prompts` prompts per task, window and seed.

    With `one_message`, instruction, examples and sequence are one message of a chat, as published, instead of one turn
    per example. With a folder, every answer is saved there as it arrives, and existing answers are reused.

    >>> measure_text_lengths(LocalModel(model, tokenizer), windows=(12, 100)).accuracy   # doctest: +SKIP
    """
    if not windows or not seeds:
        raise BadInput("at least one window and one seed are needed")
    log = AnswerLog(None if folder is None else Path(folder) / "answers.jsonl", answerer.identity)
    questions = [
        question
        for window in sorted(set(windows))
        for task in WORDINGS
        for seed in seeds
        for question in one_hop(task, window, prompts, seed, one_message)
    ]
    unanswered = [question for question in dict.fromkeys(questions) if question not in log]
    if len(unanswered) < len(questions):
        say(f"{len(questions) - len(unanswered)} of {len(questions)} answers are reused")
    done = count(len(questions) - len(unanswered))

    def keep(question: Question, reply: Reply) -> None:
        log.add(question, reply)
        progress(f"{question.task}, {question.window} symbols", next(done), len(questions))

    progress("asking", next(done), len(questions))
    if unanswered:
        answerer.ask(unanswered, keep)
    answers = pd.DataFrame([answer_row(question, log[question]) for question in questions])
    settings = {"windows": sorted(set(windows)), "prompts": prompts, "seeds": list(seeds), "one_message": one_message}
    identity = hashlib.sha256(answerer.identity.encode()).hexdigest()
    return TextLengths(answers, accuracy_table(answers), settings | {"identity": identity} | dict(about or {}))


def answer_row(question: Question, reply: Reply) -> dict[str, str | int | None]:
    """A question with the reply, the answer read from it, and its outcome."""
    if reply.text is None:
        answer, outcome = None, "unfit"
    else:
        answer = read_answer(question.task, reply.text)
        outcome = "malformed" if answer is None else "right" if answer == question.answer else "wrong"
    return asdict(question) | asdict(reply) | {"read_as": answer, "outcome": outcome}


def accuracy_table(answers: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by task and window with Wilson intervals, and its standard deviation over seeds.

    A window with a prompt that did not fit has no accuracy: the prompts that fit are the short ones, not a fair sample.
    """
    rows = []
    for _, those in answers.groupby(["task", "window"]):
        outcomes = {name: those["outcome"].tolist().count(name) for name in OUTCOMES}
        row = those.filter(["task", "window"]).to_dict("records")[0] | {"asked": len(those)} | outcomes
        row |= dict.fromkeys(("accuracy", "low", "high", "spread"), math.nan)
        if not outcomes["unfit"]:
            low, high = wilson(outcomes["right"], len(those))
            shares = [np.mean(some["outcome"] == "right") for _, some in those.groupby("seed")]
            row |= {"accuracy": outcomes["right"] / len(those), "low": low, "high": high}
            row |= {"spread": float(np.std(shares, ddof=1))} if len(shares) > 1 else {}
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["task", "window"], ascending=[False, True], ignore_index=True)
