"""`wherewhat lengths` of language models: on this machine, or behind an endpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from .shared import stoppable

if TYPE_CHECKING:
    from ..studies.answers import Answerer


def measure_text(
    answerer: Answerer,
    name: str,
    folder: Path,
    *,
    windows: Sequence[int],
    prompts: int,
    seeds: Sequence[int],
    prices: tuple[float, float] | None = None,
    as_json: bool = False,
) -> None:
    """Ask, keep every answer in the folder, write tables and figure, show."""
    from rich.console import Console

    from ..report.figures import save_drawn
    from ..report.terminal import progress_bar
    from ..report.text_lengths import show_text_lengths, text_length_curves
    from ..studies.text_lengths import text_lengths

    screen = Console(stderr=True, quiet=as_json, markup=False, highlight=False)
    with stoppable(f"the answers so far are kept in {folder}; the same command goes on"), progress_bar(screen) as bar:
        found = text_lengths(answerer, folder, windows=windows, prompts=prompts, seeds=seeds, progress=bar)
    found.save(folder)
    save_drawn(folder / "lengths.pdf", lambda: text_length_curves(found, name))
    read, written = found.tokens
    cost = None if prices is None else found.cost(*prices)
    if as_json:
        table = found.accuracy.astype(object).where(found.accuracy.notna(), None)
        told = {"model": name, "folder": f"{folder}", "lengths": table.to_dict("records"), "kept": found.kept}
        print(json.dumps(told | {"tokens_read": read, "tokens_written": written, "cost": cost}))
    else:
        show_text_lengths(found, name, Console(highlight=False, markup=False))
        spent = "" if cost is None else f", {cost:,.4g} at the prices given"
        screen.print(f"Tokens: {read:,} read, {written:,} written{spent}. Saved in {folder}")


def read_key(variable: str, asked: bool) -> str | None:
    """The key of an endpoint, which only the environment holds; none where none is set, unless it was asked for."""
    key = os.environ.get(variable, "").strip()
    if asked and not key:
        raise BadInput(f"the variable {variable} holds no key")
    return key or None


def read_fields(text: str | None) -> dict[str, Any]:
    """The JSON object that the user gave."""
    try:
        fields = json.loads(text or "{}", parse_constant=_no_number)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise BadInput(f"--extra is a JSON object, got {text}")
    if taken := sorted({"messages", "model", "stream"} & fields.keys()):
        raise BadInput(f"--extra cannot set {', '.join(taken)}")
    return fields


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
