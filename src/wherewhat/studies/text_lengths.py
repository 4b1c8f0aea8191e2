"""How far a language model generalises in length: one hop as text, by place and by letter, in windows that grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ..errors import BadInput
from ..files import write_tables
from ..prompts.one_hop import WORDINGS, Question, one_hop, read_answer
from .answers import Answerer, AnswerLog, Reply

WINDOWS = (12, 16, 24, 32, 48, 64, 80, 100, 150, 200, 300)  # the paper's, and so are its five seeds
PROMPTS, SEEDS = 20, 5
OUTCOMES = ("right", "wrong", "malformed", "unfit")
KEPT_AT, KEPT_FROM = 16, 0.85  # the paper keeps models that answer so many of letter at this window

# Number and letter by window, as the paper reports them.
PUBLISHED: dict[str, dict[int, tuple[float, float]]] = {
    "GPT 5.4": {12: (0.98, 0.96), 32: (0.45, 0.99), 100: (0.08, 0.85), 300: (0.06, 0.40)},
    "GPT 5.5": {12: (0.55, 0.87), 32: (0.23, 0.96), 100: (0.07, 0.66), 300: (0.04, 0.50)},
    "Sonnet 3.7": {12: (0.40, 0.92), 32: (0.15, 0.88), 100: (0.06, 0.86), 300: (0.05, 0.80)},
}


@dataclass(frozen=True)
class TextLengths:
    """Every answer; their shares by task and window; tokens read and written for them.

    An answer is right, wrong, malformed (its first word could be no answer) or unfit (its prompt was too long).
    """

    answers: pd.DataFrame
    accuracy: pd.DataFrame

    def save(self, folder: str | Path) -> None:
        write_tables(folder, vars(self))

    @property
    def kept(self) -> bool | None:
        """Whether the paper would keep the model: it answers 85 % of letter at 16; None if it was not asked that."""
        shares = self.accuracy.query(f"task == 'letter' and window == {KEPT_AT}")["accuracy"].dropna().tolist()
        return shares[0] >= KEPT_FROM if shares else None

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens read and written."""
        return sum(self.answers["read"].tolist()), sum(self.answers["written"].tolist())

    def cost(self, price_in: float = 0.0, price_out: float = 0.0) -> float:
        """What the tokens cost, at prices a million."""
        read, written = self.tokens
        return (read * price_in + written * price_out) / 1e6


def text_lengths(
    answerer: Answerer,
    folder: str | Path | None = None,
    *,
    windows: Sequence[int] = WINDOWS,
    prompts: int = PROMPTS,
    seeds: Sequence[int] = range(SEEDS),
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> TextLengths:
    """Shares of right answers at every window, `prompts` of each task a seed, with 95 % intervals.

    With a folder, answers are kept in it as they come, and what is answered is not asked again.

    >>> text_lengths(LocalModel(model, tokenizer), windows=(12, 100)).accuracy         # doctest: +SKIP
    """
    if not windows or not seeds:
        raise BadInput("at least one window and one seed are needed")
    log = AnswerLog(None if folder is None else Path(folder) / "answers.jsonl", answerer.identity)
    questions = [
        question
        for window in sorted(set(windows))
        for task in WORDINGS
        for seed in seeds
        for question in one_hop(task, window, prompts, seed)
    ]
    open_ones = [question for question in dict.fromkeys(questions) if question not in log]
    done = count(len(questions) - len(open_ones))

    def keep(question: Question, reply: Reply) -> None:
        log.add(question, reply)
        progress(f"{question.task}, {question.window} symbols", next(done), len(questions))

    progress("asking", next(done), len(questions))
    if open_ones:
        answerer.ask(open_ones, keep)
    answers = pd.DataFrame([row_of(question, log[question]) for question in questions])
    return TextLengths(answers, accuracy_table(answers))


def row_of(question: Question, reply: Reply) -> dict[str, str | int | None]:
    """A question, what was said, what is read from it, and what that is worth."""
    if reply.text is None:
        answer, outcome = None, "unfit"
    else:
        answer = read_answer(question.task, reply.text)
        outcome = "malformed" if answer is None else "right" if answer == question.answer else "wrong"
    return asdict(question) | asdict(reply) | {"read_as": answer, "outcome": outcome}


def accuracy_table(answers: pd.DataFrame) -> pd.DataFrame:
    """Shares of right answers by task and window with Wilson's intervals, and how they spread over seeds.

    A window of which a prompt did not fit has no share: the others would be a selection of the short ones.
    """
    rows = []
    for _, those in answers.groupby(["task", "window"]):
        outcomes = {name: those["outcome"].tolist().count(name) for name in OUTCOMES}
        row = those.filter(["task", "window"]).to_dict("records")[0] | {"asked": len(those)} | outcomes
        row |= dict.fromkeys(("accuracy", "low", "high", "spread"), math.nan)
        if not outcomes["unfit"]:
            low, high = binomtest(outcomes["right"], len(those)).proportion_ci(method="wilson")
            shares = [np.mean(some["outcome"] == "right") for _, some in those.groupby("seed")]
            row |= {"accuracy": outcomes["right"] / len(those), "low": float(low), "high": float(high)}
            row |= {"spread": float(np.std(shares, ddof=1))} if len(shares) > 1 else {}
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["task", "window"], ascending=[False, True], ignore_index=True)
