"""Counts, numbers and lists of layers, formatted for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def count(number: int, thing: str) -> str:
    """A number with its noun, in singular or plural.

    >>> count(1, "prompt"), count(270, "head")
    ('1 prompt', '270 heads')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def number(value: float | None) -> str:
    """Two decimals, or a dash if there is no number."""
    return "-" if value is None else f"{value:.2f}"


def name_layers(layers: Iterable[int]) -> str:
    """Layers with consecutive numbers written as ranges.

    >>> name_layers((0, 1, 2, 5)), name_layers((3,))
    ('layers 0-2, 5', 'layer 3')
    """
    distinct = sorted(set(layers))
    runs: list[list[int]] = []
    for layer in distinct:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'s' if len(distinct) > 1 else ''} {listed}"


def signed(value: float) -> str:
    """Two decimals with a typographic minus sign."""
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def printable(text: str) -> str:
    """A text without control characters, which could move the cursor or hide words; line breaks stay.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def model_name(name: str | Path) -> str:
    """The last part of a path or hub ID, without .gguf.

    >>> model_name("models/SmolLM2.Q4_1.gguf"), model_name("EleutherAI/pythia-70m")
    ('SmolLM2.Q4_1', 'pythia-70m')
    """
    return Path(str(name).rstrip("/")).name.removesuffix(".gguf")
