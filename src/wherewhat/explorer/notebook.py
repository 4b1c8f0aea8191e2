"""The explorer inside a notebook: the same page in a sandboxed frame."""

from __future__ import annotations

from html import escape

from .data import names_of
from .load import Source
from .page import explorer_html

HEIGHT = 860  # pixels


def explorer_frame(source: Source) -> str:
    """An HTML element that holds the whole explorer of a result, for `_repr_html_`.

    >>> explorer_frame(profile)[:42]                                   # doctest: +SKIP
    '<iframe sandbox="allow-scripts allow-downl'
    """
    title = f"{names_of([source])[0]}: where or what?"
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" title="{escape(title)}" width="100%" height="{HEIGHT}" '
        f'style="border: 0" srcdoc="{escape(explorer_html([source]))}"></iframe>'
    )
