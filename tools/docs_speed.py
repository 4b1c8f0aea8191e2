"""What the pages say about speed, from bench/results.json."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from docs_tables import bench, table


def profile_speed() -> str:
    rows = (
        (
            one["model"], f"{one['prompts']} of {one['pairs']} pairs", f"{one['plain s']:.1f} s",
            f"{one['profile s']:.1f} s", f"**{one['ratio']:.2f}**", one["limit"],
        )
        for one in bench("profiles")
    )  # fmt: skip
    return table("model | prompts | plain passes | profile | ratio | limit", rows)


def live_speed() -> str:
    rows = (
        (
            one["model"], f"{one['plain ms']:.0f} ms", f"{one['key to painted plane ms']:.0f} ms",
            f"**{one['ratio']:.2f}**", f"**{one['ratio less 60 ms']:.2f}**", f"{one['swap painted ms']:.0f} ms",
        )
        for one in bench("serve")
    )  # fmt: skip
    header = "model | plain pass | key press to painted plane | ratio | ratio, less 60 ms | swap painted after"
    return table(header, rows)


def growth() -> str:
    """Seconds at both ends and exponents, of heads and of frequencies."""
    found = {(one["grows"], one["of"]): one for one in bench("growth")}
    rows = []
    for axis in dict.fromkeys(axis for axis, _ in found):
        both = [found[axis, f"{what} s"] for what in ("heads", "frequencies")]
        cells = (
            part for one in both for part in (f"{one['first']:.2g} to {one['last']:.2g}", f"{one['exponent']:.1f}")
        )
        rows.append([axis, f"{both[0]['from']:,}", f"{both[0]['to']:,}", *cells])
    return table("what grows | from | to | heads, s | exponent | frequencies, s | exponent", rows)


def memory_growth(column: str, of: str, form: str) -> str:
    (one,) = (row for row in bench("growth") if row["grows"] == "tokens" and row["of"] == f"{of} MB")
    return f"{one[column]:{form}}"


def loads() -> str:
    columns = ("first, peak / float32 size", "second, peak / float32 size", "ratio of processor time", "ratio")
    rows = ([one["model"], *(f"{one[column]:.2f}" for column in columns)] for one in bench("loading"))
    return table("model | first load, peak | second load, peak | second / first, processor time | by the clock", rows)


def seconds(command: str, form: str) -> str:
    (one,) = (row for row in bench("imports") if row["command"] == command)
    return f"{one['s']:{form}}"


def first(part: str, column: str, form: str = ".2f", times: float = 1) -> str:
    return f"{times * bench(part)[0][column]:{form}}"


def overhead(model: str, column: str) -> str:
    (one,) = (row for row in bench("overhead") if row["model"] == model)
    return f"{one[column]:.2f}"


SPEED: dict[str, Callable[[], str]] = {
    "profile speed": profile_speed,
    "live speed": live_speed,
    "cost of the confirmation": lambda: bench("confirmation")[0]["cost"].replace("%", " %"),
    "step, processor time": partial(first, "training", "ratio of processor time"),
    "step in bfloat16": partial(first, "training", "bfloat16 ratio"),
    "growth": growth,
    "memory of heads, last": partial(memory_growth, "last", "heads", ".0f"),
    "memory of frequencies, last": partial(memory_growth, "last", "frequencies", ".0f"),
    "memory of frequencies, exponent": partial(memory_growth, "exponent", "frequencies", ".1f"),
    "loads": loads,
    **{
        f"time of {name}": partial(seconds, name, form)
        for name, form in (
            ("import wherewhat", ".2f"),
            ("wherewhat --help", ".2f"),
            ("import torch, transformers", ".0f"),
            ("import numba", ".1f"),
            ("a model that is missing", ".1f"),
            ("a number out of range", ".1f"),
        )
    },
    **{
        f"{name} on {model}": partial(overhead, model, column)
        for model in ("SmolLM2", "stories15M")
        for name, column in (("heads", "heads ratio"), ("frequencies", "with frequencies ratio"))
    },
}
