"""Keep the numbers of the documentation equal to the tables that they come from.

Usage: python tools/docs_numbers.py [--write]

A number or table between <!--= NAME --> and <!--/--> in a page of docs/ is that of the function NAME in NUMBERS (or in
FINDINGS of tools/docs_findings.py), made from results/*.parquet and bench/results.json; or NAME is a query as in
streaming[what == '75% by need' and measure == 'repeat_loss'].after:.2f. Without --write, pages that
differ are listed and the exit code is 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from docs_batteries import BATTERIES
from docs_encoding_sizes import ENCODING_SIZES
from docs_encodings import ENCODINGS
from docs_findings import FINDINGS
from docs_profiles import PROFILES, against_random, profile_rows, prose_rows, quarter_rows, retrieval_rows
from docs_rotations import ROTATIONS
from docs_spectra import SPECTRA
from docs_speed import SPEED
from docs_tables import ROOT, bench, results, short, span, table, thousands
from docs_training import TRAINING

MARK = re.compile(r"(<!--= (.+?) -->)([\s\S]*?)(<!--/-->)")
LOOKUP = re.compile(r"([\w-]+)\[(.+)\]\.(\w+):(\S+)")
SHOWN_IDS = (1, 4, 7, 9, 10, 11, 12, 13, 14, 16, 19, 22, 31)
SLOWER = ("mid-fast", "mid-slow", "slow")
SETTINGS = {
    "index": "Index",
    "retrieval": "Retrieval",
    "induction": "partial induction, one angle",
    "induction, angles (0, theta)": "the same, angles (0, θ)",
    "induction, 8 symbols": "8 symbols, one angle",
}


def published_speed() -> str:
    header = "tokens | prompts per batch | published, per prompt | wherewhat, per prompt | ratio | score difference"
    return table(
        header,
        (
            (
                one["tokens"], one["prompts per batch"], f"{one['published s']:.3g} s",
                f"{1000 * one['wherewhat s']:.3g} ms", f"**{thousands(one['ratio'])}**",
                f"{one['largest difference']:.1e}",
            )
            for one in bench("published")
        ),
    )  # fmt: skip


def overhead() -> str:
    header = "model | tokens | blocks | plain pass | heads | heads and all frequencies | first capture, with self-check"
    return table(
        header,
        (
            (
                one["model"], one["tokens"], one["blocks"], f"{one['plain s']:.3g} s", f"**{one['heads ratio']:.2f}**",
                f"**{one['with frequencies ratio']:.2f}**", f"{one['first capture, with self-check, s']:.2g} s",
            )
            for one in bench("overhead")
        ),
    )  # fmt: skip


def memory() -> str:
    (one,) = bench("memory")
    return (
        f"{thousands(one['plain MB'])} MB plain, {thousands(one['heads MB'])} MB captured with head scores (ratio "
        f"{one['heads ratio']:.2f}), {thousands(one['frequencies MB'])} MB with all frequencies "
        f"({one['frequencies ratio']:.2f})"
    )


def offload() -> str:
    parts = {
        "hashing": "hash of the weights",
        "self-check": "self-check",
        "forward": "forward pass",
        "capture": "capture",
    }
    rows = (
        [f"{one['dtype']}, {one['weights']}", *(thousands(one[part] - one["before"]) for part in parts)]
        for one in bench("offload")
    )
    return table(" | ".join(["", *parts.values()]), rows)


def loading(row: int) -> str:
    one = bench("offload")[row]
    return thousands(one["load"] - one["before"])


def ensemble() -> str:
    names = {"index": "Index", "retrieval": "Retrieval", "induction": "partial induction"}
    header = "task, angles per model | together | one after another (4 of them, extrapolated) | ratio"
    rows = (
        (
            f"{names[one['task']]}, {one['angles per model']}", f"{one['together ms per step']:.1f}",
            thousands(one["one by one ms per step"]), f"**{one['ratio']:.1f}**",
        )
        for one in bench("ensemble")
    )  # fmt: skip
    return table(header, rows)


def by_angle(name: str, shown: Sequence[str]) -> str:
    """Accuracy by angle, mean of the seeds and their standard deviation, for some settings."""
    members = results(name)
    found = members.assign(setting=members["setting"].str.removesuffix(", Transformer")).groupby(
        ["setting", "frequency"]
    )
    mean, deviation = found["accuracy"].mean(), found["accuracy"].std()
    angles = found["angle"].first()["index"]

    def short_angle(angle: float) -> str:
        return f"{angle:.1f}" if angle >= 1 else f"{angle:.2g}".removeprefix("0")

    header = " | ".join(["ID (angle)", *(f"{one} ({short_angle(angles[one])})" for one in SHOWN_IDS)])

    def cell(setting: str, one: int) -> str:
        value, off = mean[setting, one], deviation[setting, one]
        return f"{f'{value:.3f}'.removeprefix('0')} ± {f'{off:.3f}'.removeprefix('0')}"

    return table(header, ([SETTINGS[one], *(cell(one, number) for number in SHOWN_IDS)] for one in shown))


def inner_positions(frequency: int) -> str:
    """The quadratic term of Index over positions 2 to 15, scaled to -1 to 1, with the p of a t-test over seeds."""
    found = results("decoupling-positions").query("setting == 'index' and frequency == @frequency and 2 <= place <= 15")
    scaled = np.linspace(-1, 1, 14)
    terms = [
        np.polyfit(scaled, one.sort_values("place")["accuracy"].to_numpy(), 2)[0] for _, one in found.groupby("seed")
    ]
    return f"{np.mean(terms):+.2f}, p = {stats.ttest_1samp(terms, 0).pvalue:.1g}"


def least_score(setting: str, axis: str) -> str:
    return f"{results('decoupling').query('setting == @setting')[axis].min():.4f}"


def lab_ablation() -> str:
    """Right answers of the embedded models without heads and frequencies; bold where random choices differ."""
    found = results("ablation-lab").query("measure == 'accuracy'").set_index(["task", "what", "how", "number"])
    shown = {
        "2 most positional heads of 12": [("positional heads", "ablate", 2)],
        "5 most positional heads": [("positional heads", "ablate", 5)],
        "5 most symbolic heads": [("symbolic heads", "ablate", 5)],
        "fastest quarter of the frequencies dropped": [("fast frequencies", "drop", 16)],
        "fastest quarter frozen": [("fast frequencies", "freeze", 16)],
        "mid-fast / mid-slow / slow quarter dropped": [(f"{one} frequencies", "drop", 16) for one in SLOWER],
        "the same frozen": [(f"{one} frequencies", "freeze", 16) for one in SLOWER],
        "only the fastest quarter kept": [("fast frequencies", "keep", 16)],
        "only the mid-fast / mid-slow / slow quarter kept": [(f"{one} frequencies", "keep", 16) for one in SLOWER],
    }
    rows = []
    for name, trials in shown.items():
        row = [name]
        for task in ("number", "letter"):
            some = [found.loc[(task, *trial)] for trial in trials]
            row.append(" / ".join(f"**{one.after:.2f}**" if one.counts else f"{one.after:.2f}" for one in some))
            row.append(f"{some[0].before + some[0].control:.2f}")
        rows.append(row)
    return table("ablated | number | random control | letter | random control", rows)


def by_length(columns: tuple[int, ...]) -> str:
    plain, sharp = results("lengths-accuracy"), results("lengths-sharpened")

    def rows(found: pd.DataFrame, task: str, hops: int) -> dict[int, float]:
        mine = found.query("task == @task and hops == @hops")
        return dict(zip(mine["length"], mine["accuracy"], strict=True))

    def line(name: str, *each: dict[int, float]) -> list[str]:
        return [name, *(" / ".join(short(one[at]) if at in one else "-" for one in each) for at in columns)]

    lines = []
    for task in ("number", "letter"):
        lines.append(line(task, rows(plain, task, 0)))
        lines.append(line(f"{task}, 1 hop / 4 hops", rows(plain, task, 1), rows(plain, task, 4)))
    lines += [line(f"{task}, sharpened", rows(sharp, task, 0)) for task in ("letter", "number")]
    return table(" | ".join(["length", *map(thousands, columns)]), lines)


def of_profiles(rows: Callable[..., tuple[str, list[list[str]]]]) -> str:
    return table(*rows(results("profiles"), results("profiles-heads")))


def of_retrieval(model: str) -> str:
    return table(*retrieval_rows(results("ablation-models"), model))


def streaming() -> str:
    """Loss on the second copy, binding and loss on text of SmolLM2 when a share of its key heads streams."""
    found = results("streaming")
    measures = {"repeat_loss": ".3f", "binding_probability": ".3f", "binding_accuracy": ".2f", "text_loss": ".3f"}

    def cells(rows: pd.DataFrame) -> list[str]:
        return [
            " to ".join(f"{one:{form}}" for one in sorted({min(some), max(some)}))
            for measure, form in measures.items()
            if len(some := [*rows[rows["measure"] == measure]["after"]])
        ]

    before = found.drop_duplicates("measure").set_index("measure")["before"]
    lines = [["none", "-", *(f"{before[one]:{form}}" for one, form in measures.items())]]
    for share in ("25%", "50%", "75%"):
        for name in ("need", "distant", "echo"):
            what = f"{share} by {name}"
            lines.append([share, name, *cells(found[found["what"] == what])])
        drawn = found[[isinstance(of, str) and of.startswith(share) for of in found["control_of"]]]
        lines.append([share, f"random, {drawn.groupby('measure').size().iloc[0]} draws", *cells(drawn)])
    header = "streaming | by | loss on the second copy | probability of the answer | right answers | loss on text"
    return table(header, lines)


def atlas_here() -> str:
    """The models of an atlas, as its table `models` has them."""
    found = results("atlas").sort_values(["task", "parameters"], kind="stable")
    header = "model | task | pairs x prompts | heads | where / what / unfocused / mixed, % | r (95 %) | positional"
    header += " | symbolic | little attention, % | right"
    return table(
        header,
        (
            (
                one.model, one.task, f"{one.pairs} x {one.prompts}" if one.pairs == one.pairs else one.prompts,
                one.heads,
                " / ".join(f"{100 * share:.0f}" for share in (one.where, one.what, one.unfocused, one.mixed)),
                f"{one.r:.2f} ({one.r_low:.2f} to {one.r_high:.2f})", f"{one.positional:.2f}", f"{one.symbolic:.2f}",
                f"{100 * one.little:.0f}", f"{one.right} of {one.prompts}" if one.right == one.right else "-",
            )
            for one in found.astype(dict.fromkeys(("pairs", "right"), object)).replace({pd.NA: np.nan}).itertuples()
        ),
    )  # fmt: skip


def callback() -> str:
    header = (
        "prompts | tokens | first measurement, in steps | each further one, in steps | share of the time with every=500"
    )
    return table(
        header,
        (
            (
                f"{one.prompts} with {one.pairs} pairs", f"up to {one.tokens}", f"{one.first_ratio:.1f}",
                f"**{one.ratio:.2f}**", f"{100 * one.ratio / 500:.2f} %",
            )
            for one in results("callback").itertuples()
        ),
    )  # fmt: skip


def cost(part: str, key: str, value: str, form: str = ".2f") -> str:
    """One value of bench/results.json: of the row whose first entry is `key`."""
    (one,) = (row for row in bench(part) if str(next(iter(row.values()))) == key)
    return f"{one[value]:{form}}"


NUMBERS: dict[str, Callable[[], str]] = {
    **FINDINGS,
    **SPEED,
    **SPECTRA,
    **BATTERIES,
    **ENCODINGS,
    **ENCODING_SIZES,
    **PROFILES,
    **ROTATIONS,
    **TRAINING,
    "published speed": published_speed,
    "agreement at 17 tokens": lambda: f"{bench('agreement')[0]['largest difference']:.1e}",
    "ablation of the lab": lab_ablation,
    "profiles": partial(of_profiles, profile_rows),
    "from binding to prose": partial(of_profiles, prose_rows),
    "retrieval of Qwen": partial(of_retrieval, "Qwen2.5-Coder-0.5B"),
    "quarters of Qwen": lambda: table(*quarter_rows(results("ablation-models"), "Qwen2.5-Coder-0.5B")),
    "slow frequencies of Qwen": lambda: against_random(results("ablation-models"), "Qwen2.5-Coder-0.5B"),
    "retrieval of gemma": partial(of_retrieval, "gemma-3-270m"),
    "retrieval of SmolLM2": partial(of_retrieval, "SmolLM2-135M-Instruct"),
    "offload": offload,
    "offload, before": lambda: thousands(bench("offload")[0]["before"]),
    "loading bfloat16 in memory": partial(loading, 2),
    "loading bfloat16 on disk": partial(loading, 3),
    "overhead": overhead,
    "memory": memory,
    "ensemble": ensemble,
    "accuracy by angle": partial(by_angle, "decoupling", tuple(SETTINGS)),
    "accuracy of Transformers by angle": partial(by_angle, "decoupling-transformer", tuple(SETTINGS)[:4]),
    "accuracy by length": partial(by_length, (17, 60, 80, 100, 200, 300, 500, 800, 1000, 2000, 3000, 5000)),
    "least symbolic score of Retrieval": partial(least_score, "retrieval", "symbolic"),
    "least positional score of Index": partial(least_score, "index", "positional"),
    **{f"inner positions, ID {one}": partial(inner_positions, one) for one in (11, 12, 13, 16, 24)},
    "training speed": partial(cost, "training", "64", "ratio"),
    "prompts per second": lambda: thousands(bench("series")[0]["prompts a second"]),
    "step on distance": partial(cost, "encodings", "a training step, distance", "ratio"),
    "step on count": partial(cost, "encodings", "a training step, count", "ratio"),
    "ablating one head": partial(cost, "encodings", "ablating a head, 6 x 16", "ratio"),
    "cells, one process": partial(cost, "cells", "one process", "ms per cell", ".1f"),
    "cells, two processes": partial(cost, "cells", "--jobs 2", "ms per cell", ".1f"),
    "cells, Ray": partial(cost, "cells", "--ray local", "ms per cell", ".1f"),
    "gate, drop": partial(cost, "ablation", "drop a quarter of all heads' frequencies", "ratio"),
    "gate, ablate": partial(cost, "ablation", "ablate one head of each layer", "ratio"),
    "gate, freeze": partial(cost, "ablation", "freeze a quarter of all heads' frequencies", "ratio"),
    "gate, freeze one head": partial(cost, "ablation", "freeze a quarter in one head of each group", "ratio"),
    "streaming": streaming,
    "atlas": atlas_here,
    "callback": callback,
    "theorems": lambda: str(len(results("theorems"))),
}


def current(text: str, source: str) -> str:
    """The text with all its numbers as the tables have them now."""

    def value(found: re.Match[str]) -> str:
        return f"{found[1]}{number(found[2], source)}{found[4]}"

    return MARK.sub(value, text)


def number(name: str, source: str) -> str:
    """What the tables have for a mark: by its name, or by a query as in TABLE[condition].column:format."""
    if name in NUMBERS:
        return NUMBERS[name]()
    if (found := LOOKUP.fullmatch(name)) is None:
        raise SystemExit(f"{source}: no number is called {name!r}; they are defined in tools/docs_numbers.py.")
    table_name, condition, column, form = found.groups()
    return span(results(table_name).query(condition)[column], form)


def outdated(pages: Iterable[Path]) -> dict[Path, str]:
    """Pages whose numbers differ from their tables, with the text that they should have."""
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    new = {path: current(text, str(path)) for path, text in texts.items()}
    return {path: text for path, text in new.items() if text != texts[path]}


def main() -> None:
    found = outdated(sorted((ROOT / "docs").rglob("*.md")))
    for path, text in found.items():
        if "--write" in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{path.relative_to(ROOT)}: numbers differ from their tables: python tools/docs_numbers.py --write")
    sys.exit(bool(found) and "--write" not in sys.argv[1:])


if __name__ == "__main__":
    main()
