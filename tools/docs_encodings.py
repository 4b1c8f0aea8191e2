"""Numbers of the page on positional encodings, from the stored tables (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
from scipy import stats

from docs_tables import results, span, spread, table

SHOWN = {  # as named in the tables: as shown, and the published accuracy on distance
    "rope": ("RoPE", "92.6"),
    "p-rope": ("p-RoPE, the 2 slowest of 4 angles set to 0", ""),
    "rope, half the dimensions": ("RoPE in half of the dimensions", ""),
    "rope, 4 heads": ("RoPE in 4 heads of 8", ""),
    "rope, 2 heads": ("RoPE in 2 heads", ""),
    "rope, 1 head": ("RoPE in 1 head", "about 90"),
    "rope + sinusoidal": ("RoPE + sinusoids", ""),
    "mla": ("latent attention, decoupled RoPE", "88.3"),
    "sinusoidal": ("sinusoids", "second best"),
    "learned": ("learned positions", ""),
    "alibi": ("ALiBi", "fails"),
    "t5-plain": ("relative bias, plain", ""),
    "t5": ("relative bias, T5's buckets", ""),
    "nope": ("NoPE", "fails"),
}
CLEAN, FLAWED = "clean", "quirky"
CONDITIONED = ("rope", "sinusoidal", "alibi", "mla")


def name_of(encoding: str) -> str:
    """How an encoding is shown, without what holds for the small model alone."""
    return {"p-rope": "p-RoPE, half of the angles set to 0", "rope, 4 heads": "RoPE in 4 heads"}.get(
        encoding, SHOWN[encoding][0]
    )


def small(name: str = "encodings", task: str | None = None, variant: str | None = CLEAN) -> pd.DataFrame:
    """Rows of the small runs without dropout."""
    found = results(name).query("size == 'small' and dropout == 0")
    found = found if task is None else found[found["task"] == task]
    return found if variant is None else found[found["variant"] == variant]


def seeds(column: str, encoding: str, task: str = "distance", variant: str = CLEAN) -> pd.Series:
    """The values of one setting, one per seed."""
    runs = small(task=task, variant=variant)
    return runs[runs["encoding"] == encoding][column]


def mean(column: str, encoding: str, form: str = ".2f", times: float = 1, **setting: str) -> str:
    return f"{times * seeds(column, encoding, **setting).mean():{form}}"


def alibi(task: str, variant: str) -> str:
    """The accuracy of ALiBi with flaws of the published code."""
    return spread(seeds("accuracy", "alibi", task, variant))


def steps(encoding: str, variant: str = CLEAN) -> str:
    """The mean number of steps to 90 %."""
    return mean("steps_to_90", encoding, ".0f", variant=variant)


def between_seeds(column: str, encoding: str, form: str = ".2f", times: float = 1) -> str:
    return span(seeds(column, encoding), form, times=times)


def between_encodings(column: str, form: str, times: float = 1) -> str:
    """From the smallest to the largest mean of an encoding on count."""
    return span(small(task="count").groupby("encoding")[column].mean(), form, times=times)


def distance() -> str:
    runs = small(task="distance")
    rows = []
    for encoding, (name, paper) in SHOWN.items():
        mine = runs[runs["encoding"] == encoding]
        late = mine["steps_to_90"].isna().any()
        reached = "never" if late else f"{mine['steps_to_90'].mean():.0f}"
        drop, heads = f"{mine['largest'].mean():.2f}", f"{mine['effective'].mean():.1f}"
        rows.append([name, spread(mine["accuracy"]), paper, reached, drop, heads])
    return table("distance | accuracy, % | published | steps to 90 % | drop | heads", rows)


def distinct_runs() -> str:
    """Runs with different weights: RoPE with added sinusoids is trained under two names."""
    runs = small(variant=None)
    return str(len(runs) - len(runs.query("encoding == 'rope' and variant == 'added sinusoids'")))


def others_counting() -> str:
    """Accuracy of the other encodings on count with all flaws."""
    runs = small(task="count", variant=FLAWED)
    return span(runs[runs["encoding"] != "alibi"].groupby("encoding")["accuracy"].mean(), ".1f", times=100)


def first_layer() -> str:
    """In how many runs on distance the head with the largest drop is in the first layer."""
    heads = small("encodings-heads", "distance")
    largest = heads.loc[heads.groupby(["encoding", "seed"])["zero"].idxmax()]
    return f"{(largest['layer'] == 0).sum()} of {len(largest)}"


def early_share(rope: bool) -> str:
    """Rank correlation of early share and later loss over the heads of a run: of RoPE, or of all other encodings."""
    heads = small("encodings-heads", "distance")
    heads = heads[(heads["encoding"] == "rope") == rope]
    return span(stats.spearmanr(run["early_share"], run["zero"])[0] for _, run in heads.groupby(["encoding", "seed"]))


def with_speed(column: str, shown: str) -> str:
    """Rank correlation of a column with the steps to 90 %, over the means of encodings that reach them."""
    learnt = small(task="distance").dropna(subset=["steps_to_90"])
    means = learnt.groupby("encoding")[[column, "steps_to_90"]].mean()
    found = stats.spearmanr(means[column], means["steps_to_90"])
    return shown.format(r=found[0], p=found[1], number=len(means))


def faster() -> str:
    """How many times as many steps ALiBi needs as RoPE."""
    return f"{seeds('steps_to_90', 'alibi').mean() / seeds('steps_to_90', 'rope').mean():.1f}"


def lead() -> str:
    """By how many percentage points RoPE is ahead of NoPE."""
    return f"{100 * (seeds('accuracy', 'rope').mean() - seeds('accuracy', 'nope').mean()):.0f}"


ENCODINGS: dict[str, Callable[[], str]] = {
    "distance": distance,
    "distinct runs": distinct_runs,
    "count, accuracy": partial(between_encodings, "accuracy", ".1f", 100),
    "count, steps": partial(between_encodings, "steps_to_90", ".0f"),
    "count, largest drop": partial(between_encodings, "largest", ".2f"),
    "count, effective heads": partial(between_encodings, "effective", ".0f"),
    "RoPE ahead of NoPE": lead,
    "RoPE faster than ALiBi": faster,
    "other encodings counting, all flaws": others_counting,
    "largest drop in the first layer": first_layer,
    "early share, rope": partial(early_share, True),
    "early share, others": partial(early_share, False),
    "rank of the early head, rope": partial(between_seeds, "seed_rank", "rope", ".0f"),
    "conditioning and speed": partial(with_speed, "condition", "rank correlation {r:.2f}, p = {p:.2f}"),
    "encodings that learn distance": partial(with_speed, "condition", "{number}"),
    "gradient norm and speed": partial(with_speed, "norm_variation", "{r:.2f}"),
    **{
        f"ALiBi {name}, {shown}": partial(alibi, task, variant)
        for name, task, shown, variant in (
            ("counting", "count", "all flaws", FLAWED),
            ("counting", "count", "slopes", "exponential slopes"),
            ("counting", "count", "fixed keys", "fixed keys"),
            ("distance", "distance", "all flaws", FLAWED),
            ("distance", "distance", "fixed keys", "fixed keys"),
        )
    },
    **{
        f"{name} counting{shown}": partial(mean, "accuracy", name, ".1f", 100, task="count", variant=variant)
        for name in ("rope", "nope")
        for shown, variant in (("", CLEAN), (", all flaws", FLAWED))
    },
    **{f"largest drop, {name}": partial(between_seeds, "largest", name) for name in ("rope", "alibi", "sinusoidal")},
    **{
        f"mean drop, {name}": partial(mean, "largest", name)
        for name in ("rope", "rope, 4 heads", "rope, 2 heads", "rope, 1 head", "rope + sinusoidal")
    },
    "share of the largest drop, rope": partial(between_seeds, "share", "rope", ".0f", 100),
    **{f"effective heads, {name}": partial(between_seeds, "effective", name, ".1f") for name in ("rope", "mla")},
    **{f"steps, {name}": partial(steps, name) for name in ("rope", "rope, 1 head")},
    "steps, alibi, slopes": partial(steps, "alibi", "exponential slopes"),
    **{f"steps, rope, {layer} layer": partial(steps, "rope", f"{layer} layer") for layer in ("first", "last")},
    "steps, sinusoidal, last layer": partial(steps, "sinusoidal", "last layer"),
    **{f"agreement, {name}": partial(mean, "agreement", name) for name in ("rope", "alibi")},
    **{f"condition, {name}": partial(mean, "condition", name, ".1f") for name in CONDITIONED},
    **{f"condition after training, {name}": partial(mean, "condition_trained", name, ".0f") for name in CONDITIONED},
    **{f"rank, {name}": partial(mean, "rank", name, ".1f") for name in CONDITIONED[:2]},
    **{f"rank after training, {name}": partial(mean, "rank_trained", name, ".1f") for name in CONDITIONED[:2]},
    **{f"variation of the norm, {name}": partial(mean, "norm_variation", name, ".1f") for name in ("rope", "alibi")},
}  # fmt: skip
