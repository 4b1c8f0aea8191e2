"""The binding task: a list of statements such as who likes what, and a question about one of them."""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import Any

from ..errors import BadInput
from ..words import MOST_PAIRS
from .chat import in_chat
from .prompt import Prompt, answer_token, equal_blocks, joined, token_spans, token_texts, tokenize

NAMES = files("wherewhat.prompts").joinpath("names.txt").read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class Kind:
    """A kind of attribute: its noun, the words of its statement and question, and its values."""

    noun: str
    about: str
    says: str
    asks: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """The wording of preamble, statement, question and answer; fields of the kind stand in braces."""

    preamble: str
    statement: str
    question: str
    opening: str


TEMPLATES = {
    "plain": Template("Here is a list of {about}.", "{name} {says} {word}.", "{asks}", "{name} {says}"),
    "favorite": Template(
        "Here is a list of people, each with a favorite {noun}.",
        "The favorite {noun} of {name} is {word}.",
        "What is the favorite {noun} of {name}?",
        "The favorite {noun} of {name} is",
    ),
    "record": Template(
        "Here is a list of names, each with one {noun}.",
        "{name}: {word}.",
        "Which {noun} stands beside {name}?",
        "{name}:",
    ),
    # The answer comes before the name, so an induction head that matches the preceding token does not find it.
    "owner": Template(
        "Here is a list of people, each with one {noun}.",
        "The {noun} {word} belongs to {name}.",
        "Which {noun} belongs to {name}?",
        "The {noun} of {name} is",
    ),
}

KINDS = {
    "color": Kind(
        "color",
        "what people like",
        "likes",
        "What color does {name} like?",
        tuple(
            "red blue green yellow orange purple pink brown black white gray gold silver violet indigo turquoise beige "
            "cyan magenta crimson scarlet ivory olive navy teal coral amber bronze copper lavender maroon peach ruby "
            "tan lime azure emerald jade rose mint".split()
        ),
    ),
    "fruit": Kind(
        "fruit",
        "what people ate today",
        "ate the",
        "Which fruit did {name} eat?",
        tuple(
            "apple banana cherry grape lemon lime mango melon orange peach pear plum fig kiwi papaya apricot coconut "
            "pineapple strawberry raspberry blueberry blackberry watermelon date olive guava lychee quince nectarine "
            "tangerine pomegranate cranberry avocado tomato".split()
        ),
    ),
    "city": Kind(
        "city",
        "where people live",
        "lives in",
        "Which city does {name} live in?",
        tuple(
            "London Paris Berlin Rome Madrid Vienna Prague Dublin Lisbon Athens Oslo Stockholm Copenhagen Helsinki "
            "Warsaw Budapest Moscow Istanbul Cairo Lagos Nairobi Delhi Mumbai Tokyo Beijing Shanghai Seoul Bangkok "
            "Singapore Sydney Melbourne Toronto Montreal Chicago Boston Dallas Denver Houston Miami Seattle Havana "
            "Lima Bogota Santiago".split()
        ),
    ),
    "animal": Kind(
        "animal",
        "the animals that people keep",
        "keeps a",
        "Which animal does {name} keep?",
        tuple(
            "dog cat horse cow pig goat sheep rabbit mouse rat hamster parrot pigeon duck goose chicken turkey donkey "
            "camel llama snake lizard turtle frog fox wolf bear lion tiger monkey".split()
        ),
    ),
}


def binding(
    tokenizer: Any,
    pairs: int = 64,
    samples: int = 8,
    seed: int = 0,
    kind: str = "color",
    chat: bool = False,
    template: str = "plain",
    group: int = 1,
    questions: int = 1,
) -> list[Prompt]:
    """Prompts of `pairs` statements, a question about one of them, and the beginning of its answer.

    Names and words are chosen such that statements have the same number of tokens with this tokenizer, and such that
    the first token of a word identifies it. If there are not enough such names, others fill up the prompt but are not
    swapped. The position of the statement in question is spread evenly over all prompts. Every `group` neighbouring
    statements form one block. With several `questions`, that many neighbouring prompts have the same list.

    >>> prompt = binding(tokenizer, pairs=16, samples=1)[0]            # doctest: +SKIP
    >>> prompt.text                                                    # doctest: +SKIP
    'Here is a list of what people like. Alice likes red. ... What color does Alice like? Alice likes'
    """
    check_binding(pairs, samples, kind, template, group)
    if questions < 1:
        raise BadInput(f"questions must be at least 1, got {questions}")
    names, words = _names_alike(tokenizer, pairs), _words_apart(tokenizer, KINDS[kind].words)
    draw = random.Random(seed)
    first = draw.random()
    prompts = []
    for sample in range(samples):
        people = draw.sample(names, pairs)
        given = list(zip(people, (draw.choice(words) for _ in people), strict=True))
        for question in range(questions):
            asked = int((first + (sample + question * samples) / (samples * questions)) % 1 * pairs)
            prompts.append(_binding_prompt(tokenizer, KINDS[kind], TEMPLATES[template], given, asked, chat, group))
    return prompts


