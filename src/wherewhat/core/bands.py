"""Bands of frequencies by name: "fastest quarter", "middle third", "slowest 4"."""

from __future__ import annotations

import re

from ..errors import BadInput

PARTS = {"half": 2, "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
PLACES = {"fastest": 0, "first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "sixth": 5, "seventh": 6}


def band(name: str, planes: int) -> range:
    """The frequency IDs of a band, in a head with this many rotary planes. The four quarters are disjoint and cover all
    planes, as do the halves, thirds and so on.

    >>> band("fastest quarter", 32), band("middle third", 32), band("fastest 3", 32), band("slowest 4", 32)
    (range(1, 9), range(12, 22), range(1, 4), range(29, 33))
    """
    words = re.fullmatch(r"(?:the )?(\w+) (\w+)", name.strip().lower())
    place, part = words.groups() if words else ("", "")
    if part.isdecimal() and place in ("fastest", "slowest"):
        number = min(int(part), planes)
        ids = range(1, number + 1) if place == "fastest" else range(planes - number + 1, planes + 1)
    else:
        parts = PARTS.get(part, 0)
        at = {"slowest": parts - 1, "last": parts - 1, "middle": parts // 2 if parts % 2 else -1}.get(
            place, PLACES.get(place, -1)
        )
        if not 0 <= at < parts:
            raise BadInput(f'no band {name!r}: try "fastest quarter", "middle third", "second half" or "slowest 4"')
        ids = range(1 + round(at * planes / parts), 1 + round((at + 1) * planes / parts))
    if not ids:
        raise BadInput(f"band {name!r} is empty: there are {planes} frequencies")
    return ids
