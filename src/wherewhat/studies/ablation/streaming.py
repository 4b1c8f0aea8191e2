"""Trials in which heads stream: by a criterion at several shares of the key heads, by a pattern, or heads by name; and
random controls within the same layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ...errors import BadInput
from ...prompts import repeats
from ...tracing import capture
from ...tracing.self_check import stated_context
from ...tracing.windows import RECENT, SINK, check_window
from ..profile.result import Profile
from .patterns import PATTERN, distant_mass, echo_and_induction, need, read_pattern, streaming
from .selections import head_set_of, select_heads
from .trials import RANDOM, Trial

SHARES = (0.25, 0.5, 0.75)
# What decides which key heads keep full attention: those with the largest scores.
CRITERIA = ("need", "distant", "echo")
BEYOND = 32  # tokens by which a repeated token lies outside the recent ones
REPEATS = 4  # prompts of repeated tokens on which the criterion "echo" is measured
Place = tuple[int, int]


@dataclass(frozen=True)
class Stream:
    """What is to stream, read before a model is loaded: criteria and words for heads, patterns, and the window."""

    names: tuple[str, ...]
    patterns: dict[str, np.ndarray]
    sink: int
    recent: int
    weights: tuple[str, ...] = ()  # of the models that the patterns were made for

    @property
    def period(self) -> int:
        """Tokens after which random tokens repeat, so that no streaming head sees their first copy."""
        return self.recent + BEYOND

    def stretch(self, model: Any) -> int:
        """Tokens of a stretch of text, most of which a streaming head does not see at its end."""
        return min(4 * self.recent, stated_context(model) or 4 * self.recent)


def read_stream(words: Sequence[str], given: Profile | None, sink: int | None, recent: int | None) -> Stream:
    """What these words choose. Without `sink` and `recent`, the window of the first pattern, or 4 and 64 tokens."""
    names = tuple(dict.fromkeys(one for word in words for one in (CRITERIA if word.strip() == "all" else (word,))))
    patterns, configs = {}, []
    for name in names:
        if name == "need" and given is None:
            raise BadInput("streaming by need uses the scores of a profile: give --profile FOLDER")
        if name in CRITERIA:
            continue
        if (Path(name) / PATTERN).exists():
            patterns[name], config = read_pattern(name)
            configs.append(config)
        else:
            select_heads(name, given)  # refuses what does not choose heads
    stated = {key: next((one[key] for one in configs if key in one), None) for key in ("sink_size", "recent_size")}
    sink = next(one for one in (sink, stated["sink_size"], SINK) if one is not None)
    recent = next(one for one in (recent, stated["recent_size"], RECENT) if one is not None)
    check_window(int(sink), int(recent))
    weights = tuple(str(one["weights"]) for one in configs if "weights" in one)
    return Stream(names, patterns, int(sink), int(recent), weights)


class Streaming:
    """Makes trials in which heads of a model stream, and their controls."""

    def __init__(self, model: Any, stream: Stream, given: Profile | None, reference: Tensor, weights: str) -> None:
        if any(one != weights for one in _named_weights(stream)):
            raise BadInput("a pattern or set of heads was made for another model: weights or configuration differ")
        self.model, self.stream, self.given, self.reference = model, stream, given, reference
        self.heads = _heads(model, reference) if given is None else given.heads
        self.groups: dict[Place, list[Place]] = {}
        for layer, head, key in zip(*(self.heads[name] for name in ("layer", "head", "kv_head")), strict=True):
            self.groups.setdefault((int(layer), int(key)), []).append((int(layer), int(head)))

    def trials(self, shares: Sequence[float], tokenizer: Any, draws: int, seed: int) -> list[Trial]:
        """One trial for each criterion or pattern and share, one for each set of heads, and the controls of all."""
        made = []
        for name in self.stream.names:
            if name in CRITERIA or name in self.stream.patterns:
                score = self._score(name, tokenizer, seed)
                short = name if name in CRITERIA else Path(name).name
                made += [
                    self._trial(f"{share:.0%} by {short}", streaming(self.heads, score, share)) for share in shares
                ]
            else:
                chosen = select_heads(name, self.given)
                every = [place for group in self.groups.values() for place in group]
                some = [one for one in every if any(_includes(choice, one) for choice in chosen)]
                made.append(self._trial(name, some or chosen))
        return [*made, *self._controls(made, draws, seed)]

    def _controls(self, trials: Sequence[Trial], draws: int, seed: int) -> list[Trial]:
        """For each trial several draws in which as many heads of each layer stream, whole key heads where the trial has
        whole key heads."""
        made: dict[tuple[str, int], Trial] = {}
        for trial in trials:
            chosen = set(trial.choices)
            whole = all(chosen.issuperset(group) or chosen.isdisjoint(group) for group in self.groups.values())
            units = list(self.groups.values()) if whole else [[one] for group in self.groups.values() for one in group]
            number = Counter(unit[0][0] for unit in units if unit[0] in chosen)
            for draw in range(draws):
                chance = np.random.default_rng([seed, draw, *trial.kind.encode()])
                drawn = []
                for layer, count in sorted(number.items()):
                    own = [unit for unit in units if unit[0][0] == layer]
                    drawn += [own[at] for at in sorted(chance.choice(len(own), count, replace=False))]
                places = [place for unit in drawn for place in unit]
                made[trial.kind, draw] = self._trial(RANDOM, places, trial.kind, draw)
        return list(made.values())

    def warnings(self, longest: int) -> list[str]:
        """A sentence if no token of the binding prompts, of at most `longest` tokens, is outside the window."""
        window = self.stream.sink + self.stream.recent
        if longest > window:
            return []
        return [
            f"binding prompts have up to {longest} tokens, and a streaming head sees {window}: give more --pairs, or a "
            "smaller --recent"
        ]

    def _trial(self, what: str, places: Sequence[Any], kind: str | None = None, draw: int | None = None) -> Trial:
        total = sum(map(len, self.groups.values()))
        kind = kind or f"stream {sorted(Counter(place[0] for place in places).items(), key=str)}"
        return Trial(what, "stream", tuple(places), len(places), len(places) / total, kind, draw, asked=draw is None)

    def _score(self, name: str, tokenizer: Any, seed: int) -> pd.Series:
        """The score of every head: heads with small ones stream."""
        if name == "need":
            return need(self.heads)
        if name in self.stream.patterns:
            table = self.stream.patterns[name]
            layers, keys = (1 + max(place[at] for place in self.groups) for at in (0, 1))
            if table.shape != (layers, keys):
                raise BadInput(
                    f"{name}: a pattern of {table.shape[0]} layers with {table.shape[1]} key heads, but the model has "
                    f"{layers} with {keys}"
                )
            return pd.Series(table[self.heads["layer"], self.heads["kv_head"]])
        if name == "distant":
            scores = distant_mass(self.model, self.reference, self.stream.sink, self.stream.recent)
        else:
            asked = repeats(tokenizer, self.stream.period, REPEATS, seed + 1)  # not those that are measured
            scores = echo_and_induction(self.model, asked)
        places = {layer: at for at, layer in enumerate(sorted(set(self.heads["layer"])))}
        rows = zip(self.heads["layer"], self.heads["head"], strict=True)
        return pd.Series([float(scores[places[layer], head]) for layer, head in rows])


def _named_weights(stream: Stream) -> list[str]:
    """The models that sets of heads and patterns were made for."""
    sets = [head_set_of(name) for name in stream.names if name not in stream.patterns]
    return [*stream.weights, *(one.weights for one in sets if one is not None and one.weights is not None)]


def _heads(model: Any, reference: Tensor) -> pd.DataFrame:
    """Layer, head and key head of every head, from a short capture."""
    trace = capture(model, reference[:1, :2], level="prompt")
    rows = [
        (layer.index, head, head // (layer.queries.shape[1] // layer.keys.shape[1]))
        for layer in trace.attention
        for head in range(layer.queries.shape[1])
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "kv_head"])


def _includes(choice: Sequence[Any], place: Place) -> bool:
    return all(part in (None, own) for part, own in zip(choice, place, strict=False))
