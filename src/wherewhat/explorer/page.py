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
from ..studies.multihop.demo import LEAD, TITLE, Demo
from ..studies.profile.compare import compare
from ..studies.profile.result import Profile
from ..studies.rotations.plan import RotationPlan
from .data import names_of, source_data
from .data_ablation import ablations_of
from .data_rotations import plans_of
from .load import Joined, Shown, Source, open_results
from .sentences import comparison_sentences, same_heads, series_comparison

MOST_COMPARED = 8  # profiles of which every pair is compared

# In this order: the rules for narrow screens override those before them.
STYLES = ("page.css", "parts.css", "figures.css", "narrow.css")


def explorer_html(
    results: Sequence[Shown],
    names: Sequence[str] | None = None,
    view: str = "",
    *,
    title: str = "",
    lead: Sequence[str] = (),
) -> str:
    """The page as a string; each ablation or plan is shown with the profile of its model.

    `names` are the names shown for all results except ablations and plans. `view` is what is selected when the page is
    opened, as it stands in the page's address after #; with a `title`, the page has this title and these leading
    sentences there.

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
    data |= {name: value for name, value in (("view", view), ("title", title), ("lead", list(lead))) if value}
    return page_html(data, title or f"{' and '.join(names)}: where or what?")


def page_html(data: dict[str, Any], title: str, live: bool = False) -> str:
    """The page with its data; a live one may also ask the server that it comes from."""
    page = files("wherewhat.explorer").joinpath("static")
    named = ("live.js" if live else "explorer.js", "explorer.html", *STYLES, *(["live.css"] if live else []))
    code, template, *styles = (page.joinpath(name).read_text("utf-8") for name in named)
    policy = "; connect-src 'self'" if live else ""
    style = "".join(styles)
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(template).render(
        title=title, sources=data["sources"], data=_as_json(data), script=code, style=style, policy=policy,
        allowed={"script": _digest(code), "style": _digest(style)},
    )  # fmt: skip


def demo_html(shown: Demo) -> str:
    """The page of the demo, which opens on the training of both models."""
    names = list(shown.results)
    return explorer_html(list(shown.results.values()), names, "with=1", title=TITLE, lead=LEAD)


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
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path}: there is no folder {path.parent}; create it, or give another path")
    opened = [(result, folder) for held, folder in open_results(results) for result in held]
    sources = [(result, folder) for result, folder in opened if not isinstance(result, Joined)]
    names = names or names_of([result for result, _ in sources], [folder for _, folder in sources])
    write_atomically(path, explorer_html([result for result, _ in opened], names))
    return path


def comparisons(sources: Sequence[Source], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What every pair of profiles, and every profile and series, have in common, keyed by their numbers: sentences, and
    whether a head of one is the same head in the other."""
    profiles = [(at, source) for at, source in enumerate(sources) if isinstance(source, Profile)][:MOST_COMPARED]
    series = [(at, source) for at, source in enumerate(sources) if isinstance(source, Dynamics)]
    found: dict[str, dict[str, Any]] = {}
    for (i, one), (j, other) in combinations(profiles, 2):
        compared = compare(one, other)
        matched = compared.heads is not None
        found[f"{i},{j}"] = {"says": comparison_sentences(compared, (names[i], names[j])), "matched": matched}
    for (i, profile), (j, watched) in product(profiles, series):
        says = series_comparison(profile, watched, (names[i], names[j]))
        matched = same_heads(profile, watched)
        found[f"{min(i, j)},{max(i, j)}"] = {"says": says, "matched": matched}
    return found


def _as_json(data: Any) -> str:
    """JSON that cannot close the HTML element around it, whatever text a prompt contains."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(text: str) -> str:
    """The hash by which the content security policy allows a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
