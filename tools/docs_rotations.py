"""Numbers of the pages on rotations, from the stored tables (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import pandas as pd
from scipy import stats

from docs_tables import bench, results, span, table, thousands
from wherewhat.core.kinds import kind
from wherewhat.studies.rotations.experiment import ANSWERED, LENGTHS, SETS, summarise
from wherewhat.studies.stats import mean_interval

LABELS = {  # by name in the tables, in the order of the pages
    "stories15M": "stories15M",
    "SmolLM2-135M-Instruct.Q4_1": "SmolLM2-135M",
    "gemma-3-270m": "gemma-3-270m",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B",
}
BY = ["model", "documents", "length", "share"]
# Criteria of the tables; those of the first group have intervals.
CHOSEN, OTHERS = ("plan", "plan per head", "norm"), ("norm over the model", "highest", "uniform", "random")
CONTROLS = ("shuffled text", "shuffled heads", "lowest")
ENDS = (min(LENGTHS), max(LENGTHS))


@cache
def trials() -> pd.DataFrame:
    """All rows, in the order of the pages."""
    found = results("rotations")
    models, documents = [*LABELS], ["packaged", "own samples", "copies"]
    ordered = found.assign(model=found["model"].map(models.index), documents=found["documents"].map(documents.index))
    return found.loc[ordered.sort_values(BY, kind="stable").index]


def on_text() -> pd.DataFrame:
    """What was calibrated on text."""
    return trials().query("documents != 'copies'")


@cache
def summary() -> pd.DataFrame:
    """Means over the five sets where calibration and test have one length, of what is finished."""
    found = summarise(on_text().query("calibrated == length"))
    return found[found["sets"] == SETS]


def label(model: str, documents: str) -> str:
    return LABELS[model] + (", own samples" if documents == "own samples" else "")


def written(value: float, digits: int = 3) -> str:
    """With this many decimals, or one digit other than 0."""
    rounded = f"{value:.{digits}f}"
    return f"{value:.1g}" if value and not float(rounded) else rounded


def losses(measure: str, criteria: Sequence[str], intervals: Sequence[str] = (), digits: int = 3) -> str:
    """A measure by model, length and share of planes kept, one column per criterion; of KL and loss on text, the lowest
    is bold. Lists that the unmodified model does not answer are left out."""
    found = summary()
    found = found[(found["measure"] == measure) & found["criterion"].isin(["none", *criteria])]
    text = measure in ("kl", "loss")
    found = found if text else found[found["documents"] == "packaged"]
    plain = found.query("criterion == 'none'").set_index(BY[:3])["value"]
    if measure == "binding":
        found = found[pd.MultiIndex.from_frame(found[BY[:3]]).isin(plain[plain >= ANSWERED].index)]
    header = " | ".join(["model", "tokens", "kept", *(["unmodified"] if measure != "kl" else []), *criteria])
    rows = []
    for key, group in found.query("share > 1").groupby(BY, sort=False):
        by = group.set_index("criterion")
        best = written(by["value"].min(), digits) if text else ""
        cells = [f"{plain[key[:3]]:.{digits}f}"] if measure != "kl" else []
        for name in criteria:
            if name not in by.index:
                cells.append("")
                continue
            value, low, high = (written(by[column][name], digits) for column in ("value", "low", "high"))
            low = written(0, digits) if low.startswith("-") else low  # none of the measures is negative
            around = f" ({low} to {high})" if name in intervals else ""
            cells.append((f"**{value}**" if value == best else value) + around)
        rows.append([label(*key[:2]), thousands(key[2]), f"1/{key[3]}", *cells])
    return table(header, rows)


def kl_of_sets(compared: str = "==") -> pd.DataFrame:
    """KL of every finished set, one column per criterion; calibration and test have one length (==), or two (!=)."""
    found = on_text().query(f"measure == 'kl' and calibrated {compared} length and share > 1")
    found = found[found.groupby([*BY, "calibrated"])["set"].transform("nunique") == SETS]
    return found.groupby([*BY, "calibrated", "set", "criterion"], sort=False)["value"].mean().unstack("criterion")


def wins(one: str, other: str, compared: str = "==") -> str:
    """In how many sets a criterion has a lower KL than another."""
    sets = kl_of_sets(compared)
    return f"{(sets[one] < sets[other]).sum()} of {len(sets)}"


def best() -> str:
    """In how many rows of the table of KL the plan has less than all criteria but the plan per head."""
    means = kl_of_sets()[["plan", "norm", *OTHERS]].groupby(BY, sort=False).mean()
    return f"{(means.idxmin(axis=1) == 'plan').sum()} of {len(means)}"


def against(one: str, other: str) -> str:
    """By how much a criterion has a lower KL than another on the same documents, averaged within each set."""
    sets = kl_of_sets()
    rows = []
    for key, values in (sets[other] - sets[one]).groupby(BY, sort=False):
        mean, low, high = mean_interval(values)
        rows.append(
            [label(*key[:2]), thousands(key[2]), f"1/{key[3]}", written(mean), f"{written(low)} to {written(high)}",
             f"{(values > 0).sum()} of {SETS}"]
        )  # fmt: skip
    return table("model | tokens | kept | KL reduction | 95 % interval | sets with lower KL", rows)


def on_lists() -> str:
    """How much more probable right answers are under a plan than under other criteria, about the same lists."""
    pairs = (("plan", "highest"), ("plan per head", "highest"), ("plan", "shuffled heads"))
    found = on_text().query("measure == 'binding' and calibrated == length and share > 1 and documents == 'packaged'")
    sets = found.groupby([*BY, "set", "criterion"], sort=False)["value"].mean().unstack("criterion")
    rows = []
    for key, values in sets.groupby(BY, sort=False):
        cells = []
        for plan, other in pairs:
            mean, low, high = mean_interval(values[plan] - values[other])
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        rows.append([label(*key[:2]), thousands(key[2]), f"1/{key[3]}", *cells])
    header = (f"{plan} against {other}" for plan, other in pairs)
    return table(" | ".join(["model", "tokens", "kept", *header]), rows)


def times(criterion: str) -> str:
    """How many times the KL of the plan a criterion has, over models and shares."""
    found = summary().query("measure == 'kl' and share > 1").set_index([*BY, "criterion"])["value"].unstack()
    return span((found[criterion] / found["plan"]).dropna(), ".2g")


def across(measure: str, lengths: Sequence[int] = LENGTHS, digits: int = 3) -> str:
    """A measure at each length by the length that a plan was calibrated at, beside the unmodified model and criteria
    that were calibrated at the tested length."""
    found = summarise(on_text().query("documents == 'packaged' and measure == @measure"))
    found = found[(found["sets"] == SETS) & found["length"].isin(lengths) & found["calibrated"].isin(lengths)]
    by = ["model", "share", "length"]
    several = found[found.groupby(by)["calibrated"].transform("nunique") > 1].query("share > 1")
    columns = [(name, calibrated) for name in CHOSEN[:2] for calibrated in lengths]
    wide = several.pivot_table(index=by, columns=["criterion", "calibrated"], values="value", sort=False)
    matched = found.query("calibrated == length").set_index([*by, "criterion"])["value"]
    rows = []
    for key, values in wide.reindex(columns=columns).iterrows():
        model, share, length = key
        plain = [] if measure == "kl" else [matched[model, 1, length, "none"]]
        cells = [*plain, *values, matched[*key, "norm"], matched[*key, "highest"]]
        shown = ("" if pd.isna(cell) else written(cell, digits) for cell in cells)
        rows.append([label(model, ""), f"1/{share}", thousands(length), *shown])
    header = ["model", "kept", "tested at", *([] if measure == "kl" else ["unmodified"])]
    header += [f"{name}, {calibrated:,}" for name, calibrated in columns]
    return table(" | ".join([*header, "norm", "highest"]), rows)


def norm_across() -> str:
    """How many times the mean KL of *norm* changes if it is calibrated at another length than that of the test."""
    found = summarise(on_text().query("documents == 'packaged' and measure == 'kl' and criterion == 'norm'"))
    kl = found.set_index(["calibrated", *BY])["value"]
    ratios = [value / kl[length, model, documents, length, share]
              for (_, model, documents, length, share), value in kl.items()]  # fmt: skip
    return span(pd.Series(ratios), ".2f")


def for_copies() -> str:
    """Loss on copies and KL on text, by what the plan was calibrated on."""
    found = summarise(trials().query("calibrated == length and share > 1 and measure in ['copy_loss', 'kl']"))
    found = found[(found["sets"] == SETS) & (found["length"] == min(LENGTHS)) & (found["documents"] != "own samples")]
    both = found["criterion"].str.endswith(" for both")
    found["on"] = found["documents"].mask(both, "both")
    found["budget"] = found["criterion"].str.removesuffix(" for both")
    able = found[(found["on"] == "copies") & (found["model"] != "stories15M")]
    found = found[found["budget"].isin(CHOSEN[:2]) & found["model"].isin(able["model"])]
    columns = [(measure, on) for measure in ("copy_loss", "kl") for on in ("packaged", "copies", "both")]
    wide = found.pivot_table(
        index=["model", "share", "budget"], columns=["measure", "on"], values="value", sort=False
    ).reindex(columns=columns)
    digits = (2, 2, 2, 3, 3, 3)
    rows = [
        [label(model, ""), f"1/{share}", budget, *(written(*pair) for pair in zip(values, digits, strict=True))]
        for (model, share, budget), values in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    measures = [
        f"{name}, calibrated on {on}" for name in ("copy loss", "KL on text") for on in ("text", "copies", "both")
    ]
    return table(" | ".join(["model", "kept", "budget", *measures]), rows)


def finetuned() -> str:
    """KL and loss on held-out samples, before and after training with each criterion in force, for every seed."""
    found = results("rotations-finetuned")
    columns = [(measure, step) for measure in ("kl", "loss") for step in (0, 100, found["step"].max())]
    rows = []
    for (model, share, criterion), group in found.groupby(["model", "share", "criterion"], sort=False):
        cells = (group.loc[group["step"] == step, measure] for measure, step in columns)
        rows.append([LABELS[model], f"1/{share}", criterion, *(", ".join(map(written, cell)) for cell in cells)])
    header = [f"{'KL' if measure == 'kl' else measure}, step {step}" for measure, step in columns]
    return table(" | ".join(["model", "kept", "criterion", *header]), rows)


def half(criterion: str) -> str:
    """KL of a plan that keeps half of the planes, over models and lengths."""
    found = summary().query("measure == 'kl' and share == 2 and criterion == @criterion")["value"]
    return f"{written(found.min())} to {written(found.max())}"


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
    "rotations, loss": partial(losses, "loss", (*CHOSEN, *OTHERS), digits=2),
    "rotations, copies": partial(losses, "copy_loss", (*CHOSEN, *OTHERS), CHOSEN, 2),
    "rotations, binding": partial(losses, "binding", (*CHOSEN, *OTHERS), CHOSEN, 2),
    "plans on lists": on_lists,
    "rotations, controls on copies": partial(losses, "copy_loss", ("plan", *CONTROLS), digits=2),
    "rotations, controls on lists": partial(losses, "binding", ("plan", *CONTROLS), digits=2),
    "plan per head against norm": partial(against, "plan per head", "norm"),
    "rows where the plan is best": best,
    "plan of half the planes": partial(half, "plan"),
    "plan per head of half the planes": partial(half, "plan per head"),
    "plan per head against norm, sets": partial(wins, "plan per head", "norm"),
    "plan against norm over the model, sets": partial(wins, "plan", "norm over the model"),
    "plan against highest, sets": partial(wins, "plan", "highest"),
    "plan per head against highest, sets": partial(wins, "plan per head", "highest"),
    "shuffled heads, times": partial(times, "shuffled heads"),
    "shuffled text, times": partial(times, "shuffled text"),
    "plan against norm over the model": partial(against, "plan", "norm over the model"),
    "rotations, across lengths": partial(across, "kl"),
    "norm across lengths, times": norm_across,
    "rotations, copies across lengths": partial(across, "copy_loss", ENDS, 2),
    "plan against norm across lengths, sets": partial(wins, "plan", "norm", "!="),
    "plan per head against norm across lengths, sets": partial(wins, "plan per head", "norm", "!="),
    "rotations, for copies": for_copies,
    "rotations, finetuned": finetuned,
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
