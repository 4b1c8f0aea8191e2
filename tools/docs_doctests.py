"""For mkdocstrings: show the examples of docstrings as Python sessions, without the flags that doctest reads."""

from __future__ import annotations

import re
from typing import Any

import griffe

SESSION = re.compile(r"(?m)^>>> .*(?:\n.+)*")


class Doctests(griffe.Extension):
    """Fences every example."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with each example between fences.

    >>> fenced("One. >>> not an example\\n\\n>>> 1 + 1  # doctest: +SKIP\\n2")
    'One. >>> not an example\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    text = re.sub(r"(?m) *# doctest: .*$", "", text)
    return SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
