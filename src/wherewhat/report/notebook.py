"""The explorer inside a notebook: the same page in a frame that reaches nothing outside itself."""

from __future__ import annotations

from html import escape

from ..studies.dynamics import Dynamics
from ..studies.profile_file import Profile
from .explorer import explorer_html
from .explorer_data import names_of

HEIGHT = 860  # pixels


def explorer_frame(source: Profile | Dynamics) -> str:
    """A profile or a series as an HTML element that holds the whole explorer, for `_repr_html_`.

    >>> explorer_frame(profile)[:42]                                   # doctest: +SKIP
    '<iframe sandbox="allow-scripts allow-downl'
    """
    title = f"{names_of([source])[0]}: where or what?"
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" title="{escape(title)}" width="100%" height="{HEIGHT}" '
        f'style="border: 0" srcdoc="{escape(explorer_html([source]))}"></iframe>'
    )
