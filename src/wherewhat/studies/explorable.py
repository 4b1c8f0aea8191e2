"""Results that show themselves in a notebook. How they look is set from above, where the pages are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Explorable:
    """A result that Jupyter shows as a page to explore."""

    page: Callable[[Any], str]

    def _repr_html_(self) -> str:
        return Explorable.page(self)
