"""Answers as text, from a local model, an endpoint or anything else; each is saved as soon as it arrives."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from ...errors import BadInput, SetAside
from ...files import parse_json
from ...prompts.one_hop import Question
from ...remote import upload

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
MOST_TOKENS = 2**31  # of one prompt or reply; a larger number is not believed
NEW_TOKENS = 8  # enough for one symbol with punctuation around it


@dataclass(frozen=True)
class Reply:
    """The text of an answer (None if the prompt did not fit), and the number of tokens read and written."""

    text: str | None
    read: int = 0
    written: int = 0


Keep = Callable[[Question, Reply], None]


@runtime_checkable
class Answerer(Protocol):
    """Anything that answers questions; two answerers with the same `identity` give the same answers."""

    identity: str

    def ask(self, questions: Sequence[Question], keep: Keep) -> None:
        """Pass every answer to `keep` as soon as it arrives, in any order."""
        ...


class AnswerLog:
    """Answers by question, saved as JSON lines if there is a path: each is on disk before it counts.

    Every line has a digest. A line that does not hold is skipped with a warning, so that its question is asked again;
    one cut off by a killed process is skipped silently. Prompts that did not fit are not saved.
    """

    def __init__(self, path: Path | None, identity: str) -> None:
        self.path, self.identity, self._lock = path, identity, Lock()
        self._replies: dict[str, Reply] = {}
        if path is not None and path.is_symlink():
            raise BadInput(f"{path}: a symbolic link, which is not written through")
        *lines, rest = path.read_bytes().split(b"\n") if path is not None and path.exists() else [b""]
        self._cut = bool(rest)
        damaged = []
        for number, line in enumerate(lines, 1):
            try:
                question, reply = _read_line(line)
                self._replies[question] = reply
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged.append(number)
        if damaged:
            listed = ", ".join(map(str, damaged[:5])) + ", ..." * (len(damaged) > 5)
            warnings.warn(f"{path}: lines that do not hold are asked again: {listed}", SetAside, stacklevel=3)

    def __contains__(self, question: Question) -> bool:
        return self._key(question) in self._replies

    def __getitem__(self, question: Question) -> Reply:
        return self._replies[self._key(question)]

    def add(self, question: Question, reply: Reply) -> None:
        key = self._key(question)
        with self._lock:
            self._replies[key] = reply
            if self.path is None or reply.text is None:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                line = {"question": key} | asdict(reply)
                with open(os.open(self.path, FLAGS, 0o666), "a", encoding="utf-8") as file:
                    file.write("\n" * self._cut + json.dumps(line | {"sha256": _line_digest(line)}) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise BadInput(f"{self.path}: cannot be written ({error.strerror})") from error
            upload(self.path)
            self._cut = False

    def _key(self, question: Question) -> str:
        described = json.dumps([self.identity, question.messages, question.prompt])
        return hashlib.sha256(described.encode()).hexdigest()[:20]


def _read_line(line: bytes) -> tuple[str, Reply]:
    """The question and the reply on a line; a ValueError if it does not hold. Earlier versions wrote no digest."""
    saved = parse_json(line.decode("utf-8"))
    digest = saved.pop("sha256", None)
    reply = Reply(saved["text"], saved["read"], saved["written"])
    if saved.keys() != {"question", "text", "read", "written"} or digest not in (None, _line_digest(saved)):
        raise ValueError("damaged")
    if not isinstance(saved["question"], str) or not isinstance(reply.text, str):
        raise ValueError("not a reply")
    reply.text.encode("utf-8")  # raises on lone surrogates, which no table can hold
    if not all(type(tokens) is int and 0 <= tokens < MOST_TOKENS for tokens in (reply.read, reply.written)):
        raise ValueError("not a number of tokens")
    return saved["question"], reply


def _line_digest(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:20]
