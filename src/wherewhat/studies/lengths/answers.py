"""Answers as text, from a local model, an endpoint or anything else; each is saved as soon as it arrives."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

from ...errors import BadInput
from ...prompts.one_hop import Question
from ...remote import upload

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

    A line cut off by a killed process is ignored. Prompts that did not fit are not saved.
    """

    def __init__(self, path: Path | None, identity: str) -> None:
        self.path, self.identity, self._lock = path, identity, Lock()
        self._replies: dict[str, Reply] = {}
        lines = path.read_text(encoding="utf-8", errors="replace") if path is not None and path.exists() else ""
        self._cut = bool(lines) and not lines.endswith("\n")
        for line in lines.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                saved = json.loads(line)
                self._replies[saved["question"]] = Reply(saved["text"], saved["read"], saved["written"])

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
                with self.path.open("a", encoding="utf-8") as file:
                    file.write("\n" * self._cut + json.dumps({"question": key} | asdict(reply)) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise BadInput(f"{self.path}: cannot be written ({error.strerror})") from error
            upload(self.path)
            self._cut = False

    def _key(self, question: Question) -> str:
        described = json.dumps([self.identity, question.messages, question.prompt])
        return hashlib.sha256(described.encode()).hexdigest()[:20]
