"""Models on disk: the checkpoints of a training run, and the trained models that ship with the package."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from ..errors import BadInput, Damaged
from ..files import parse_json, read_tensors, sha256, write_atomically
from .transformer import Shape, Transformer

GELUS = ("tanh", "none")
LARGEST = 100_000  # layers, heads, tokens or dimensions of a model of the lab
WEIGHTS = Path(__file__).parent / "weights"
SERIES = Path(__file__).parent / "series"  # the dynamics of the embedded models, measured at their checkpoints


def is_run(folder: str | Path) -> bool:
    """Whether a folder holds a training run."""
    return (Path(folder) / "run.json").is_file()


def read_run(folder: str | Path) -> dict[str, Any]:
    """The contents of run.json: task, shape and recipe."""
    path = Path(folder) / "run.json"
    try:
        about = parse_json(path.read_bytes())
        digest = about.pop("sha256", None)  # runs of earlier versions have none
        _shape(about["shape"])
        seed = about["recipe"]["seed"]
        if isinstance(seed, int) and not isinstance(seed, bool) and digest in (None, run_digest(about)):
            return about
    except FileNotFoundError as error:
        raise BadInput(f"{folder}: no training run here (run.json is missing)") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: damaged or unreadable") from error
    raise Damaged(f"{path}: damaged or unreadable")


def run_digest(about: Mapping[str, Any]) -> str:
    """The digest of the contents of run.json."""
    return sha256(json.dumps(about, sort_keys=True).encode())


def weights_about(about: Mapping[str, Any], step: int) -> str:
    """The description of a checkpoint: the run that it belongs to, and its step."""
    return f"{run_digest(about)} {step}"


def checkpoint_path(folder: str | Path, step: int) -> Path:
    return Path(folder) / "checkpoints" / f"step-{step:06d}.safetensors"


def steps_of(folder: str | Path) -> list[int]:
    """The steps at which a run has checkpoints, in order."""
    return sorted(int(path.stem.removeprefix("step-")) for path in Path(folder).glob("checkpoints/step-*.safetensors"))


def load_checkpoint(folder: str | Path, step: int | None = None) -> Transformer:
    """The model of a training run at a step, by default the last one.

    >>> model = load_checkpoint("runs/number", 2000)                   # doctest: +SKIP
    """
    about, steps = read_run(folder), steps_of(folder)
    if not steps or (step is not None and step not in steps):
        raise BadInput(f"{folder}: no checkpoint" + (f" of step {step}; the steps are {steps}" if steps else "s"))
    step = steps[-1] if step is None else step
    return _model(_shape(about["shape"]), checkpoint_path(folder, step), weights_about(about, step))


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
    """A shape as run.json states it. One of a model that could never be in memory is refused before it is built."""
    angles: Any = stated["angles"]
    shape = Shape(**{**stated, "angles": angles and tuple(map(float, angles))})
    for name, usual in asdict(Shape(1)).items():
        value = getattr(shape, name)
        if isinstance(usual, int) and (type(value) is not type(usual) or not 0 <= value <= LARGEST):
            raise ValueError(f"{name} is {value!r}")
    if shape.heads < 1 or shape.width < shape.heads or not math.isfinite(shape.base) or shape.gelu not in GELUS:
        raise ValueError("no model has this shape")
    if shape.vocabulary * shape.width + shape.layers * shape.width * (shape.width + shape.hidden) > LARGEST**2:
        raise ValueError("too large")
    return shape


def _model(shape: Shape, path: Path, about: str | None = None) -> Transformer:
    weights = {name: value.to(torch.float32) for name, value in read_tensors(path, about, unsealed=True).items()}
    if not all(value.isfinite().all() for value in weights.values()):
        raise Damaged(f"{path}: holds weights that are not finite")
    if len(weights) < shape.layers:  # do not build what does not fit
        raise Damaged(f"{path}: does not hold a model of this shape")
    model = Transformer(shape)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise Damaged(f"{path}: does not hold a model of this shape") from error
    return model.eval()
