"""Numbers of the pages on rotations, from the stored tables (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from scipy import stats

from docs_tables import bench, results, span, table, thousands
from rotations import markdown
from wherewhat.core.kinds import kind
from wherewhat.studies.rotations.experiment import summarise
from wherewhat.studies.stats import interval, resamples


def rotations(measure: str) -> str:
    """A table of tools/rotations.py."""
    parts = markdown(summarise(results("rotations"))).split("\n\n")
    (found,) = (part for part in parts if part.startswith(f"| {measure}: model, documents"))
    return f"\n\n{found}\n\n"


def paired(share: int, length: int = 256) -> str:
    """By how much the plan per head has a smaller KL than norm on the same documents of stories15M."""
    found = results("rotations").query("measure == 'kl' and share == @share and length == @length")
    pairs = found.pivot_table(index=["set", "unit"], columns="criterion", values="value")
    less = pairs["norm"] - pairs["plan per head"]
    low, high = interval(resamples(len(less), 0) @ torch.tensor(less.to_numpy()))
    return f"{less.mean():.2f} less ({low:.2f} to {high:.2f}), on {(less > 0).sum()} of {len(less)} documents"


def planning() -> str:
    rows = (
        (one["model"], thousands(one["tokens"]), f"{one['plain s']:.2g} s", f"**{one['planning ratio']:.2f}**")
        for one in bench("rotations")
    )
    return table("model | tokens | plain pass | planning, relative to it", rows)


def planes() -> pd.DataFrame:
    """The planes of all heads, with their kinds by the rule for heads."""
    found = results("rotations-relation")
    return found.assign(
        kind=[kind(*pair) for pair in zip(found["positional"].tolist(), found["symbolic"].tolist(), strict=True)]
    )


def shares(found: pd.DataFrame, name: str) -> tuple[float, float]:
    """Which share of planes is of a kind, and which share of all effect they have, in percent."""
    these = found["kind"] == name
    return 100 * these.mean(), 100 * found["effect"][these].sum() / found["effect"].sum()


def relation() -> str:
    """Rank correlations with the effect, over all planes of a model."""
    rows = []
    for model, found in planes().groupby("model", sort=False):
        r = {
            name: stats.spearmanr(found[name], found["effect"])[0]
            for name in ("norm", "positional", "symbolic", "radians")
        }
        shown = [f"**{value:.2f}**" if name == "symbolic" else f"{value:.2f}" for name, value in r.items()]
        share, effect = shares(found, "unfocused")
        name = f"{str(model).removesuffix('.Q4_1')}, {found['tokens'].iloc[0]} tokens, {found['pairs'].iloc[0]} pairs"
        rows.append([name, thousands(len(found)), *shown, f"{share:.0f} %, {effect:.0f} %"])
    header = "norm | positional | symbolic | radians over the prompt | unfocused planes: share, and of all effect"
    return table(f"model | planes of heads | {header}", rows)


def effect_of(name: str, column: int) -> str:
    """The share of planes of a kind (0) or of their effect (1), over models, in percent."""
    return span((shares(found, name)[column] for _, found in planes().groupby("model")), ".0f")


def plane(frequency: int, column: str, form: str) -> str:
    """The mean over the heads of SmolLM2 of one plane."""
    found = planes().query("model.str.startswith('SmolLM2') and frequency == @frequency")
    return f"{found[column].mean():{form}}"


def other_norms() -> str:
    """The largest mean norm of any other plane of SmolLM2."""
    found = planes().query("model.str.startswith('SmolLM2') and frequency not in (24, 25)")
    return f"{found.groupby('frequency')['norm'].mean().max():.1f}"


ROTATIONS: dict[str, Callable[[], str]] = {
    "rotations, KL": partial(rotations, "KL"),
    "rotations, loss": partial(rotations, "loss"),
    "planning": planning,
    "plan per head against norm": partial(paired, 8),
    "effects and scores": relation,
    "effect of unfocused planes": partial(effect_of, "unfocused", 1),
    "share of mixed planes": partial(effect_of, "mixed", 0),
    "effect of mixed planes": partial(effect_of, "mixed", 1),
    "other norms": other_norms,
    **{
        f"{column} of plane {frequency}": partial(plane, frequency, column, form)
        for frequency in (1, 24, 25)
        for column, form in (("norm", ".1f"), ("effect", ".3f"))
    },
    **{f"radians of plane {frequency}": partial(plane, frequency, "radians", ".2f") for frequency in (24, 25)},
}
