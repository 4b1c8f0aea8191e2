"""Numbers of the pages on rotations, from the stored tables (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import pandas as pd
import torch
from scipy import stats

from docs_tables import bench, results, span, table, thousands
from wherewhat.core.kinds import kind
from wherewhat.studies.rotations.experiment import LENGTHS, summarise
from wherewhat.studies.stats import interval, resamples

LABELS = {
    "SmolLM2-135M-Instruct.Q4_1": "SmolLM2-135M",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B",
}
BY = ["model", "documents", "length", "share"]
# Criteria of the tables; those of the first group have intervals.
CHOSEN, OTHERS = ("plan", "plan per head", "norm"), ("norm over the model", "highest", "uniform", "random")
CONTROLS = ("shuffled text", "shuffled heads", "lowest")


@cache
def summary() -> pd.DataFrame:
    """Means over the five sets where calibration and test have one length."""
    return summarise(results("rotations").query("calibrated == length"))


def label(model: str, documents: str) -> str:
    return LABELS.get(model, model) + (", own samples" if documents == "own samples" else "")


def losses(measure: str, criteria: Sequence[str], intervals: Sequence[str] = ()) -> str:
    """A measure by model, length and share of planes kept: one column per criterion, the best one in bold."""
    found = summary()
    found = found[(found["measure"] == measure) & found["criterion"].isin(["none", *criteria])]
    plain = found.query("criterion == 'none'").set_index(BY[:3])["value"]
    header = " | ".join(["model", "tokens", "kept", *(["unmodified"] if measure != "kl" else []), *criteria])
    rows = []
    for key, group in found.query("share > 1").groupby(BY, sort=False):
        by, three = group.set_index("criterion"), 3 if measure == "kl" else 2
        best = by["value"].idxmax() if measure == "binding" else by["value"].idxmin()
        cells = [f"{plain[key[:3]]:.{three}f}"] if measure != "kl" else []
        for name in criteria:
            value = f"{by['value'][name]:.{three}f}"
            around = f" ({by['low'][name]:.{three}f} to {by['high'][name]:.{three}f})" if name in intervals else ""
            cells.append((f"**{value}**" if name == best else value) + around)
        rows.append([label(*key[:2]), thousands(key[2]), f"1/{key[3]}", *cells])
    return table(header, rows)


def pairs() -> pd.DataFrame:
    """KL of every document under every criterion, where calibration and test have one length."""
    found = results("rotations").query("measure == 'kl' and calibrated == length and share > 1")
    return found.pivot_table(index=[*BY, "set", "unit"], columns="criterion", values="value", sort=False)


def against(one: str, other: str) -> str:
    """By how much a criterion has a smaller KL than another on the same documents."""
    rows = []
    for key, found in pairs().groupby(BY, sort=False):
        less = found[other] - found[one]
        low, high = interval(resamples(len(less), 0) @ torch.tensor(less.to_numpy()))
        rows.append(
            [
                label(*key[:2]), thousands(key[2]), f"1/{key[3]}", f"{less.mean():.3f}", f"{low:.3f} to {high:.3f}",
                f"{(less > 0).sum()} of {len(less)}",
            ]
        )  # fmt: skip
    return table("model | tokens | kept | less KL | 95 % interval | documents with less", rows)


def across() -> str:
    """KL where calibration and test differ in length."""
    found = results("rotations")
    found = summarise(found[(found["measure"] == "kl") & found["criterion"].isin(CHOSEN)])
    found = found[found.groupby(["model", "documents"])["calibrated"].transform("nunique") > 1]
    rows = []
    for key, group in found.groupby(["model", "documents", "share", "criterion"], sort=False):
        wide = group.pivot_table(index="calibrated", columns="length", values="value")
        for calibrated, values in wide.reindex(columns=LENGTHS).iterrows():
            cells = ["" if pd.isna(value) else f"{value:.3f}" for value in values]
            rows.append([label(*key[:2]), f"1/{key[2]}", key[3], thousands(calibrated), *cells])
    return table(
        " | ".join(["model", "kept", "criterion", "calibrated at", *(f"tested at {one:,}" for one in LENGTHS)]), rows
    )


def finetuned() -> str:
    """KL and loss on held-out samples, before and after training with each criterion in force."""
    found = results("rotations-finetuned")
    rows = []
    for criterion, group in found.groupby("criterion", sort=False):
        by = group.set_index("step")
        steps = [step for step in (0, 50, 100, 300) if step in by.index]
        rows.append(
            [criterion, *(f"{by['kl'][step]:.3f}" for step in steps), *(f"{by['loss'][step]:.3f}" for step in steps)]
        )
    header = [f"{name} at step {step}" for name in ("KL", "loss") for step in steps]
    return table(" | ".join(["kept by", *header]), rows)


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
    "rotations, KL": partial(losses, "kl", (*CHOSEN, *OTHERS), CHOSEN),
    "rotations, controls": partial(losses, "kl", ("plan", *CONTROLS)),
    "rotations, loss": partial(losses, "loss", (*CHOSEN, *OTHERS)),
    "rotations, copies": partial(losses, "copy_loss", (*CHOSEN, *OTHERS[1:])),
    "rotations, binding": partial(losses, "binding", (*CHOSEN, *OTHERS[1:])),
    "plan per head against norm": partial(against, "plan per head", "norm"),
    "plan against norm over the model": partial(against, "plan", "norm over the model"),
    "planning": planning,
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
