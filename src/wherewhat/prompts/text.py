"""Prompts other than the binding task: repeated random tokens, plain text, and the user's own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files import parse_json
from .prompt import Prompt, Span, answer_token, equal_blocks, token_spans, token_texts, tokenize

LARGEST_FILE = 64 * 2**20  # bytes of a file of prompts or text
LONGEST_LINE = 10**6  # characters of a prompt


def repeats(tokenizer: Any, tokens: int = 64, samples: int = 8, seed: int = 0) -> list[Prompt]:
    """Prompts of random tokens followed by the same tokens without the last: an induction head predicts it.

    Blocks are the single tokens of the first copy; a BOS token, if the tokenizer has one, comes before them.
    """
    if tokens < 3 or samples < 1:
        raise BadInput(f"repeats need at least 3 tokens and 1 sample, got {tokens} and {samples}")
    special = set(tokenizer.all_special_ids)
    vocabulary = [token for token in range(len(tokenizer)) if token not in special]
    draw = random.Random(seed)
    opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    prompts = []
    for _ in range(samples):
        # The first token belongs to no block, in case the model uses it as an attention sink.
        first, *once = draw.choices(vocabulary, k=tokens + 1)
        start = len(opening) + 1
        ids = (*opening, first, *once, *once[:-1])
        blocks = tuple((at, at + 1) for at in range(start, start + tokens))
        labels = _decoded(tokenizer, ids, blocks)
        display = {"tokens": token_texts(tokenizer, ids, "", []), "says": tokenizer.decode(once[-1:])}
        prompts.append(Prompt(ids, blocks, tokenizer.decode(ids), once[-1], tokens - 1, labels=labels, **display))
    return prompts


def plain_text(tokenizer: Any, text: str, width: int = 8, tokens: int = 256, samples: int = 8) -> list[Prompt]:
    """Prompts of `tokens` tokens from a text, cut into blocks of `width` tokens; the first ones belong to no block."""
    if width < 1 or samples < 1:
        raise BadInput(f"plain text needs blocks of at least 1 token and 1 sample, got {width} and {samples}")
    ids, _ = tokenize(tokenizer, text, special=False)
    opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    step = tokens - len(opening)
    count = min(samples, (len(ids) - 1) // step)
    if step < 3 * width + 1 or count < 1:
        shorter = f"; shorter prompts need --stretch, at most {len(ids) - 1}" if len(ids) > 3 * width + 2 else ""
        raise BadInput(
            f"{len(ids)} tokens of text are too few for prompts of {tokens} tokens with blocks of {width}{shorter}"
        )
    prompts = []
    for sample in range(count):
        piece = ids[sample * step : (sample + 1) * step]
        full = (*opening, *piece)
        start = len(opening) + width
        blocks = tuple((at, at + width) for at in range(start, len(full) - width, width))
        answer, labels = ids[(sample + 1) * step], _decoded(tokenizer, full, blocks)
        display = {"tokens": token_texts(tokenizer, full, "", []), "says": tokenizer.decode([answer])}
        prompts.append(Prompt(full, blocks, tokenizer.decode(full), answer, labels=labels, **display))
    return prompts


def own_prompts(tokenizer: Any, path: str | Path) -> list[Prompt]:
    """Prompts from a .jsonl file, one JSON object per line.

    `{"text": "...", "blocks": [[start, stop], ...], "answer": " red"}` with spans of characters, or
    `{"ids": [...], "blocks": [[start, stop], ...], "answer": 123}` with spans of tokens; `answer` is optional. If a
    single block contains the token of the answer, that block is the one in question.
    """
    lines = read_text(path).split("\n")
    prompts = list(_parse(tokenizer, path, ((number, line) for number, line in enumerate(lines, 1) if line.strip())))
    if not prompts:
        raise BadInput(f"{path}: contains no prompts")
    return prompts


def included_story() -> str:
    """The story that comes with the package: prose for the task "prose" and for losses on text."""
    return files("wherewhat.prompts").joinpath("ferry.txt").read_text(encoding="utf-8")


def read_text(path: str | Path) -> str:
    try:
        size = Path(path).stat().st_size
        if size > LARGEST_FILE:
            raise BadInput(f"{path}: has {size / 2**20:.0f} MB; at most {LARGEST_FILE // 2**20} MB are read")
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({type(error).__name__})") from error


def _parse(tokenizer: Any, path: str | Path, lines: Iterable[tuple[int, str]]) -> Iterable[Prompt]:
    for number, line in lines:
        try:
            if len(line) > LONGEST_LINE:
                raise BadInput(f"the line has {len(line):,} characters; at most {LONGEST_LINE:,} are read")
            given = parse_json(line)
            if not isinstance(given, dict) or not {"blocks"} <= given.keys() or ("ids" in given) == ("text" in given):
                raise BadInput('expected an object with "blocks" and either "text" or "ids"')
            if unknown := sorted(given.keys() - {"text", "ids", "blocks", "answer"}):
                raise BadInput(f"unknown key {unknown[0]!r}; known keys are text, ids, blocks, answer")
            spans = [(_whole(start, "blocks"), _whole(stop, "blocks")) for start, stop in given["blocks"]]
            answer = given.get("answer")
            tokens, says = [], answer
            if "ids" in given:
                ids = [_whole(token, "ids") for token in given["ids"]]
                check_spans(spans, len(ids), "tokens")
                text, answer = tokenizer.decode(ids), None if answer is None else _whole(answer, "answer")
                says = "" if answer is None else tokenizer.decode([answer])
            else:
                text = given["text"]
                if not isinstance(text, str) or not isinstance(answer, str | None):
                    raise BadInput("text and answer must be text")
                check_spans(spans, len(text), "characters")
                ids, tokens = tokenize(tokenizer, text)
                spans = token_spans(spans, tokens)
                if answer is not None:
                    ids, answer = answer_token(tokenizer, ids, text, answer)
        except BadInput as error:
            raise BadInput(f"{path}, line {number}: {error}") from error
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise BadInput(f"{path}, line {number}: not a prompt ({type(error).__name__}: {error})") from error
        blocks = tuple(spans[at] for at in equal_blocks(spans))
        if len(blocks) < 2:
            raise BadInput(f"{path}, line {number}: {len(blocks)} blocks of equal length; at least two are needed")
        skipped, labels = len(spans) - len(blocks), _decoded(tokenizer, ids, blocks)
        display = {"tokens": token_texts(tokenizer, ids, text, tokens), "says": str(says or "")}
        holding = [at for at, (start, stop) in enumerate(blocks) if answer is not None and answer in ids[start:stop]]
        target = holding[0] if len(holding) == 1 else None
        yield Prompt(tuple(ids), blocks, text, answer, target, skipped=skipped, labels=labels, **display)


def _whole(value: object, what: str) -> int:
    if type(value) is not int or not -(2**31) < value < 2**31:
        raise BadInput(f"{what} must hold whole numbers, got {value!r:.50}")
    return value


def check_spans(spans: Sequence[Span], length: int, what: str) -> None:
    """Refuse spans that lie outside the prompt or overlap.

    >>> check_spans([(0, 3), (3, 6)], 6, "tokens")
    """
    for start, stop in spans:
        if not 0 <= start < stop <= length:
            raise BadInput(f"block [{start}, {stop}] does not lie in the {length} {what} of the prompt")
    for (start, stop), (later, end) in pairwise(sorted(spans)):
        if later < stop:
            raise BadInput(f"blocks [{start}, {stop}] and [{later}, {end}] overlap")


def _decoded(tokenizer: Any, ids: Sequence[int], blocks: Sequence[Span]) -> tuple[str, ...]:
    return tuple(tokenizer.decode(list(ids[start:stop])).strip() for start, stop in blocks)
