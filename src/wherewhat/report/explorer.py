"""The explorer: every head of a model on one page, as one HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import combinations, product
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from ..errors import BadInput
from ..files import write_atomically
from ..studies.compare import compare
from ..studies.dynamics import Dynamics
from ..studies.profile_file import Profile
from .explorer_data import names_of, source_data
from .sentences import comparison_sentences, film_sentences

MOST_COMPARED = 8  # profiles of which every pair is compared


def explorer_html(sources: Sequence[Profile | Dynamics], names: Sequence[str] | None = None) -> str:
    """Profiles and series of checkpoints as one self-contained page.

    >>> page = explorer_html([Profile.load("profiles/smollm2")])       # doctest: +SKIP
    """
    if not sources:
        raise BadInput("a report needs at least one profile or series")
    names = list(names or names_of(sources))
    data = {
        "sources": [source_data(source, name) for source, name in zip(sources, names, strict=True)],
        "comparisons": comparisons(sources, names),
    }
    page = files("wherewhat.report").joinpath("page")
    script, style, template = (
        page.joinpath(name).read_text("utf-8") for name in ("explorer.js", "explorer.css", "explorer.html")
    )
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(template).render(
        title=" and ".join(names), sources=data["sources"], data=_as_json(data), script=script, style=style,
        allowed={"script": _digest(script), "style": _digest(style)},
    )  # fmt: skip


def write_report(folders: Sequence[str | Path], path: str | Path) -> int:
    """Read profiles, series and runs from their folders, and write the page; its size in bytes.

    >>> write_report(["profiles/smollm2", "runs/number-0"], "report.html")            # doctest: +SKIP
    """
    places = [Path(folder) for folder in folders]
    sources = [load_source(folder) for folder in places]
    content = explorer_html(sources, names_of(sources, places)).encode()
    write_atomically(Path(path), content)
    return len(content)


def load_source(folder: Path) -> Profile | Dynamics:
    """A profile, the dynamics of a series, or of a training run whose folder holds them."""
    for place in (folder, folder / "dynamics"):
        if (place / "dynamics.json").exists():
            return Dynamics.load(place)
    if (folder / "run.json").exists():
        raise BadInput(f"{folder}: a run whose checkpoints were not scored yet; give wherewhat dynamics {folder} first")
    return Profile.load(folder)


def comparisons(sources: Sequence[Profile | Dynamics], names: Sequence[str]) -> dict[str, list[str]]:
    """What every pair of profiles, and every profile beside a film, says, by their numbers."""
    profiles = [(at, source) for at, source in enumerate(sources) if isinstance(source, Profile)][:MOST_COMPARED]
    films = [(at, source) for at, source in enumerate(sources) if isinstance(source, Dynamics)]
    return {
        f"{i},{j}": comparison_sentences(compare(one, other), (names[i], names[j]))
        for (i, one), (j, other) in combinations(profiles, 2)
    } | {
        f"{min(i, j)},{max(i, j)}": film_sentences(profile, film, (names[i], names[j]))
        for (i, profile), (j, film) in product(profiles, films)
    }


def _as_json(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever a prompt says."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(text: str) -> str:
    """How a page names the only script and style that it lets run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
