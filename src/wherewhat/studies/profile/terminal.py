"""Profiles and comparisons in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...display.terminal import STYLE, plane
from ...words import count, model_name, number
from .attention import DRAWN, SINK_HEADS
from .compare import Comparison
from .result import Profile


def show_comparison(found: Comparison, names: tuple[str, str], movers: int, console: Console) -> None:
    """The summaries side by side, then the heads that moved most."""
    about, heads = found.about, found.heads
    for warning in about["warnings"]:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning + "."))
    console.print(Padding(_side_by_side(found, names), (0, 0, 1, 0)))
    if heads is None:
        console.print(f"{about['not_matched']}; only the summaries are compared.")
    else:
        for axis, agreement in about["agreement"].items():
            console.print(
                f"{axis.capitalize()}: heads correlate with r = {number(agreement['r'])}; B minus A is "
                f"{signed(agreement['mean_difference'])} on average; for {agreement['clear']} of "
                f"{count(len(heads), 'head')} the interval excludes 0."
            )
        changed = about["changed_kind"]
        console.print(f"{count(changed, 'head')} changed kind.")
        if movers and len(heads):
            console.print(Padding(_movers(found, movers), (1, 0, 1, 0)))
        pairing = (
            "prompt by prompt, on the same prompts" if about["same_prompts"] else "over the prompts of each profile"
        )
        console.print(f"Intervals: 95 %, bootstrap {pairing}.")


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _side_by_side(found: Comparison, names: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for letter, name in zip("AB", names, strict=True):
        table.add_column(Text(f"{letter}: {name}"), justify="right")
    one, other = found.about["profiles"]
    table.add_row("prompts", *(str(side["prompts"]) for side in (one, other)))
    table.add_row("model", *(model_name(side["model"]) for side in (one, other)))
    for kind in STYLE:
        shares = (f"{side['kinds'].get(kind, 0)} of {side['heads']}" for side in (one, other))
        table.add_row(Text(kind, style=STYLE[kind]), *shares)
    little = (side["little"] for side in (one, other))
    table.add_row(
        "resting on little attention", *("-" if one is None else f"{one['heads']} of {one['of']}" for one in little)
    )
    table.add_row("r of the scores", *(number(side["correlation"]["r"]) for side in (one, other)))
    for axis in ("positional", "symbolic"):
        for at, half in enumerate(("1st", "2nd")):
            values = (number(side["medians"][axis][at]["median"]) for side in (one, other))
            table.add_row(f"{axis}, {half} half", *values)
    correct = (side["accuracy"] for side in (one, other))
    table.add_row("correct answers", *("-" if one is None else f"{one['right']} of {one['of']}" for one in correct))
    return table


def _movers(found: Comparison, movers: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title="Moved most", title_justify="left")
    for column in ("head", "A", "B", "positional, B minus A", "symbolic, B minus A"):
        table.add_column(column, no_wrap=True)
    assert found.heads is not None
    for row in found.heads.head(movers).to_dict("records"):
        cells = []
        for axis in ("positional", "symbolic"):
            low, high = row[f"{axis}_low"], row[f"{axis}_high"]
            reach = "" if low != low else f" ({low:+.2f} to {high:+.2f})"
            cells.append(f"{row[f'{axis}_difference']:+.2f}{reach}")
        kinds = (Text(row[name], style=STYLE[row[name]]) for name in ("kind_a", "kind_b"))
        table.add_row(f"{row['layer']}.{row['head']}", *kinds, *cells)
    return table


def show_profile(profile: Profile, console: Console) -> None:
    """A profile at a glance: the plane, the purest heads, the correlation, the medians and what they depend on."""
    heads, about = profile.heads, profile.about
    kinds = heads["kind"].value_counts()
    prompts = about["prompts"]
    pairs = about["settings"].get("pairs")
    size = count(pairs, "pair") if pairs else count(len(prompts[0]["blocks"]), "block")
    measured = f": {count(len(prompts), 'prompt')} of {size}, level {about['level']}, tau {about['tau']}"
    console.print(Text.assemble((profile.name, "bold"), measured))
    shown = [name for name in STYLE if name != "unmeasured" or name in kinds]
    parts = [Text(f"{kinds.get(name, 0)} {name}", STYLE[name]) for name in shown]
    console.print(Text.assemble(f"{count(len(heads), 'head')}: ", Text(", ").join(parts)))
    if little := about["little"]["heads"]:
        console.print(_little(about["little"], little))
    measurable = heads[heads["kind"] != "unmeasured"]
    points = [("o", where, what) for where, what in zip(measurable["positional"], measurable["symbolic"], strict=True)]
    console.print(Padding(Group(plane(points), _legend()), (1, 2)))
    for name in ("where", "what", "unfocused"):
        if best := purest(heads, name):
            listed = ", ".join(f"{layer}.{head}" for layer, head in best)
            console.print(Text.assemble("Purest ", (f"{name:9}", STYLE[name]), f" (layer.head)  {listed}"))
    console.print()
    found = about["correlation"]
    console.print(
        f"The two scores correlate with r = {number(found['r'])}"
        f"{_range(found['r_low'], found['r_high'], ' over prompts')}",
        end="",
    )
    console.print(f", p = {found['p']:.0e}." if found["p"] is not None else ".")
    console.print("Medians of the first / second half of the layers, and how they depend on tau and block size:")
    console.print(Padding(_medians(about), (1, 2)))
    if about["accuracy"] is not None:
        console.print(_answers(about))
    skipped = about["skipped"]
    console.print(Text(_attention(about)))
    for task in about.get("tasks", []):
        console.print(Text(_kept(about["settings"]["task"], task)))
    if skipped["statements"] or skipped["swaps"]:
        console.print(
            f"Skipped: {skipped['statements']} of {count(skipped['of_statements'], 'statement')} (length differs), "
            f"{skipped['swaps']} of {count(skipped['of_swaps'], 'swap')} (neither block receives attention)."
        )
    if swaps := about["swaps"]:
        console.print(
            f"Swaps run: {swaps['run']:,} of {swaps['of']:,}; "
            f"the others hold {number(swaps['unseen_weight'])} of the weight."
        )
    console.print(f"Self-check: within {max(about['self_check'].values()):.0e} of the model's own attention.")
    for warning in about["warnings"]:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning + "."))


def _little(found: dict[str, Any], heads: int) -> str:
    """How many heads rest on little attention, and where the correlation stands without them."""
    return (
        f"{heads} of them rest on little attention, less than {found['threshold']:.0%} on the blocks; "
        f"without these, r = {number(found['correlation']['r'])}."
    )


def _attention(about: dict[str, Any]) -> str:
    """Sinks, with the criterion; the most attended position inside a block; and attention on the answer."""
    sinks, retrieval = about["sinks"], about["retrieval"]
    named = ", ".join(
        f"{one['token'].strip() or one['position']!r} {one['attention']:.0%}" for one in sinks["tokens"][:3]
    )
    criterion = f"tokens before the blocks on which {SINK_HEADS:.0%} of heads put {DRAWN:.0%} of their attention"
    receive = f"receive {sinks['share']:.0%} of all attention{f': {named}' if named else ''}"
    sentence = f"Sinks, {criterion}, {receive}." if sinks["share"] else f"No sinks: no {criterion}."
    sentence += f" The most attended position inside a block receives {sinks['largest_in_a_block']:.1%}."
    if retrieval:
        sentence += (
            f" The most retrieving head puts {retrieval['largest']:.0%} of its attention on the block with the answer; "
            f"all heads {retrieval['mean']:.1%}, chance {retrieval['chance']:.1%}."
        )
    return sentence


def _kept(first: str, task: dict[str, Any]) -> str:
    """How many heads keep their kind on a further task."""
    every, resting = task["kept"]["all"], task["kept"]["resting_on_attention"]
    return (
        f"From {Path(first).name} to {Path(task['settings']['task']).name}, {every['same']} of {every['of']} heads "
        f"keep their kind ({every['by_chance']:.0%} by chance); {resting['same']} of the {resting['of']} that rest on "
        f"attention in both. On {Path(task['settings']['task']).name}, r = {number(task['correlation']['r'])}."
    )


def purest(heads: pd.DataFrame, kind: str, number: int = 5) -> list[tuple[int, int]]:
    """The heads furthest in their corner of the plane, as (layer, head)."""
    some = heads[heads["kind"] == kind]
    depth = {
        "where": some["positional"] - some["symbolic"],
        "what": some["symbolic"] - some["positional"],
        "unfocused": some["positional"] + some["symbolic"],
    }[kind]
    best = some.assign(depth=depth).nlargest(number, "depth")
    return list(zip(best["layer"], best["head"], strict=True))


def _legend() -> Text:
    corners = {"where": "(positional) bottom right", "what": "(symbolic) top left", "unfocused": "top right"}
    parts = [Text(f"{name} {corner}", STYLE[name]) for name, corner in corners.items()]
    return Text.assemble("o one head, * several: ", Text(", ").join(parts))


def _medians(about: dict[str, Any]) -> Table:
    """Medians of the two halves of the layers, at every tau and block size; the first row is the profile itself."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("blocks", "tokens", "tau", "r", "positional", "symbolic"):
        table.add_column(column, no_wrap=True, justify="left" if column == "blocks" else "right")
    for at, row in enumerate(about["sensitivity"]):
        halves = (" / ".join(map(number, row[f"median_{axis}"])) for axis in ("positional", "symbolic"))
        table.add_row(
            row["blocks"], str(row["tokens_per_block"]), str(row["tau"]), number(row["r"]), *halves,
            style="bold" if at == 0 else None,
        )  # fmt: skip
    return table


def _answers(about: dict[str, Any]) -> str:
    right = about["accuracy"]
    sentence = (
        f"Correct answers: {right['right']} of {right['of']}{_range(right['low'], right['high'])}; "
        f"mean probability {about['answer_probability']:.2f}"
    )
    if about["by_position"]:
        parts = "third" if len(about["by_position"]) == 3 else "fifth"
        shares = ("-" if row["accuracy"] is None else f"{row['accuracy']:.0%}" for row in about["by_position"])
        sentence += f"; by {parts} of the list: {', '.join(shares)}"
    return sentence + "."


def _range(low: float | None, high: float | None, of: str = "") -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f}{of})"
