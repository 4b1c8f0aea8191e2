"""Every figure for print, by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from ..display.style import STYLE, save_drawn
from ..errors import BadInput
from ..studies.ablation.ablate import Ablation
from ..studies.ablation.figures import ablation_figure
from ..studies.atlas import figures as atlas_figures
from ..studies.atlas.atlas import Atlas
from ..studies.dynamics import figures as dynamics_figures
from ..studies.dynamics.dynamics import Dynamics
from ..studies.profile import figures as profile_figures
from ..studies.profile import figures_of_heads as head_figures
from ..studies.profile.figures_of_heads import ChosenHead, plane_projection
from ..studies.profile.projection import project_profile
from ..studies.profile.result import Profile
from .load import Drawable, load_drawable

OF_A_PROFILE: dict[str, Callable[[Profile], Figure]] = {
    "heatmaps": profile_figures.heatmaps,
    "heads": head_figures.heads,
    "layers": profile_figures.layers,
    "frequencies": profile_figures.frequencies,
    "use": profile_figures.use,
}
OF_A_HEAD: dict[str, Callable[[Profile, ChosenHead], Figure]] = {
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
OF_DYNAMICS: dict[str, Callable[[Dynamics], Figure]] = {
    "scores": dynamics_figures.scores,
    "purity": dynamics_figures.purity,
    "accuracy": dynamics_figures.accuracy,
    "mean-frequency": dynamics_figures.mean_frequency,
}
OF_PROFILES = ("plane", *OF_A_PROFILE, *OF_A_HEAD)
FIGURES = (*OF_PROFILES, *OF_DYNAMICS, "ablation", "atlas")
# The name of each kind of result, and its figures.
FIGURES_OF: dict[type, tuple[str, Sequence[str]]] = {
    Profile: ("a profile", OF_PROFILES),
    Dynamics: ("dynamics", tuple(OF_DYNAMICS)),
    Ablation: ("an ablation", ("ablation",)),
    Atlas: ("an atlas", ("atlas",)),
}


def plot(
    results: Drawable | str | Path | Sequence[Drawable | str | Path],
    figure: str | None = None,
    path: str | Path | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    frequency: int | None = None,
    blocks: tuple[int, int] | None = None,
) -> Figure:
    """Draw a figure for print; with a `path` ending in .png, .pdf or .svg, write it as well.

    `results` is a profile, dynamics, an ablation or an atlas, or a folder that holds one; figure "plane" takes several
    profiles. The default figure is the plane of a profile, the scores of dynamics, the ablation or the atlas. `layer`
    and `head` select a head, `frequency` one of its rotation planes, `blocks` the two blocks that are swapped, counted
    from 1.

    Figures of a profile: plane, heatmaps, heads, layers, frequencies, use. Of one head: head, path, swap,
    plane-projection. Of dynamics: scores, purity, accuracy, mean-frequency. Of an ablation: ablation. Of an atlas:
    atlas.

    >>> ww.plot(profile, "plane", "plane.pdf")                        # doctest: +SKIP
    >>> ww.plot("profiles/smollm2", "swap", layer=3, head=0, blocks=(2, 9))            # doctest: +SKIP
    """
    sources = load_drawable(results, tuple(kind for kind, (_, names) in FIGURES_OF.items() if figure in names))
    if not sources:
        raise BadInput("a figure needs at least one result to draw")
    with mpl.rc_context(STYLE):
        made = draw(sources, figure or default_figure(sources), ChosenHead(layer, head, frequency, blocks))
    if path is not None:
        save_drawn(path, lambda: made)
    return made


def default_figure(sources: Sequence[Drawable]) -> str:
    return FIGURES_OF[type(sources[0])][1][0]


def draw(sources: Sequence[Drawable], name: str, choice: ChosenHead) -> Figure:
    """A figure by its name; options that do not apply to it are refused."""
    if name not in FIGURES:
        here = dict.fromkeys(FIGURES_OF[type(source)] for source in sources)
        known = "; ".join(f"figures of {kind}: {', '.join(names)}" for kind, names in here)
        raise BadInput(f"no figure {name!r}; {known}")
    for option, value in vars(choice).items():
        if value is not None and option not in OPTIONS.get(name, ()):
            raise BadInput(f"--{option} does not apply to the figure {name}")
    wanted = next(kind for kind, names in FIGURES_OF.values() if name in names)
    for source in sources:
        kind, names = FIGURES_OF[type(source)]
        if name not in names:
            raise BadInput(f"figure {name} shows {wanted}; figures of {kind}: {', '.join(names)}")
    if name == "plane":
        return profile_figures.plane([source for source in sources if isinstance(source, Profile)])
    if len(sources) > 1:
        raise BadInput(f"figure {name} shows one result, got {len(sources)}; only plane takes several")
    (source,) = sources
    if isinstance(source, Atlas):
        return atlas_figures.atlas(source)
    if isinstance(source, Ablation):
        return ablation_figure(source)
    if isinstance(source, Dynamics):
        return OF_DYNAMICS[name](source)
    return OF_A_HEAD[name](source, choice) if name in OF_A_HEAD else OF_A_PROFILE[name](source)
