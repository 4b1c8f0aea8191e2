"""Which ablations are tried: the standard battery, and random controls of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ...core.bands import band
from ...errors import BadInput
from .selections import HeadSpec, ranked

FRACTIONS = (0.05, 0.1, 0.2, 0.4)
BANDS = {
    "fast": "fastest quarter",
    "mid-fast": "second quarter",
    "mid-slow": "third quarter",
    "slow": "slowest quarter",
}
DRAWS = 5
RANDOM = "random"
ACTIONS = ("ablate", "drop", "freeze", "keep")


@dataclass(frozen=True)
class Trial:
    """One ablation: what is chosen, how it is ablated (one of ACTIONS), and its size; `draw` numbers random controls.

    `kind` states how much is chosen and where: controls are compared with the trials of their kind. `alone` is the
    head, if there is only one.
    """

    what: str
    how: str
    choices: tuple[HeadSpec, ...]
    number: int
    fraction: float
    kind: str
    draw: int | None = None
    alone: HeadSpec | None = None
    asked: bool = True  # whether the model answers some prompts, to be read


class Trials:
    """Makes trials for a model with these heads and this many rotary planes, and controls that match them.

    Without scores in the table of heads there is no battery; single heads and controls of the battery are those with
    scores.
    """

    def __init__(self, heads: pd.DataFrame, planes: int) -> None:
        self.every = sorted(
            {(int(layer), int(head)) for layer, head in zip(heads["layer"], heads["head"], strict=True)}
        )
        scored = "positional" in heads
        self.ranked = {axis: ranked(heads, axis) for axis in ("positional", "symbolic")} if scored else {}
        self.heads, self.planes = sorted(self.ranked["positional"]) if scored else list(self.every), planes

    def battery(self, fractions: Sequence[float] = FRACTIONS, bands: dict[str, str] = BANDS) -> list[Trial]:
        """The standard trials: the most positional and the most symbolic heads, and bands of frequencies."""
        numbers = sorted({round(fraction * len(self.heads)) for fraction in fractions})
        if not 1 <= numbers[0] <= numbers[-1] < len(self.heads):
            raise BadInput(
                f"fractions of {len(self.heads)} heads must select at least one and not all of them, got "
                + ", ".join(f"{one:g}" for one in fractions)
            )
        trials = []
        for number in numbers:
            trials += [self.trial(f"{axis} heads", "ablate", order[:number]) for axis, order in self.ranked.items()]
        for how in ("drop", "freeze", "keep") if self.planes else ():
            trials += [self.trial(f"{name} frequencies", how, [(None, None, words)]) for name, words in bands.items()]
        return trials

    def trial(self, what: str, how: str, choices: Sequence[HeadSpec], draw: int | None = None) -> Trial:
        if how == "ablate":
            heads = [place for place in self.every if any(_names(one, place) for one in choices)]
            number, alone = len(heads), heads[0] if len(heads) == 1 else None
            share = number / len(self.heads)
            return Trial(what, how, tuple(choices), number, share, f"{number} heads", draw, alone)
        sizes = {place: len(ids) for place, ids in self.frequencies(choices).items()}
        share = sum(sizes.values()) / (self.planes * (1 if (None, None) in sizes else len(self.heads)))
        return Trial(
            what, how, tuple(choices), sum(sizes.values()), share, f"{how} {sorted(sizes.items(), key=str)}", draw
        )

    def head_set(self, what: str, choices: Sequence[HeadSpec]) -> Trial:
        """A set of heads, whose controls are drawn within the same layers."""
        trial = self.trial(what, "ablate", choices)
        heads = tuple(place for place in self.every if any(_names(one, place) for one in choices))
        return replace(trial, choices=heads or trial.choices, kind=f"within layers {heads}")

    def frequencies(self, choices: Sequence[HeadSpec]) -> dict[tuple[Any, Any], set[int]]:
        """The frequency IDs chosen for each (layer, head)."""
        chosen: dict[tuple[Any, Any], set[int]] = {}
        for choice in choices:
            layer, head, one = (*choice, None, None)[:3]
            ids = (
                range(1, self.planes + 1) if one is None else band(one, self.planes) if isinstance(one, str) else [one]
            )
            chosen.setdefault((layer, head), set()).update(ids)
        return chosen

    def each_head(self) -> list[Trial]:
        """Every head by itself, and all of them again as the control: a head drawn at random may be any of them."""
        alone = [self.trial(f"head {layer}.{head}", "ablate", [(layer, head)]) for layer, head in self.heads]
        alone = [replace(trial, asked=False) for trial in alone]
        return alone + [replace(trial, what=RANDOM, draw=draw) for draw, trial in enumerate(alone)]

    def controls(self, trials: Sequence[Trial], draws: int = DRAWS, seed: int = 0) -> list[Trial]:
        """For each kind of trial without a control, several random draws of as many heads, or of as many frequencies of
        the same heads."""
        drawn, controlled = [], {trial.kind for trial in trials if trial.draw is not None}
        for kind, trial in {trial.kind: trial for trial in trials if trial.kind not in controlled}.items():
            for draw in range(draws):
                # One seed per kind and draw, so that the draws do not depend on which other kinds there are.
                chance = np.random.default_rng([seed, draw, *kind.encode()])
                control = self.trial(RANDOM, trial.how, self._at_random(trial, chance), draw)
                drawn.append(replace(control, kind=kind))
        return drawn

    def _at_random(self, trial: Trial, chance: np.random.Generator) -> list[HeadSpec]:
        def some(things: Sequence[Any], number: int) -> list[Any]:
            return [things[at] for at in sorted(chance.choice(len(things), min(number, len(things)), replace=False))]

        if trial.kind.startswith("within layers"):
            return self._in_the_same_layers(trial.choices, chance)
        if trial.how == "ablate":
            return some(self.heads, trial.number)
        everything, chosen = range(1, self.planes + 1), self.frequencies(trial.choices)
        return [(*place, one) for place, ids in chosen.items() for one in some(everything, len(ids))]

    def _in_the_same_layers(self, chosen: Sequence[HeadSpec], chance: np.random.Generator) -> list[HeadSpec]:
        """As many other heads of each layer as there are chosen ones. Where a layer has too few others, heads of other
        layers take their place; where the model has too few, the chosen heads themselves."""
        drawn: list[HeadSpec] = []
        order = [self.every[at] for at in chance.permutation(len(self.every))]
        others, own = ([place for place in order if (place in chosen) == same] for same in (False, True))
        for layer in sorted({place[0] for place in chosen}, key=str):
            number = sum(place[0] == layer for place in chosen)
            drawn += [place for place in others if place[0] == layer][:number]
        missing = [place for place in (*others, *own) if place not in drawn][: len(chosen) - len(drawn)]
        return sorted([*drawn, *missing], key=str)


def _names(choice: HeadSpec, place: HeadSpec) -> bool:
    """Whether a choice, in which None or a missing part stands for all, includes this head."""
    return all(part in (None, own) for part, own in zip(choice, place, strict=False))
