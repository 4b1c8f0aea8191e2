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
    "second load": partial(first, "loading", "ratio"),
    **{
        f"{name} on {model}": partial(overhead, model, column)
        for model in ("SmolLM2", "stories15M")
        for name, column in (("heads", "heads ratio"), ("frequencies", "with frequencies ratio"))
    },
}
