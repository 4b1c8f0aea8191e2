"""A prompt: token ids, the blocks that can be swapped, and the correct answer."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput

Span = tuple[int, int]


@dataclass(frozen=True)
class Prompt:
    """One prompt. The query is the last token; every block has the same number of tokens.

    `answer` is the correct next token, `target` the block that contains it, `choices` the number of different answers
    to guess from (0: any token). `labels` are the texts of the blocks. `skipped` counts statements in the prompt that
    are not swapped because their length in tokens differs. `tokens` and `says` are for display: the text of every token
    and of the answer.
    """

    ids: tuple[int, ...]
    blocks: tuple[Span, ...]
    text: str = ""
    answer: int | None = None
    target: int | None = None
    skipped: int = 0
    choices: int = 0
    labels: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    says: str = ""

    @property
    def query(self) -> int:
        return len(self.ids) - 1

    @property
    def answer_at(self) -> int | None:
        """The position of the answer inside the block that contains it."""
        if self.target is None or self.answer is None:
            return None
        return next((at for at in range(*self.blocks[self.target]) if self.ids[at] == self.answer), None)


def tokenize(tokenizer: Any, text: str, special: bool = True) -> tuple[list[int], list[Span]]:
    """Token ids and the span of characters of each; BOS comes first if the tokenizer has one."""
    if not getattr(tokenizer, "is_fast", False):
        raise BadInput(f"{type(tokenizer).__name__} does not map tokens to characters; use a fast tokenizer")
    encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    ids, spans = list(encoded["input_ids"]), [tuple(span) for span in encoded["offset_mapping"]]
    eos = tokenizer.eos_token_id
    if special and len(ids) > 1 and ids[-1] == eos and spans[-1][0] == spans[-1][1]:
        ids, spans = ids[:-1], spans[:-1]
    bos = tokenizer.bos_token_id
    if special and bos is not None and (not ids or ids[0] != bos):
        ids, spans = [bos, *ids], [(0, 0), *spans]
    return ids, spans


def token_texts(tokenizer: Any, ids: Sequence[int], text: str, spans: Sequence[Span]) -> tuple[str, ...]:
    """The text of every token with the spaces before it; special tokens, which have no text, by their name."""
    texts, before = [], 0
    for token, (start, stop) in zip(ids, spans, strict=False):
        texts.append(text[before:stop] if start < stop else str(tokenizer.convert_ids_to_tokens(token)))
        before = max(before, stop)
    return (*texts, *(_decoded(tokenizer, token) for token in ids[len(spans) :]))


def _decoded(tokenizer: Any, token: int) -> str:
    """The text of a token; tokenizers that mark the space before a word with ▁ drop it from a single token."""
    text = tokenizer.decode([token])
    marked = str(tokenizer.convert_ids_to_tokens(token)).startswith("▁")
    return f" {text}" if marked and not text.startswith(" ") else text


def answer_token(
    tokenizer: Any, ids: list[int], text: str, answer: str, special: bool = True
) -> tuple[list[int], int | None]:
    """The prompt up to the first token that identifies the answer, and that token.

    If the tokenizer encodes the space before a word as a separate token, that token reveals nothing and is added to the
    prompt. The answer is None if prompt and answer share a token, or if its token is unknown to the tokenizer.
    """
    whole = text + answer
    longer, spans = tokenize(tokenizer, whole, special)
    if longer[: len(ids)] == ids:
        for at in range(len(ids), len(longer)):
            if whole[slice(*spans[at])].strip():
                return longer[:at], None if longer[at] == tokenizer.unk_token_id else longer[at]
    return ids, None


def token_spans(characters: Sequence[Span], tokens: Sequence[Span]) -> list[Span]:
    """The span of tokens of each span of characters; a token belongs to the span of its last character.

    >>> token_spans([(0, 4), (4, 9)], [(0, 0), (0, 2), (2, 4), (4, 9)])      # a special token first
    [(1, 3), (3, 4)]
    """
    written = [index for index, (low, high) in enumerate(tokens) if low < high]
    ends = [tokens[index][1] for index in written]
    spans = []
    for start, stop in characters:
        inside = written[bisect(ends, start) : bisect(ends, stop)]
        spans.append((inside[0], inside[-1] + 1) if inside else (0, 0))
    return spans


def equal_blocks(spans: Sequence[Span]) -> list[int]:
    """The indices of the spans with the most common length, which can be swapped.

    >>> equal_blocks([(1, 4), (4, 7), (7, 11), (11, 14)])
    [0, 1, 3]
    """
    lengths = Counter(stop - start for start, stop in spans if stop > start)
    if not lengths:
        return []
    width, _ = lengths.most_common(1)[0]
    return [index for index, (start, stop) in enumerate(spans) if stop - start == width]


def joined(blocks: Sequence[Span], number: int) -> list[Span]:
    """Every `number` adjacent blocks joined into one, from the first on.

    >>> joined([(1, 3), (3, 5), (6, 8), (8, 10)], 2)
    [(1, 5), (6, 10)]
    """
    spans: list[Span] = []
    run: list[Span] = []
    for block in blocks:
        run = [*run, block] if run and run[-1][1] == block[0] else [block]
        if len(run) == number:
            spans.append((run[0][0], block[1]))
            run = []
    return spans
