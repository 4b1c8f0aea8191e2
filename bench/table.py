"""One table of all benchmarks: work, ours, the anchor or limit, the ratio, and the ratio last committed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

WORSE = 0.15  # a ratio that worsened by more than this share is a warning
Rows = Mapping[str, Any]


class Line(NamedTuple):
    """One comparison. `ratio` is what is watched; it should be small, unless `faster`: then it says how many times."""

    work: str
    ours: str
    anchor: str
    ratio: float
    faster: bool = False

    def worsened(self, before: float | None) -> bool:
        """Whether the ratio is worse than before by more than WORSE.

        >>> Line("a profile", "2 s", "1 s", 2.4).worsened(2.0), Line("a step", "2 s", "1 s", 2.4, True).worsened(2.0)
        (True, False)
        """
        if before is None:
            return False
        return self.ratio < before / (1 + WORSE) if self.faster else self.ratio > before * (1 + WORSE)


def lines(results: Rows) -> Iterator[Line]:
    """The comparisons in the results of all parts, in the order of the parts."""
    for row in results.get("profiles", []):
        work = f"a profile of {row['prompts']} prompts of {row['pairs']} pairs, {row['model']}"
        yield Line(
            work, seconds(row["profile s"]), f"{seconds(row['plain s'])} plain, limit {row['limit']}", row["ratio"]
        )
    for row in results.get("loading", []):
        yield Line(
            f"second load, {row['model']}", seconds(row["second s"]), f"{seconds(row['first s'])} first", row["ratio"]
        )
    for row in results.get("published", []):
        work = f"scores, {row['tokens']} tokens"
        yield Line(work, seconds(row["wherewhat s"]), f"{seconds(row['published s'])} published", row["ratio"], True)
    for row in results.get("overhead", []):
        for name in ("heads", "with frequencies"):
            ratio, plain = row[f"{name} ratio"], row["plain s"]
            work = f"{name}, {row['tokens']} tokens, {row['blocks']}, {row['model']}"
            yield Line(work, seconds(ratio * plain), f"{seconds(plain)} plain", ratio)
    for row in results.get("confirmation", []):
        ours, plain = row["confirmed, CPU s"], row["unconfirmed, CPU s"]
        yield Line("a confirmed capture", seconds(ours), f"{seconds(plain)} unconfirmed", ours / plain)
    for row in results.get("serve", []):
        if "ratio" in row:  # there was a browser
            plain, painted, swap = (
                row[name] / 1000 for name in ("plain ms", "key to painted plane ms", "swap painted ms")
            )
            yield Line(
                f"key press to painted plane, {row['model']}", seconds(painted), f"{seconds(plain)} plain", row["ratio"]
            )
            yield Line(f"a swap painted, {row['model']}", seconds(swap), "limit 0.05 s", swap / 0.05)
    for row in results.get("memory", []):
        for name in ("heads", "frequencies"):
            work = f"peak memory, {name}, {row['tokens']} tokens"
            yield Line(work, f"{row[f'{name} MB']:.0f} MB", f"{row['plain MB']:.0f} MB plain", row[f"{name} ratio"])
    for row in results.get("offload", []):
        work = f"peak memory of a capture, {row['dtype']}, weights {row['weights']}"
        yield Line(work, f"{row['capture']:.0f} MB", f"{row['forward']:.0f} MB plain", row["capture"] / row["forward"])
    for row in results.get("training", []):
        yield Line(
            "a training step", seconds(row["wherewhat s"]), f"{seconds(row['eager GPT-J s'])} eager", row["ratio"], True
        )
        if "bfloat16 ratio" in row:
            anchor = f"{seconds(row['eager GPT-J s'])} eager"
            yield Line("a training step, bfloat16", seconds(row["bfloat16 s"]), anchor, row["bfloat16 ratio"], True)
    for row in results.get("series", []):
        hours = f"{row['hours for the published job']:.2f} h", f"{row['published hours']} h published"
        yield Line("a series of checkpoints", *hours, row["ratio"], True)
    for row in results.get("ensemble", []):
        ours, alone = row["together ms per step"], row["one by one ms per step"]
        work = f"{row['models']} models at once, {row['task']}, angles {row['angles per model']}"
        yield Line(work, f"{ours:.0f} ms", f"{alone:.0f} ms one by one", row["ratio"], True)
    for row in results.get("ablation", []):
        yield Line(f"a pass: {row['gate']}", seconds(row["gated s"]), f"{seconds(row['plain s'])} plain", row["ratio"])
    for row in results.get("encodings", []):
        yield Line(row["what"], seconds(row["wherewhat s"]), f"{seconds(row['plain s'])} plain", row["ratio"])
    first, *others = results.get("cells", [None])
    for row in others:
        ours, alone = row["ms per cell"], first["ms per cell"]
        yield Line(f"a cell, {row['where']}", f"{ours:.1f} ms", f"{alone:.1f} ms in one process", ours / alone)
    for row in results.get("rotations", []):
        ratio, plain = row["planning ratio"], row["plain s"]
        yield Line(
            f"planning rotations, {row['tokens']} tokens, {row['model']}",
            seconds(ratio * plain),
            f"{seconds(plain)} plain",
            ratio,
        )

    for row in results.get("growth", []):
        size = {"s": seconds, "MB": lambda value: f"{value:.0f} MB"}[row["of"].split()[-1]]
        if row["grows"] == "tokens":  # the others are on the page about performance
            work = f"{row['of']}, {row['from']} to {row['to']} tokens: exponent"
            yield Line(work, size(row["last"]), f"{size(row['first'])} at {row['from']}", row["exponent"])
    taken = {row["command"]: row["s"] for row in results.get("imports", [])}
    libraries = taken.pop("import torch, transformers", 1.0)
    for command, value in taken.items():
        yield Line(command, seconds(value), f"{seconds(libraries)} torch, transformers", value / libraries)


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def table(results: Rows, committed: Rows) -> tuple[Table, Sequence[str]]:
    """The table, and one warning for each ratio that worsened."""
    before = {line.work: line.ratio for line in lines(committed)}
    shown = Table("work", "ours", "anchor or limit", "ratio", "last committed", box=None)
    warnings = []
    for line in lines(results):
        last = before.get(line.work)
        worse = line.worsened(last)
        shown.add_row(
            *line[:3], f"{line.ratio:.3g}", "-" if last is None else f"{last:.3g}", style="bold red" if worse else None
        )
        if worse:
            warnings.append(f"{line.work}: the ratio worsened from {last:.3g} to {line.ratio:.3g}")
    return shown, warnings


def last_committed(path: Path) -> Rows:
    """The results in the last commit; none outside a repository."""
    words = ["git", "-C", str(path.parent), "show", f"HEAD:./{path.name}"]
    done = subprocess.run(words, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}
