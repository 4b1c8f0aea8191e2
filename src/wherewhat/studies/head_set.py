"""A named list of heads, with the model that they belong to and how they were chosen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput, Damaged
from ..files import parse_json, sha256, write_atomically


@dataclass(frozen=True)
class HeadSet:
    """Heads as (layer, head), shared between ablations and exports; saved as one JSON file that holds its digest.

    `weights` is the hash of the model, as its profile states it; a set without it fits every model.

    >>> HeadSet("copying", ((3, 1), (4, 0)), model="mine", chosen="by hand").words
    '3.1, 4.0'
    """

    name: str
    heads: tuple[tuple[int, int], ...]
    model: str = ""
    weights: str | None = None
    chosen: str = ""  # how, in words

    def __post_init__(self) -> None:
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise BadInput(f"head set {self.name!r}: give at least one head, and each head once")

    @property
    def words(self) -> str:
        return ", ".join(f"{layer}.{head}" for layer, head in self.heads)

    def save(self, path: str | Path) -> None:
        """Write the file atomically."""
        stated = json.loads(json.dumps(asdict(self)))
        write_atomically(Path(path), json.dumps(stated | {"sha256": _digest(stated)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> HeadSet:
        """Read a saved set; a damaged file is named in the error."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: cannot be read") from error

    @classmethod
    def parse(cls, text: str, path: str) -> HeadSet:
        """The set in the text of a file."""
        try:
            stated = parse_json(text)
            digest = stated.pop("sha256")
            heads = tuple((int(layer), int(head)) for layer, head in stated["heads"])
            if digest == _digest(stated):
                return cls(**stated | {"heads": heads})
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise Damaged(f"{path}: not a set of heads, or damaged; write it again with wherewhat export --to heads")

    def check(self, weights: str) -> None:
        """Refuse a model that the heads were not chosen in."""
        if self.weights is not None and self.weights != weights:
            raise BadInput(
                f"the heads {self.name!r} were chosen in another model, {self.model}: weights or configuration differ"
            )


def _digest(stated: dict[str, Any]) -> str:
    return sha256(json.dumps(stated, sort_keys=True).encode())
