"""Tables of the documentation about profiles and ablations of real models, from results/ (see docs_numbers.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd

from docs_tables import results, table
from wherewhat.core.kinds import LITTLE
from wherewhat.studies.profile.roles import in_role, rests_on_little

KINDS = ("where", "what", "unfocused", "mixed")
MEASURES = {"binding_accuracy": 2, "binding_probability": 2, "repeat_loss": 2, "text_loss": 2}  # and their decimals
CHOSEN = "10 most retrieving heads"
SLOWEST = f"slowest quarter of {CHOSEN}"


def profile_rows(summary: pd.DataFrame, heads: pd.DataFrame) -> tuple[str, list[list[str]]]:
    """Header and rows: one row per model, number of pairs and size of blocks."""
    header = (
        "model | pairs x prompts | statements per block | r of all heads (95 %) | r of those that rest on attention | "
        f"below {LITTLE:.0%} on the blocks | {' / '.join(KINDS)} | `on_blocks`, quartiles | "
        "retrieving heads, largest `answer` | mean `answer`, chance | right answers"
    ).replace("1%", "1 %")
    rows, before = [], None
    for one in summary[summary["task"] == "binding"].to_dict("records"):
        own = of_task(heads, one)
        rows.append(
            [
                "" if one["model"] == before else one["model"],
                f"{one['pairs']} x {one['prompts']:.0f}",
                str(one["group"]),
                f"{one['r']:.2f} ({one['r_low']:.2f} to {one['r_high']:.2f})",
                f"{one['resting_r']:.2f} ({one['resting_r_low']:.2f} to {one['resting_r_high']:.2f})",
                f"{rests_on_little(own).sum()} of {len(own)}",
                " / ".join(str((own["kind"] == kind).sum()) for kind in KINDS),
                " ".join(f"{share:.2f}" for share in own["on_blocks"].quantile([0.25, 0.5, 0.75])),
                f"{in_role(own, 'retrieving').sum()}, {own['answer'].max():.2f}",
                f"{own['answer'].mean():.3f}, {own['answer_chance'].mean():.3f}",
                f"{one['right']:.0f} of {one['prompts']:.0f}",
            ]
        )
        before = one["model"]
    return header, rows


def prose_rows(summary: pd.DataFrame, heads: pd.DataFrame) -> tuple[str, list[list[str]]]:
    """Header and rows: how many heads keep their kind from binding to prose, one row per model."""
    header = "model | keep their kind | expected by chance | of heads that rest on attention in both | r on prose"
    rows = []
    for one in summary[summary["task"] == "prose"].to_dict("records"):
        count = len(heads[(heads["model"] == one["model"]) & (heads["task"] == "prose")])
        share, resting = one["kept"] / count, one["kept_resting"] / one["resting"]
        rows.append(
            [
                one["model"],
                f"{one['kept']:.0f} of {count} ({share:.0%})".replace("%", " %"),
                f"{one['kept_by_chance']:.0%}".replace("%", " %"),
                f"{one['kept_resting']:.0f} of {one['resting']:.0f} ({resting:.0%})".replace("%", " %"),
                f"{one['r']:.2f}",
            ]
        )
    return header, rows


def retrieval_rows(effects: pd.DataFrame, model: str) -> tuple[str, list[list[str]]]:
    """Header and rows: one model intact, without its retrieving heads, without their slowest frequencies, and the
    random controls of both."""
    header = "ablation | right answers | their probability | loss on the second copy | loss on text"
    own = effects[effects["model"] == model]
    values = {measure: own[own["measure"] == measure] for measure in MEASURES}

    def after(measure: str, what: str) -> str:
        found: pd.DataFrame = values[measure]
        (row,) = found[found["draw"].isna() & (found["what"] == what)].to_dict("records")
        shown = f"{row['after']:.{MEASURES[measure]}f}"
        return f"**{shown}**" if row["counts"] else shown

    def drawn(measure: str, what: str) -> str:
        found: pd.DataFrame = values[measure]
        several = found[[what in of.split(", ") for of in found["control_of"].fillna("")]]["after"]
        digits = MEASURES[measure]
        return f"{several.min():.{digits}f} to {several.max():.{digits}f}, mean {several.mean():.{digits}f}"

    intact = [f"{values[measure]['before'].iloc[0]:.{digits}f}" for measure, digits in MEASURES.items()]
    names = {
        "the ten most retrieving heads": (after, CHOSEN),
        "ten others of the same layers, four draws": (drawn, CHOSEN),
        "slowest quarter of the frequencies of the ten heads dropped": (after, SLOWEST),
        "as many random frequencies of the ten heads dropped, four draws": (drawn, SLOWEST),
    }
    rows = [[name, *(of(measure, what) for measure in MEASURES)] for name, (of, what) in names.items()]
    return header, [["none", *intact], *rows]


def quarter_rows(effects: pd.DataFrame, model: str) -> tuple[str, list[list[str]]]:
    """Header and rows: each quarter of the frequencies of the retrieving heads dropped."""
    header = "quarter dropped | right answers | their probability | loss on the second copy | loss on text"
    own = effects[(effects["model"] == model) & (effects["how"] == "drop") & effects["draw"].isna()]
    rows = []
    for name in ("fastest", "second", "third", "slowest"):
        found = own[own["what"] == f"{name} quarter of {CHOSEN}"].set_index("measure")
        shown = (f"{found['after'][measure]:.{digits}f}" for measure, digits in MEASURES.items())
        bold = (found["counts"][measure] for measure in MEASURES)
        rows.append([name, *(f"**{one}**" if counts else one for one, counts in zip(shown, bold, strict=True))])
    return header, rows


def against_random(effects: pd.DataFrame, model: str, what: str = SLOWEST, measure: str = "binding_accuracy") -> str:
    """The effect of an ablation minus that of its control, with the 95 % interval."""
    own = effects[(effects["model"] == model) & (effects["what"] == what) & (effects["measure"] == measure)]
    (row,) = own.to_dict("records")
    return f"{row['against']:.2f}, 95 % interval {row['against_low']:.2f} to {row['against_high']:.2f}"


def of_task(heads: pd.DataFrame, one: dict[str, object]) -> pd.DataFrame:
    """The heads of a row of profiles.parquet."""
    keys = ["model", "pairs", "group", "task"]
    return heads[(heads[keys] == [one[key] for key in keys]).all(axis=1)]


def halves_rows(summary: pd.DataFrame, heads: pd.DataFrame) -> tuple[str, list[list[str]]]:
    """Header and rows: r, the medians of the first and the second half of the layers, kinds and right answers."""
    header = "model | pairs x prompts | r of the two axes (95 %) | positional, median of first / second half | symbolic"
    rows = []
    for one in summary[(summary["task"] == "binding") & (summary["group"] == 1)].to_dict("records"):
        own = of_task(heads, one)
        first = own["layer"] < (own["layer"].max() + 1) / 2
        medians = (
            " / ".join(f"{own[half][axis].median():.2f}" for half in (first, ~first))
            for axis in ("positional", "symbolic")
        )
        kinds = " / ".join(str((own["kind"] == kind).sum()) for kind in KINDS)
        r = f"{one['r']:.2f} ({one['r_low']:.2f} to {one['r_high']:.2f})"
        right = f"{one['right']:.0f} of {one['prompts']:.0f}"
        rows.append([one["model"], f"{one['pairs']} x {one['prompts']:.0f}", r, *medians, kinds, right])
    rows.append(["gemma-2-2b-it, as published", "256", "-0.91", "0.83 / 0.56", "reversed", "-", "-"])
    return f"{header} | {' / '.join(KINDS)} | right answers", rows


def setting(column: str, tau: float = 1e-4, blocks: str = "as given", model: str = "SmolLM2-135M-Instruct") -> str:
    """r or a median of a model with another tau or other blocks."""
    found = results("profiles-settings").query("model == @model and blocks == @blocks")
    return f"{found[(found['tau'] / tau - 1).abs().fillna(0) < 1e-3][column].item():.2f}"


def stability(model: str, low: float, high: float) -> str:
    """The share of heads whose kind is the same on both halves of the prompts, in percent."""
    found = results("profiles-stability").query("model == @model and on_blocks >= @low and on_blocks < @high")
    return f"{100 * found['same'].mean():.0f}"


def little_kinds(model: str) -> str:
    found = results("profiles-stability").query("model == @model and on_blocks < @LITTLE")["kind"].value_counts()
    return ", ".join(
        f"{found.get(kind, 0)} {kind}" for kind in ("mixed", "where", "what", "unfocused") if kind in found
    )


def sink(model: str) -> str:
    """The share of attention on the token on which most of it falls."""
    return f"{100 * results('profiles-settings').query('model == @model')['sink_attention'].iloc[0]:.0f}"


def without_random_frequencies(model: str) -> str:
    """The gain from first to second copy without random frequencies of the retrieving heads, mean over draws."""
    found = results("ablation-models").query("model == @model and measure == 'induction' and what == 'random'")
    drawn = found[[SLOWEST in of.split(", ") for of in found["control_of"]]]
    return f"{drawn['after'].mean():.1f}"


BANDS = {"below 1 %": (0, 0.01), "1 to 3 %": (0.01, 0.03), "3 to 10 %": (0.03, 0.1), "above 10 %": (0.1, 1.01)}
LARGER = ("Qwen2.5-Coder-0.5B", "SmolLM2-135M-Instruct", "gemma-3-270m")


def stability_table() -> str:
    rows = ([model, *(f"{stability(model, *band)} %" for band in BANDS.values())] for model in LARGER)
    return table(f"attention on the blocks | {' | '.join(BANDS)}", rows)


PROFILES: dict[str, Callable[[], str]] = {
    "gain of gemma without random frequencies": partial(without_random_frequencies, "gemma-3-270m"),
    "r and medians": lambda: table(*halves_rows(results("profiles"), results("profiles-heads"))),
    "r at the default": partial(setting, "r"),
    "r of the plain mean": partial(setting, "r", tau=float("inf")),
    "second half by statement": partial(setting, "median_positional_second"),
    "second half by token": partial(setting, "median_positional_second", blocks="one token"),
    "stability of kinds": stability_table,
    "kinds with little attention, Qwen": partial(little_kinds, LARGER[0]),
    **{f"sink, {model}": partial(sink, model) for model in LARGER},
}
