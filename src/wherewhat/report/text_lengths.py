"""How far a language model holds, in a terminal and on paper: number and letter by window."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..prompts.one_hop import WORDINGS
from ..studies.text_lengths import KEPT_AT, KEPT_FROM, PUBLISHED, TextLengths
from .figures import LOOKS, name_figure, new_figure
from .terminal import count

TASK_LOOKS = dict(zip(WORDINGS, LOOKS.values(), strict=True))  # number needs where, letter needs what
MODEL_MARKS = "D^v"


def show_text_lengths(found: TextLengths, name: str, console: Console) -> None:
    """A row a window: shares with their intervals and malformed answers; and what the paper reports of its models."""
    rows = {(row["task"], row["window"]): row for row in found.accuracy.to_dict("records")}
    asked, seeds = max(found.accuracy["asked"].tolist()), len(set(found.answers["seed"]))
    windows = sorted({window for _, window in rows})
    told = f": one hop as text, {count(asked, 'prompt')} a task and window, {count(seeds, 'seed')}"
    console.print(Text.assemble((name, "bold"), told))
    shown = _table("window", *(part for task in WORDINGS for part in (task, "95 %", "malformed")))
    for window in windows:
        shown.add_row(str(window), *(cell for task in WORDINGS for cell in _cells(rows[task, window])))
    console.print(Padding(shown, (1, 2)))
    if compared := sorted({window for by_window in PUBLISHED.values() for window in by_window} & set(windows)):
        console.print("Published, number / letter:")
        published = _table("window", *PUBLISHED)
        for window in compared:
            pairs = ("{:.2f} / {:.2f}".format(*by_window[window]) for by_window in PUBLISHED.values())
            published.add_row(str(window), *pairs)
        console.print(Padding(published, (1, 2)))
    for sentence in sentences(found):
        console.print(sentence)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    if row["unfit"]:
        return "too long", "", ""
    return f"{row['accuracy']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", str(row["malformed"])


def sentences(found: TextLengths) -> list[str]:
    """Whether the paper would keep the model, and what could not be asked."""
    unfit = found.accuracy.query("unfit > 0").drop_duplicates("task").to_dict("records")  # windows grow
    said = [f"Prompts of {row['task']} do not fit from {row['window']} symbols on." for row in unfit]
    if found.kept is not None:
        kept = "would be kept" if found.kept else "would not be kept"
        said.append(f"The paper keeps models that answer {KEPT_FROM:.0%} of letter at {KEPT_AT}: this one {kept}.")
    return said


def text_length_curves(found: TextLengths, name: str) -> Figure:
    """Accuracy over the window, with its spread over seeds and its interval; beside it the paper's models."""
    figure = new_figure(7.4, 3.2)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for task, look in TASK_LOOKS.items():
        rows = found.accuracy.query(f"task == '{task}'")
        left.fill_between(rows["window"], rows["low"], rows["high"], color=look.colour, alpha=0.15, lw=0)
        left.errorbar(
            rows["window"], rows["accuracy"], rows["spread"].fillna(0), color=look.colour, ls=look.line,
            marker=look.mark, ms=3.5, lw=1.3, elinewidth=0.8, capsize=2, label=task, gid=task,
        )  # fmt: skip
    for mark, (model, by_window) in zip(MODEL_MARKS, PUBLISHED.items(), strict=True):
        for at, (task, look) in enumerate(TASK_LOOKS.items()):
            right.plot(
                list(by_window), [pair[at] for pair in by_window.values()], color=look.colour, ls=look.line, lw=0.7,
                marker=mark, mfc="white", ms=4.5, label=f"{model}, {task}", gid=f"{model} {task}",
            )  # fmt: skip
    _axes(left, name, sorted(set(found.accuracy["window"])))
    _axes(right, "Published", sorted(set(found.accuracy["window"])))
    left.set_ylabel("accuracy")
    left.legend(frameon=False, fontsize=6.5)
    right.legend(frameon=False, fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    name_figure(figure, "One hop as text", "bars: standard deviation over seeds; bands: 95 % intervals of all answers")
    return figure


def _axes(axes: Axes, title: str, windows: list[int]) -> None:
    axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="symbols in the window", title=title)
    axes.set_xticks(windows, list(map(str, windows)), fontsize=6.5)
    axes.minorticks_off()
