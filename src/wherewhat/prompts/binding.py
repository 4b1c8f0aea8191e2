"""The binding task: who likes what, and then a question about one of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ..errors import BadInput
from .prompt import Prompt, Span, equal_blocks, token_spans, tokenize

NAMES = files("wherewhat.prompts").joinpath("names.txt").read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class Kind:
    """A kind of attribute: how it is stated and asked for, and its words."""

    preamble: str
    statement: str
    question: str
    answer: str
    words: tuple[str, ...]


KINDS = {
    "color": Kind(
        "Here is a list of what people like.",
        "{name} likes {word}.",
        "What color does {name} like?",
        "{name} likes",
        tuple(
            "red blue green yellow orange purple pink brown black white gray gold silver violet indigo turquoise beige "
            "cyan magenta crimson scarlet ivory olive navy teal coral amber bronze copper lavender maroon peach ruby "
            "tan lime azure emerald jade rose mint".split()
        ),
    ),
    "fruit": Kind(
        "Here is a list of what people ate today.",
        "{name} ate the {word}.",
        "Which fruit did {name} eat?",
        "{name} ate the",
        tuple(
            "apple banana cherry grape lemon lime mango melon orange peach pear plum fig kiwi papaya apricot coconut "
            "pineapple strawberry raspberry blueberry blackberry watermelon date olive guava lychee quince nectarine "
            "tangerine pomegranate cranberry avocado tomato".split()
        ),
    ),
    "city": Kind(
        "Here is a list of where people live.",
        "{name} lives in {word}.",
        "Which city does {name} live in?",
        "{name} lives in",
        tuple(
            "London Paris Berlin Rome Madrid Vienna Prague Dublin Lisbon Athens Oslo Stockholm Copenhagen Helsinki "
            "Warsaw Budapest Moscow Istanbul Cairo Lagos Nairobi Delhi Mumbai Tokyo Beijing Shanghai Seoul Bangkok "
            "Singapore Sydney Melbourne Toronto Montreal Chicago Boston Dallas Denver Houston Miami Seattle Havana "
            "Lima Bogota Santiago".split()
        ),
    ),
    "animal": Kind(
        "Here is a list of the animals that people keep.",
        "{name} keeps a {word}.",
        "Which animal does {name} keep?",
        "{name} keeps a",
        tuple(
            "dog cat horse cow pig goat sheep rabbit mouse rat hamster parrot pigeon duck goose chicken turkey donkey "
            "camel llama snake lizard turtle frog fox wolf bear lion tiger monkey".split()
        ),
    ),
}


def binding(
    tokenizer: Any, pairs: int = 64, samples: int = 8, seed: int = 0, kind: str = "color", chat: bool = False
) -> list[Prompt]:
    """Prompts of `pairs` statements, a question about one of them, and the beginning of its answer.

    Names and words are chosen among those that give statements of equal length with this tokenizer; where these do
    not suffice, others fill up the prompt and stay out of the swaps. The statement asked about walks evenly through
    the prompt from sample to sample.

    >>> prompt = binding(tokenizer, pairs=16, samples=1)[0]            # doctest: +SKIP
    >>> prompt.text                                                    # doctest: +SKIP
    'Here is a list of what people like. Alice likes red. ... What color does Alice like? Alice likes'
    """
    if kind not in KINDS:
        raise BadInput(f"no attribute kind {kind!r}; there are {', '.join(KINDS)}")
    if not 2 <= pairs <= 512:
        raise BadInput(f"pairs must be 2 to 512, got {pairs}")
    if samples < 1:
        raise BadInput(f"samples must be at least 1, got {samples}")
    if chat and not getattr(tokenizer, "chat_template", None):
        raise BadInput("the tokenizer has no chat template")
    form = KINDS[kind]
    names = _most_alike(tokenizer, NAMES, pairs)
    words = _most_alike(tokenizer, form.words, 8)
    draw = random.Random(seed)
    first = draw.random()
    prompts = []
    for sample in range(samples):
        people = draw.sample(names if len(names) < len(NAMES) else names[:pairs], pairs)
        liked = [draw.choice(words) for _ in people]
        asked = int((first + sample / samples) % 1 * pairs)
        prompts.append(_binding_prompt(tokenizer, form, people, liked, asked, chat))
    return prompts


def _binding_prompt(
    tokenizer: Any, form: Kind, people: Sequence[str], liked: Sequence[str], asked: int, chat: bool
) -> Prompt:
    statements = [" " + form.statement.format(name=name, word=word) for name, word in zip(people, liked, strict=True)]
    question = " " + form.question.format(name=people[asked])
    body = form.preamble + "".join(statements) + question
    opening = form.answer.format(name=people[asked])
    if chat:
        message = [{"role": "user", "content": body}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True) + opening
    else:
        text = f"{body} {opening}"
    at = text.index(statements[0], text.index(form.preamble))
    characters: list[Span] = []
    for statement in statements:
        characters.append((at, at + len(statement)))
        at += len(statement)
    ids, tokens = tokenize(tokenizer, text, special=not chat)
    spans = token_spans(characters, tokens)
    kept = equal_blocks(spans)
    longer, _ = tokenize(tokenizer, f"{text} {liked[asked]}", special=not chat)
    return Prompt(
        ids=tuple(ids),
        blocks=tuple(spans[index] for index in kept),
        text=text,
        answer=longer[len(ids)] if longer[: len(ids)] == ids and len(longer) > len(ids) else None,
        target=kept.index(asked) if asked in kept else None,
        left_out=len(statements) - len(kept),
    )


def _most_alike(tokenizer: Any, words: Sequence[str], wanted: int) -> list[str]:
    """Words of one length in tokens, the shortest with enough of them; else the most common length first."""
    spans: list[Span] = []
    at = 0
    for word in words:
        spans.append((max(at - 1, 0), at + len(word)))
        at += len(word) + 1
    _, tokens = tokenize(tokenizer, " ".join(words), special=False)
    lengths = [stop - start for start, stop in token_spans(spans, tokens)]
    common = Counter(lengths)
    enough = [length for length, count in common.items() if count >= wanted]
    best = min(enough) if enough else common.most_common(1)[0][0]
    alike = [word for word, length in zip(words, lengths, strict=True) if length == best]
    return alike if enough else alike + [word for word in words if word not in set(alike)]
