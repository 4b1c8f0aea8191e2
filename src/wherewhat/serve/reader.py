"""From text to tokens and back, for language models and for the models of the lab; and which blocks a text has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ..errors import BadInput
from ..prompts.chat import in_chat
from ..prompts.prompt import Span, equal_blocks, token_spans, token_texts, tokenize
from ..tasks import TASKS

# Where a piece of text ends. A space before a word belongs to its token, and so to the next piece.
ENDS = {"statements": re.compile(r"[.!?;]+(?=\s|$)|\n+"), "lines": re.compile(r"\n+")}
CUTS = ("auto", *ENDS, "tokens")
ENOUGH = 3  # pieces of equal length for which "auto" takes statements or lines instead of tokens


class Reader(Protocol):
    """How a model reads text."""

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def read(self, text: str) -> tuple[list[int], list[Span]]:
        """Token ids and the characters of each."""
        ...

    def texts(self, ids: Sequence[int], text: str, spans: Sequence[Span]) -> tuple[str, ...]:
        """What is shown for every token."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def chat(self, message: str) -> str:
        """The text that the model reads if a user sends this message."""
        ...


@dataclass(frozen=True)
class TextReader:
    """A tokenizer of Hugging Face."""

    tokenizer: Any

    @property
    def chats(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def read(self, text: str) -> tuple[list[int], list[Span]]:
        # A chat template may write BOS itself.
        bos = self.tokenizer.bos_token
        return tokenize(self.tokenizer, text, special=not (bos and text.startswith(bos)))

    def texts(self, ids: Sequence[int], text: str, spans: Sequence[Span]) -> tuple[str, ...]:
        return token_texts(self.tokenizer, ids, text, spans)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids))

    def chat(self, message: str) -> str:
        return in_chat(self.tokenizer, [{"role": "user", "content": message}])


@dataclass(frozen=True)
class SymbolReader:
    """The symbols of a task of the lab, separated by spaces."""

    task: str

    @property
    def chats(self) -> bool:
        return False

    @cached_property
    def symbols(self) -> Sequence[str]:
        return TASKS[self.task]().symbols

    def read(self, text: str) -> tuple[list[int], list[Span]]:
        known = {symbol: number for number, symbol in enumerate(self.symbols)}
        words = [(match[0], match.span()) for match in re.finditer(r"\S+", text)]
        if unknown := [word for word, _ in words if word not in known]:
            raise BadInput(
                f"{unknown[0]!r:.40} is not a symbol of the task {self.task}; its symbols are "
                f"{', '.join(self.symbols[:3])} ... {self.symbols[-1]}"
            )
        return [known[word] for word, _ in words], [span for _, span in words]

    def texts(self, ids: Sequence[int], text: str, spans: Sequence[Span]) -> tuple[str, ...]:
        return tuple(f"{self.symbols[token]} " for token in ids)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.symbols[token] for token in ids)

    def chat(self, message: str) -> str:
        raise BadInput("a model of the lab has no chat template")


def pieces(text: str, how: str) -> list[Span]:
    """The spans of characters of the statements or lines of a text.

    >>> pieces("A list. Ann likes red.\\nBob", "statements")
    [(0, 7), (7, 22), (23, 26)]
    """
    ends = [match.end() for match in ENDS[how].finditer(text)]
    return [
        (start, stop) for start, stop in zip([0, *ends], [*ends, len(text)], strict=True) if text[start:stop].strip()
    ]


def propose_blocks(text: str, spans: Sequence[Span], query: int, how: str = "auto") -> tuple[list[Span], str]:
    """Blocks of equal length before the query, and how they were cut: statements, lines or tokens.

    The first token belongs to no block, because it is the usual attention sink.
    """
    if how not in CUTS:
        raise BadInput(f"blocks are {', '.join(CUTS)}, or a list of [start, stop], got {how!r:.40}")
    for cut in ("statements", "lines") if how == "auto" else (how,):
        if cut in ENDS:
            found = [span for span in token_spans(pieces(text, cut), spans) if 0 < span[0] < span[1] <= query]
            blocks = [found[at] for at in equal_blocks(found)]
            if how != "auto" or len(blocks) >= ENOUGH:
                return blocks, cut
    return [(at, at + 1) for at in range(1, query)], "tokens"
