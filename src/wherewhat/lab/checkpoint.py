"""Models on disk: the checkpoints of a training run, and the trained models that ship with the package."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from ..errors import BadInput
from ..files import read_tensors, write_atomically
from .transformer import Shape, Transformer

WEIGHTS = Path(__file__).parent / "weights"
SERIES = Path(__file__).parent / "series"  # the dynamics of the embedded models, measured at their checkpoints


def is_run(folder: str | Path) -> bool:
    """Whether a folder holds a training run."""
    return (Path(folder) / "run.json").is_file()


def read_run(folder: str | Path) -> dict[str, Any]:
    """The contents of run.json: task, shape and recipe."""
    path = Path(folder) / "run.json"
    try:
        about = json.loads(path.read_text())
        return {name: about[name] for name in ("shape", "recipe")} | about
    except FileNotFoundError as error:
        raise BadInput(f"{folder}: no training run here (run.json is missing)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: damaged or unreadable") from error


def checkpoint_path(folder: str | Path, step: int) -> Path:
    return Path(folder) / "checkpoints" / f"step-{step:06d}.safetensors"


def steps_of(folder: str | Path) -> list[int]:
    """The steps at which a run has checkpoints, in order."""
    return sorted(int(path.stem.removeprefix("step-")) for path in Path(folder).glob("checkpoints/step-*.safetensors"))


def load_checkpoint(folder: str | Path, step: int | None = None) -> Transformer:
    """The model of a training run at a step, by default the last one.

    >>> model = load_checkpoint("runs/number", 2000)                   # doctest: +SKIP
    """
    shape, steps = _shape(read_run(folder)["shape"]), steps_of(folder)
    if not steps or (step is not None and step not in steps):
        raise BadInput(f"{folder}: no checkpoint" + (f" of step {step}; the steps are {steps}" if steps else "s"))
    return _model(shape, checkpoint_path(folder, steps[-1] if step is None else step))


def embedded(name: str) -> Transformer:
    """A trained model that ships with the package: "number" or "letter".

    >>> embedded("number").shape.layers                                # doctest: +SKIP
    12
    """
    path = WEIGHTS / f"{name}.safetensors"
    if not path.is_file():
        raise BadInput(f"no embedded model {name!r}: {', '.join(sorted(file.stem for file in WEIGHTS.glob('*')))}")
    with safe_open(path, framework="pt") as file:
        shape = _shape(json.loads(file.metadata()["shape"]))
    model = _model(shape, path)
    model.name = name
    return model


def embed(model: Transformer, name: str, about: dict[str, str]) -> Path:
    """Store a model in the package, in half precision."""
    path = WEIGHTS / f"{name}.safetensors"
    tensors = {key: value.half().contiguous() for key, value in model.state_dict().items()}
    write_atomically(path, save(tensors, about | {"shape": json.dumps(asdict(model.shape))}))
    return path


def _shape(stated: dict[str, Any]) -> Shape:
    angles: Any = stated["angles"]
    return Shape(**{**stated, "angles": angles and tuple(angles)})


def _model(shape: Shape, path: Path) -> Transformer:
    model = Transformer(shape)
    try:
        model.load_state_dict({name: value.to(torch.float32) for name, value in read_tensors(path).items()})
    except RuntimeError as error:
        raise BadInput(f"{path}: does not hold a model of this shape") from error
    return model.eval()
