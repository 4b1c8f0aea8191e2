"""Counts, numbers and lists of layers, formatted for people; names of models and number types, as people give them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .errors import BadInput

DTYPES = ("float32", "bfloat16", "float16")
MOST_PAIRS = 512  # statements of a binding prompt


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


def check_model_name(name: str | Path, revision: str | None = None) -> None:
    """Refuse a name that stands for no language model: a missing file, a folder without a model, or no hub ID."""
    path = Path(name)
    if revision is not None and (path.suffix == ".gguf" or path.is_dir()):
        raise BadInput(f"{name}: revision applies only to models from the hub, got {revision}")
    if path.suffix == ".gguf":
        if not path.is_file():
            raise BadInput(f"{path}: no such file")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(
                f"{path}: the folder holds neither a training run (run.json) nor a language model (config.json)"
            )
    elif path.is_absolute() or str(name).count("/") > 1 or str(name).startswith(".") or str(name).endswith("/"):
        raise BadInput(f"{name}: neither a folder, a .gguf file nor a hub id of the form owner/name")


def check_dtype_name(name: str) -> None:
    """Refuse a number type that is not supported."""
    if name not in DTYPES:
        raise BadInput(f"dtype is {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {name}")
