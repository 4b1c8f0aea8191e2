"""The explorer: every head of a model on one page, in one self-contained HTML file."""

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
from ..studies.ablation.ablate import Ablation
from ..studies.dynamics.dynamics import Dynamics
from ..studies.profile.compare import compare
from ..studies.profile.result import Profile
from ..studies.rotations.plan import RotationPlan
from .data import names_of, source_data
from .data_ablation import ablations_of
from .data_rotations import plans_of
from .load import Joined, Shown, Source, open_results
from .sentences import comparison_sentences, series_comparison

MOST_COMPARED = 8  # profiles of which every pair is compared

# In this order: the rules for narrow screens override those before them.
STYLES = ("page.css", "parts.css", "figures.css", "narrow.css")


def explorer_html(results: Sequence[Shown], names: Sequence[str] | None = None) -> str:
    """The page as a string; each ablation or plan is shown with the profile of its model.

    `names` are the names shown for all results except ablations and plans.

    >>> page = explorer_html([Profile.load("profiles/smollm2"), Ablation.load("ablations/smollm2")])  # doctest: +SKIP
    """
    sources = [result for result in results if not isinstance(result, Joined)]
    if not results:
        raise BadInput("a report needs at least one result")
    ablations = ablations_of(sources, [result for result in results if isinstance(result, Ablation)])
    plans = plans_of(sources, [result for result in results if isinstance(result, RotationPlan)])
    names = list(names or names_of(sources))
    named = zip(sources, names, strict=True)
    data = {
        "sources": [
            source_data(source, name, ablations.get(at), plans.get(at)) for at, (source, name) in enumerate(named)
        ],
        "comparisons": comparisons(sources, names),
    }
    page = files("wherewhat.explorer").joinpath("static")
    script, template, *styles = (
        page.joinpath(name).read_text("utf-8") for name in ("explorer.js", "explorer.html", *STYLES)
    )
    style = "".join(styles)
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(template).render(
        title=" and ".join(names), sources=data["sources"], data=_as_json(data), script=script, style=style,
        allowed={"script": _digest(script), "style": _digest(style)},
    )  # fmt: skip


def report(
    results: Shown | str | Path | Sequence[Shown | str | Path],
    path: str | Path = "report.html",
    *,
    names: Sequence[str] | None = None,
) -> Path:
    """Write one self-contained HTML page on which every head can be explored, and return its path.

    `results` are profiles, dynamics, lengths, ablations, plans of rotations and atlases, or folders that hold them, one
    or several. An ablation or plan is shown with the profile of its model. `names` are the names shown for all results
    except ablations and plans.

    >>> ww.report(["profiles/smollm2", "ablations/smollm2", "runs/number-0"])           # doctest: +SKIP
    PosixPath('report.html')
    """
    opened = [(result, folder) for held, folder in open_results(results) for result in held]
    sources = [(result, folder) for result, folder in opened if not isinstance(result, Joined)]
    names = names or names_of([result for result, _ in sources], [folder for _, folder in sources])
    path = Path(path)
    write_atomically(path, explorer_html([result for result, _ in opened], names))
    return path


def comparisons(sources: Sequence[Source], names: Sequence[str]) -> dict[str, list[str]]:
    """Sentences that compare every pair of profiles, and every profile with every series, keyed by their numbers."""
    profiles = [(at, source) for at, source in enumerate(sources) if isinstance(source, Profile)][:MOST_COMPARED]
    series = [(at, source) for at, source in enumerate(sources) if isinstance(source, Dynamics)]
    return {
        f"{i},{j}": comparison_sentences(compare(one, other), (names[i], names[j]))
        for (i, one), (j, other) in combinations(profiles, 2)
    } | {
        f"{min(i, j)},{max(i, j)}": series_comparison(profile, watched, (names[i], names[j]))
        for (i, profile), (j, watched) in product(profiles, series)
    }


def _as_json(data: Any) -> str:
    """JSON that cannot close the HTML element around it, whatever text a prompt contains."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(text: str) -> str:
    """The hash by which the content security policy allows a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
