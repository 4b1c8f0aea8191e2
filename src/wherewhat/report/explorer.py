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
from ..studies.atlas import Atlas
from ..studies.compare import compare
from ..studies.dynamics import Dynamics
from ..studies.gating import Gating
from ..studies.lengths import Lengths
from ..studies.profile_file import Profile
from .explorer_data import Source, names_of, source_data
from .explorer_effects import gates_of
from .sentences import comparison_sentences, film_sentences

MOST_COMPARED = 8  # profiles of which every pair is compared

# In this order: what holds for narrow screens overrides all before it.
STYLES = ("page.css", "parts.css", "figures.css", "narrow.css")


def explorer_html(results: Sequence[Source | Gating], names: Sequence[str] | None = None) -> str:
    """Profiles, series, lengths and atlases as one self-contained page; gates join the profile of their model.

    `names` are those of all but the gates.

    >>> page = explorer_html([Profile.load("profiles/smollm2"), Gating.load("gating/smollm2")])       # doctest: +SKIP
    """
    sources = [result for result in results if not isinstance(result, Gating)]
    gates = gates_of(sources, [result for result in results if isinstance(result, Gating)])
    if not sources:
        raise BadInput("a report needs at least one profile or series")
    names = list(names or names_of(sources))
    named = zip(sources, names, strict=True)
    data = {
        "sources": [source_data(source, name, gates.get(at)) for at, (source, name) in enumerate(named)],
        "comparisons": comparisons(sources, names),
    }
    page = files("wherewhat.report").joinpath("page")
    script, template, *styles = (
        page.joinpath(name).read_text("utf-8") for name in ("explorer.js", "explorer.html", *STYLES)
    )
    style = "".join(styles)
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(template).render(
        title=" and ".join(names), sources=data["sources"], data=_as_json(data), script=script, style=style,
        allowed={"script": _digest(script), "style": _digest(style)},
    )  # fmt: skip


def write_report(folders: Sequence[str | Path], path: str | Path) -> int:
    """Read what the folders hold (profiles, series, runs, lengths, gates, atlases) and write the page; its size.

    >>> write_report(["profiles/smollm2", "gating/smollm2", "runs/number-0"], "report.html")          # doctest: +SKIP
    """
    found = [(Path(folder), result) for folder in folders for result in load_results(Path(folder))]
    sources = [(folder, result) for folder, result in found if not isinstance(result, Gating)]
    names = names_of([result for _, result in sources], [folder for folder, _ in sources])
    content = explorer_html([result for _, result in found], names).encode()
    write_atomically(Path(path), content)
    return len(content)


def load_results(folder: Path) -> Sequence[Source | Gating]:
    """All that a folder holds of what the page can show."""
    also = [
        kind.load(folder)
        for name, kind in (("lengths.json", Lengths), ("gating.json", Gating))
        if (folder / name).exists()
    ]
    return also if also and not (folder / "profile.json").exists() else [load_source(folder), *also]


def load_source(folder: Path) -> Profile | Dynamics | Atlas:
    """A profile, an atlas, the dynamics of a series, or of a training run whose folder holds them."""
    if (folder / "atlas.json").exists():
        return Atlas.load(folder)
    for place in (folder, folder / "dynamics"):
        if (place / "dynamics.json").exists():
            return Dynamics.load(place)
    if (folder / "run.json").exists():
        raise BadInput(f"{folder}: a run whose checkpoints were not scored yet; give wherewhat dynamics {folder} first")
    return Profile.load(folder)


def comparisons(sources: Sequence[Source], names: Sequence[str]) -> dict[str, list[str]]:
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
