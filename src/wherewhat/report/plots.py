"""Every figure by its name, of whatever it can be drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from ..errors import BadInput
from ..studies.atlas import Atlas
from ..studies.dynamics import Dynamics
from ..studies.profile_file import Profile
from ..studies.projection import project_profile
from . import atlas_figures, head_figures, learning_figures, profile_figures
from .canonical_figures import plane_projection
from .figures import STYLE, save_drawn
from .head_figures import Choice

OF_A_PROFILE: dict[str, Callable[[Profile], Figure]] = {
    "heatmaps": profile_figures.heatmaps,
    "heads": head_figures.heads,
    "layers": profile_figures.layers,
    "frequencies": profile_figures.frequencies,
    "use": profile_figures.use,
}
OF_A_HEAD: dict[str, Callable[[Profile, Choice], Figure]] = {
    "head": head_figures.head,
    "path": head_figures.path,
    "swap": head_figures.swap,
    "plane-projection": lambda profile, choice: plane_projection(
        project_profile(profile, choice.layer or 0, choice.head or 0, choice.frequency or 1)
    ),
}
OPTIONS = {
    "head": ("layer", "head"),
    "path": ("layer", "head"),
    "swap": ("layer", "head", "blocks"),
    "plane-projection": ("layer", "head", "frequency"),
}
OF_LEARNING: dict[str, Callable[[Dynamics], Figure]] = {
    "scores": learning_figures.scores,
    "purity": learning_figures.purity,
    "accuracy": learning_figures.accuracy,
    "mean-frequency": learning_figures.mean_frequency,
}
OF_PROFILES = ("plane", *OF_A_PROFILE, *OF_A_HEAD)
FIGURES = (*OF_PROFILES, *OF_LEARNING, "atlas")
Drawable = Profile | Dynamics | Atlas
# What each kind of result shows, and its figures.
SHOWN: dict[type, tuple[str, Sequence[str]]] = {
    Profile: ("a profile", OF_PROFILES),
    Dynamics: ("how heads learnt", tuple(OF_LEARNING)),
    Atlas: ("many models", ("atlas",)),
}


def plot(
    source: Drawable | Sequence[Drawable],
    figure: str | None = None,
    path: str | Path | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    frequency: int | None = None,
    blocks: tuple[int, int] | None = None,
) -> Figure:
    """Draw a profile, several side by side in one plane, how heads learnt, or an atlas; with a path, write it too.

    A path ends in .png, .pdf or .svg. Unless named, the figure is the plane of a profile, the scores of a series.
    `layer` and `head` choose a head, `frequency` one of its planes, `blocks` the two that change places, from 1.

    >>> ww.plot(profile, "plane", "plane.pdf")                        # doctest: +SKIP
    >>> ww.plot(profile, "swap", layer=3, head=0, blocks=(2, 9))      # doctest: +SKIP
    """
    sources = [source] if isinstance(source, Drawable) else list(source)
    if not sources:
        raise BadInput("a figure needs a profile or a series to draw")
    with mpl.rc_context(STYLE):
        made = draw(sources, figure or default_figure(sources), Choice(layer, head, frequency, blocks))
    if path is not None:
        save_drawn(path, lambda: made)
    return made


def default_figure(sources: Sequence[Drawable]) -> str:
    return SHOWN[type(sources[0])][1][0]


def draw(sources: Sequence[Drawable], name: str, choice: Choice) -> Figure:
    """A figure by its name; what does not apply is refused."""
    if name not in FIGURES:
        raise BadInput(f"no figure {name!r}: {', '.join(FIGURES)}")
    for option, value in vars(choice).items():
        if value is not None and option not in OPTIONS.get(name, ()):
            raise BadInput(f"--{option} does not apply to the figure {name}")
    shows = next(what for what, names in SHOWN.values() if name in names)
    for source in sources:
        what, names = SHOWN[type(source)]
        if name not in names:
            raise BadInput(f"figure {name} shows {shows}; of {what} there are {', '.join(names)}")
    if name == "plane":
        return profile_figures.plane([source for source in sources if isinstance(source, Profile)])
    if len(sources) > 1:
        what = {Profile: "profile", Dynamics: "series", Atlas: "atlas"}[type(sources[0])]
        raise BadInput(f"figure {name} takes one {what}, got {len(sources)}; only plane takes several")
    (source,) = sources
    if isinstance(source, Atlas):
        return atlas_figures.atlas(source)
    if isinstance(source, Dynamics):
        return OF_LEARNING[name](source)
    return OF_A_HEAD[name](source, choice) if name in OF_A_HEAD else OF_A_PROFILE[name](source)