def check_binding(pairs: int, samples: int, kind: str, template: str, group: int = 1) -> None:
    """Refuse settings that no tokenizer could make a prompt of."""
    if kind not in KINDS:
        raise BadInput(f"no attribute kind {kind!r}; available: {', '.join(KINDS)}")
    if template not in TEMPLATES:
        raise BadInput(f"no template {template!r}; available: {', '.join(TEMPLATES)}")
    if not 2 <= pairs <= MOST_PAIRS:
        raise BadInput(f"pairs must be 2 to {MOST_PAIRS}, got {pairs}")
    if samples < 1:
        raise BadInput(f"samples must be at least 1, got {samples}")
    if not 1 <= group <= pairs // 2:
        raise BadInput(
            f"group must be 1 to {pairs // 2} statements per block, so that {pairs} pairs give two, got {group}"
        )


def _binding_prompt(
    tokenizer: Any, kind: Kind, template: Template, given: Sequence[tuple[str, str]], asked: int, chat: bool, group: int
) -> Prompt:
    def fill(part: str, name: str = "", word: str = "") -> str:
        asks = kind.asks.format(name=name)
        return part.format(name=name, word=word, noun=kind.noun, about=kind.about, says=kind.says, asks=asks)

    name, word = given[asked]
    preamble, statements = fill(template.preamble), [" " + fill(template.statement, *pair) for pair in given]
    body = preamble + "".join(statements) + " " + fill(template.question, name)
    opening = fill(template.opening, name)
    if chat:
        text = in_chat(tokenizer, [{"role": "user", "content": body}]) + opening
        if body not in text:
            raise BadInput("the chat template changes the prompt, so its blocks cannot be found")
    else:
        text = f"{body} {opening}"
    at = text.index(statements[0], text.index(preamble))
    ends = [at, *(at + length for length in accumulate(map(len, statements)))]
    ids, tokens = tokenize(tokenizer, text, special=not chat)
    spans = token_spans(list(pairwise(ends)), tokens)
    blocks = joined([spans[index] for index in equal_blocks(spans)], group)
    numbers = [bisect([first for first, _ in blocks], start) - 1 for start, _ in spans]
    block_of = {
        index: number
        for index, (number, (start, stop)) in enumerate(zip(numbers, spans, strict=True))
        if number >= 0 and start < stop <= blocks[number][1]
    }
    if block_of and asked not in block_of:  # the question must be about a block: take the nearest one
        nearest = min(block_of, key=lambda index: abs(index - asked))
        return _binding_prompt(tokenizer, kind, template, given, nearest, chat, group)
    labels = ["" for _ in blocks]
    for index, number in block_of.items():
        labels[number] += statements[index]
    ids, answer = answer_token(tokenizer, ids, text, f" {word}", special=not chat)
    return Prompt(
        ids=tuple(ids),
        blocks=tuple(blocks),
        text=text,
        answer=answer,
        target=block_of.get(asked),
        skipped=len(statements) - len(block_of),
        choices=len({liked for _, liked in given}),
        labels=tuple(label.strip() for label in labels),
        tokens=token_texts(tokenizer, ids, text, tokens),
        says=word,
    )


def _names_alike(tokenizer: Any, pairs: int) -> list[str]:
    """Names with the same number of tokens, the smallest with enough names; else the most common one, then the rest."""
    lengths = [length for length, _ in _token_forms(tokenizer, NAMES)]
    common = Counter(lengths)
    enough = [length for length, count in common.items() if count >= pairs]
    best = min(enough) if enough else common.most_common(1)[0][0]
    alike = [name for name, length in zip(NAMES, lengths, strict=True) if length == best]
    return alike if enough else (alike + [name for name in NAMES if name not in set(alike)])[:pairs]


def _words_apart(tokenizer: Any, words: Sequence[str], wanted: int = 8) -> list[str]:
    """Words with the same number of tokens and distinct first tokens: the smallest with enough words, else the most."""
    forms = dict(zip(reversed(words), reversed(_token_forms(tokenizer, words)), strict=True))
    first = {form: word for word, form in forms.items()}  # of words with one form, the first in the list
    groups = [
        [word for word in words if forms[word][0] == length and first[forms[word]] == word]
        for length in sorted({length for length, _ in first})
    ]
    return next((group for group in groups if len(group) >= wanted), max(groups, key=len))


def _token_forms(tokenizer: Any, words: Sequence[str]) -> list[tuple[int, int]]:
    """The number of tokens of each word after a space, and its first token that is not blank."""
    text = " ".join(words)
    ends = [0, *(length - 1 for length in accumulate(len(word) + 1 for word in words))]
    ids, tokens = tokenize(tokenizer, text, special=False)
    spans = token_spans(list(pairwise(ends)), tokens)
    first = [next((ids[at] for at in range(*span) if text[slice(*tokens[at])].strip()), -1) for span in spans]
    return [(stop - start, token) for (start, stop), token in zip(spans, first, strict=True)]
