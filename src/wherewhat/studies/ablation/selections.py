"""Which heads and frequencies to ablate: by number, by band, or by their scores in a profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from ...core.bands import band
from ...errors import BadInput
from ...lab import Transformer
from ...lab.gptj import to_gptj
from ...prompts.text import read_text
from ...tracing.fingerprint import model_hash
from ..head_set import HeadSet
from ..profile.result import Profile
from ..profile.roles import RETRIEVES, ROLES, in_role

HeadSpec = tuple[int | str | None, ...]
AXES = {"positional": "symbolic", "symbolic": "positional"}
KINDS = ("where", "what", "unfocused", "mixed")
NUMBERS = r"(\d+|\*)(\.(\d+|\*)){0,2}"
HEADS = re.compile(r"(?:(?P<number>\d+)(?P<percent>%?) most )?(?:(?P<which>[\w-]+) )?heads(?: with (?P<limits>.+))?")
LIMIT = re.compile(r"(\w+) (above|below) (\d*\.?\d+)")


def ranked(heads: pd.DataFrame, by: str) -> list[HeadSpec]:
    """(layer, head) of all heads that have a score, the largest first: positional and symbolic heads by the score on
    their axis minus that on the other, retrieving heads by their attention on the answer, others by their role."""
    columns = {"retrieving": RETRIEVES, **ROLES}
    lead = heads[by] - heads[AXES[by]] if by in AXES else heads[columns[by]]
    return _places(heads.assign(lead=lead).dropna(subset=["lead"]).sort_values("lead", ascending=False, kind="stable"))


def select(words: str, measured: Profile | None = None) -> list[HeadSpec]:
    """Choices for `ww.gate` from words.

    "3.1" is head 1 of layer 3, "3.1.5" its frequency 5, "*.*.5" frequency 5 of every head, "fastest quarter" a band of
    every head, "slowest quarter of 3.1" that of one head. Commas join several choices, spaces several numbers; "@FILE"
    reads them from a file, where # starts a comment. With a profile there are also "10 most positional heads", "20%
    most symbolic heads", "10 most retrieving heads", "retrieving heads with on_blocks above 0.2", "what heads",
    "induction heads", and "frequencies with symbolic score above .9".

    >>> select("3.1.5"), select("3.0, 4.0 4.1"), select("slowest half of 3.1")
    ([(3, 1, 5)], [(3, 0), (4, 0), (4, 1)], [(3, 1, 'slowest half')])
    """
    if words.strip().startswith("@"):
        if (named_set := head_set_of(words)) is not None:
            return list(named_set.heads)
        lines = read_text(words.strip()[1:]).splitlines()
        words = ", ".join(line for line in (line.partition("#")[0].strip() for line in lines) if line)
    some, of, rest = words.partition(" of ")
    if of:
        band(some, planes=2**16)  # refuses what is not a band
        return [(*_head(one, words), *(None,) * (2 - len(one)), some.strip()) for one in select(rest, measured)]
    chosen = [one for part in re.split(r"[,;\n]", words) if part.strip() for one in _select(part.strip(), measured)]
    if not chosen:
        raise BadInput(
            f"{words!r} chooses nothing: give heads such as 3.1, or words such as '10 most positional heads'"
        )
    return list(dict.fromkeys(chosen))


def select_heads(words: str, measured: Profile | None = None) -> list[HeadSpec]:
    """Whole heads from words; words that choose frequencies or nothing at all are refused.

    >>> select_heads("16.3 16.7")
    [(16, 3), (16, 7)]
    """
    return [_head(one, words) for one in select(words, measured)]


def head_set_of(words: str) -> HeadSet | None:
    """The set of heads that "@FILE" names, if the file holds one and not words."""
    if not words.strip().startswith("@"):
        return None
    text = read_text(path := words.strip()[1:])
    return HeadSet.parse(text, path) if text.lstrip().startswith("{") else None


def choose(heads: HeadSet | str, measured: Profile) -> HeadSet:
    """A set of heads of this profile, from words or as it is given; heads that the profile lacks are refused."""
    weights, every = measured.about["settings"]["weights"], _places(measured.heads)
    made = heads if isinstance(heads, HeadSet) else head_set_of(heads)
    if made is None:
        picked = select_heads(str(heads), measured)
        named = [place for place in every if any(_includes(choice, place) for choice in picked)]
        if lost := [one for one in picked if not any(_includes(one, place) for place in every)]:
            raise BadInput(f"{heads!r}: the profile has no head {'.'.join(map(str, lost[0]))}")
        places = tuple((int(str(layer)), int(str(head))) for layer, head in named)
        return HeadSet(str(heads), places, measured.about["model"], weights, f"{heads}, from a profile")
    made.check(weights)
    if lost := [f"{layer}.{head}" for layer, head in made.heads if (layer, head) not in every]:
        raise BadInput(f"{made.name!r}: the profile has no head {lost[0]}")
    return made


def _includes(choice: HeadSpec, place: HeadSpec) -> bool:
    return all(part in (None, own) for part, own in zip(choice, place, strict=False))


def _head(choice: HeadSpec, words: str) -> HeadSpec:
    if len(choice) > 2:
        raise BadInput(
            f"{words!r} does not choose heads: give '3.1, 3.2', @FILE, '10 most retrieving heads', or "
            "'retrieving heads with on_blocks above 0.2'"
        )
    return choice


def _select(words: str, measured: Profile | None) -> list[HeadSpec]:
    plain = words.lower().removeprefix("the ").removeprefix("all ")
    parts = plain.split()
    if all(re.fullmatch(NUMBERS, part) for part in parts):
        return [tuple(None if one == "*" else int(one) for one in part.split(".")) for part in parts]
    if found := HEADS.fullmatch(plain):
        return _heads(words, _given(measured, words).heads, **found.groupdict())
    if found := re.fullmatch(r"frequencies with (positional|symbolic) score (above|below) (\d*\.?\d+)", plain):
        axis, side, limit = found.groups()
        table = _given(measured, words).frequencies
        chosen = table[_beyond(table[axis], side, limit)]
        if chosen.empty:
            raise BadInput(f"{words}: the profile has no such frequencies")
        rows = zip(chosen["layer"], chosen["head"], chosen["frequency"], strict=True)
        return [(int(layer), int(head), int(frequency)) for layer, head, frequency in rows]
    return [(None, None, words)]


def _heads(
    words: str, heads: Any, number: str | None, percent: str | None, which: str | None, limits: str | None
) -> list[HeadSpec]:
    """Heads of a kind or role that lie within limits, or the first of them in the order of an axis or role."""
    orders, names = (*AXES, "retrieving", *ROLES), (*KINDS, "retrieving", *ROLES)
    if which not in ((*orders,) if number else (None, *names)):
        known = ", ".join(orders if number else names)
        raise BadInput(f"{words!r}: no such heads; {'the most' if number else 'there are'} {known} heads")
    for limit in limits.split(" and ") if limits else ():
        found = LIMIT.fullmatch(limit.strip())
        if not found or found[1] not in heads:
            raise BadInput(f"{words!r}: a limit is a column of the table of heads, as in 'on_blocks above 0.2'")
        heads = heads[_beyond(heads[found[1]], found[2], found[3])]
    if which in KINDS:
        heads = heads[heads["kind"] == which]
    elif which is not None and number is None:
        heads = heads[in_role(heads, which)]
    order = ranked(heads, which) if which in orders else _places(heads)
    if number is None:
        if not order:
            raise BadInput(f"{words}: the profile has no such heads")
        return order
    count = round(int(number) / 100 * len(order)) if percent else int(number)
    if not 1 <= count <= len(order):
        raise BadInput(f"{words}: the profile has scores for {len(order)} heads")
    return order[:count]


def _places(heads: Any) -> list[HeadSpec]:
    return [(int(layer), int(head)) for layer, head in zip(heads["layer"], heads["head"], strict=True)]


def _beyond(values: Any, side: str, limit: str) -> Any:
    return values > float(limit) if side == "above" else values < float(limit)


def check_profile(measured: Profile, model: PreTrainedModel | Transformer) -> str:
    """The hash of a model; a profile of another model is refused."""
    weights = hash_of(model)
    if measured.about["settings"]["weights"] != weights:
        raise BadInput(
            f"the profile is of another model, {measured.about['model']}: its weights or configuration differ"
        )
    return weights


def hash_of(model: PreTrainedModel | Transformer) -> str:
    """The hash of a model, as its profile states it."""
    return model_hash(to_gptj(model) if isinstance(model, Transformer) else model)


def named(choices: Sequence[HeadSpec]) -> str:
    """Choices as `select` reads them.

    >>> named([(3, 1), (None, 0, 5)])
    '3.1, *.0.5'
    """
    return ", ".join(".".join("*" if part is None else str(part) for part in choice) for choice in choices)


def _given(measured: Profile | None, words: str) -> Profile:
    if measured is None:
        raise BadInput(f"{words!r} needs a profile: give --profile FOLDER")
    return measured
