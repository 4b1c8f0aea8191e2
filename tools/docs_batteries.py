"""Tables of the documentation about the whole battery of ablations, from results/ablation-battery.parquet (see
docs_numbers.py).

python tools/docs_batteries.py stories15M SmolLM2-135M-Instruct "SmolLM2-135M-Instruct, 20 heads"

writes it from ablations/NAME and from profiles/MODEL, where MODEL is what comes before the comma.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pandas as pd
from scipy import stats

from docs_tables import ROOT, results, table
from wherewhat.files import write_table
from wherewhat.studies.ablation.ablate import Ablation
from wherewhat.studies.profile.result import Profile

SHOWN = {"binding_probability": 3, "induction": 2, "text_loss": 2}  # and their decimals
HEADER = "ablated | probability of the right answer | gain from first to second copy, nats | loss on text"
QUARTERS = ("fast", "mid-fast", "mid-slow", "slow")
STORIES = {
    **{f"{count} most {axis} heads": [(f"{axis} heads", "ablate", count)]
       for count in (2, 4) for axis in ("positional", "symbolic")},
    "fastest quarter of the frequencies dropped": [("fast frequencies", "drop", None)],
    "slowest quarter dropped": [("slow frequencies", "drop", None)],
    "slowest quarter frozen (p-RoPE)": [("slow frequencies", "freeze", None)],
}  # fmt: skip
SMOLLM2 = {
    **{f"{count} most {axis} heads": [(f"{axis} heads", "ablate", count)]
       for count in (14, 27, 54, 108) for axis in ("positional", "symbolic")},
    "fast / mid-fast / mid-slow / slow quarter dropped": [(f"{one} frequencies", "drop", None) for one in QUARTERS],
    "the same frozen": [(f"{one} frequencies", "freeze", None) for one in QUARTERS],
    "only this quarter kept": [(f"{one} frequencies", "keep", None) for one in QUARTERS],
}  # fmt: skip
PUREST = "SmolLM2-135M-Instruct, 20 heads"


def battery(model: str, shown: dict[str, list[tuple[str, str, int | None]]]) -> str:
    """What remains after each ablation, in parentheses after its random control; bold where the two differ."""
    effects = _of(model)
    lines = [["nothing", *(f"{_before(effects, measure):.{digits}f}" for measure, digits in SHOWN.items())]]
    for name, trials in shown.items():
        line = [name]
        for measure, digits in SHOWN.items():
            rows = [_row(effects, measure, *trial) for trial in trials]
            after = (f"{one['after']:.{digits}f}" for one in rows)
            values = (f"**{value}**" if one["counts"] else value for value, one in zip(after, rows, strict=True))
            line.append(f"{' / '.join(values)} ({rows[0]['before'] + rows[0]['control']:.{digits}f})")
        lines.append(line)
    return table(HEADER, lines)


def worst_heads(model: str, measure: str, count: int = 3) -> str:
    """The heads without which a measure worsens most, with the change."""
    heads = _single_heads(model, measure)
    heads = heads.sort_values("change", ascending=bool(heads["better"].all()))
    return ", ".join(f"{one.layer:.0f}.{one.head:.0f} ({one.change:+.3f})" for one in heads.head(count).itertuples())


def harm_and_scores(model: str, measure: str) -> str:
    """The correlation, over all heads, of the harm of ablating a head with its symbolic minus its positional score."""
    heads = _single_heads(model, measure)
    harm = heads["change"] * heads["better"].map({True: -1, False: 1})
    found = stats.spearmanr(harm, heads["symbolic"] - heads["positional"])
    return f"{found.statistic:.2f}, p = {found.pvalue:.3f}"


def purest_heads(model: str, shown: int = 4) -> str:
    """Gain and loss on text without single heads: those that cost most, the others, and the random controls."""
    effects = _of(model)
    effects = effects.assign(random=effects["draw"].notna(), place=_places(effects), what=_kinds(effects))
    gain, text = (effects[effects["measure"] == one].sort_values("change") for one in ("induction", "text_loss"))
    by_place = text.drop_duplicates("place").set_index("place")["change"]
    chosen, drawn = gain[~gain["random"]], gain[gain["random"]].drop_duplicates("place")
    drawn = drawn[~drawn["place"].isin(chosen["place"])]
    rows = [
        [
            f"{one.place}, {one.what}",
            f"{one.change:+.2f} ({one.low:+.2f} to {one.high:+.2f})",
            f"{by_place[one.place]:+.3f}",
        ]
        for one in chosen.head(shown).itertuples()
    ]
    for name, some in (
        (f"the other {len(chosen) - shown}", chosen[shown:]),
        (f"{len(drawn)} others of the same layers", drawn),
    ):
        of_text = by_place[some["place"]]
        rows.append([
            name, f"{some['change'].min():+.2f} to {some['change'].max():+.2f}, mean {some['change'].mean():+.2f}",
            f"{of_text.min():+.3f} to {of_text.max():+.3f}, mean {of_text.mean():+.3f}",
        ])  # fmt: skip
    before = [_before(effects, measure) for measure in ("induction", "text_loss")]
    gained, lost = (
        f"gain from first to second copy, nats (95 %), of {before[0]:.1f}",
        f"loss on text, of {before[1]:.3f}",
    )
    return table(f"ablated head | {gained} | {lost}", rows)


def largest_change(model: str, measure: str) -> str:
    """Over single heads, without sign."""
    return f"{_single_heads(model, measure)['change'].abs().max():.3f}"


def _places(effects: pd.DataFrame) -> list[str]:
    return [f"{one.layer:.0f}.{one.head:.0f}" for one in effects.itertuples()]


def _kinds(effects: pd.DataFrame) -> list[str]:
    return ["what" if one.symbolic > one.positional else "where" for one in effects.itertuples()]


def distinguishable(model: str) -> str:
    """Pairs of head and measure whose change differs from the mean over heads, and how many of them for the worse."""
    heads = _single_heads(model)
    counted = heads[heads["counts"]]
    worse = ((counted["against"] < 0) == counted["better"]).sum()
    return (
        f"Of {len(heads)} pairs of head and measure, {len(counted)} are distinguishable from the mean: {worse} do more "
        f"harm, {len(counted) - worse} less"
    )


def _of(model: str) -> pd.DataFrame:
    found = results("ablation-battery")
    return found[found["model"] == model]


def _before(effects: pd.DataFrame, measure: str) -> float:
    return effects.loc[effects["measure"] == measure, "before"].iloc[0]


def _row(effects: pd.DataFrame, measure: str, what: str, how: str, number: int | None) -> dict[str, float]:
    found = effects[(effects["measure"] == measure) & (effects["what"] == what) & (effects["how"] == how)]
    found = found[found["draw"].isna() & (found["number"] == number if number else True)]
    (row,) = found.to_dict("records")
    return row


def _single_heads(model: str, measure: str | None = None) -> pd.DataFrame:
    found = _of(model)
    found = found[found["head"].notna() & found["draw"].isna()]
    return found if measure is None else found[found["measure"] == measure]


BATTERIES = {
    "battery of stories15M": partial(battery, "stories15M", STORIES),
    "battery of SmolLM2": partial(battery, "SmolLM2-135M-Instruct", SMOLLM2),
    "heads that binding needs": partial(worst_heads, "stories15M", "binding_probability"),
    "heads that the gain needs": partial(worst_heads, "stories15M", "induction"),
    "harm to binding and scores": partial(harm_and_scores, "stories15M", "binding_probability"),
    "harm to the gain and scores": partial(harm_and_scores, "stories15M", "induction"),
    "harm to text and scores": partial(harm_and_scores, "stories15M", "text_loss"),
    "single heads of stories15M": partial(distinguishable, "stories15M"),
    "purest heads of SmolLM2": partial(purest_heads, PUREST),
    "harm to the gain and scores of SmolLM2": partial(harm_and_scores, PUREST, "induction"),
    "largest change of text of SmolLM2": partial(largest_change, PUREST, "text_loss"),
}


def write(names: list[str]) -> None:
    """The effects of every ablation, with the scores of the head where a single one was ablated."""
    parts = []
    for name in names:
        scores = Profile.load(Path("profiles") / name.partition(",")[0]).heads[
            ["layer", "head", "positional", "symbolic"]
        ]
        effects = Ablation.load(Path("ablations") / name).effects.astype({"layer": float, "head": float})
        parts.append(effects.merge(scores, how="left", on=["layer", "head"]).assign(model=name))
    found = pd.concat(parts)
    write_table(ROOT / "results" / "ablation-battery.parquet", found[["model", *found.columns.drop("model")]])


if __name__ == "__main__":
    write(sys.argv[1:])
