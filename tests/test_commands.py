"""Every command is a function of the same name, parameters and defaults, and its saved result loads equal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import typer

import wherewhat as ww
from conftest import weights
from wherewhat.cli import app
from wherewhat.cli.options import LOADING, SPREAD
from wherewhat.results import Result

COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
SHOWN = {"as_json", "movers", "top"}  # how the terminal shows the result
OBJECTS = {"prompts", "tokenizer", "settings", "about", "stated", "names"}  # what only Python can pass
WATCHED = {"progress", "say"}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters with their defaults; paths and names of paths are the same."""
    return {
        one.name: str(one.default) if isinstance(one.default, Path) else one.default
        for one in inspect.signature(function).parameters.values()
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_function_with_the_same_parameters_and_defaults(name: str) -> None:
    command, function = defaults(COMMANDS[name].callback), defaults(getattr(ww, name))
    hidden = {*SHOWN, *SPREAD}
    if "loading" in function:  # the options that load a model, by name
        del function["loading"]
        hidden |= LOADING.keys()
        assert {one: command[one] for one in LOADING} == {one: default for one, (_, default) in LOADING.items()}
    options = {one: default for one, default in command.items() if one not in hidden}
    assert options == {one: default for one, default in function.items() if one in options}
    only_python = OBJECTS | WATCHED | ({"task"} if name == "lengths" else set())  # of a model that is already loaded
    assert function.keys() - options.keys() <= only_python


def test_the_options_that_load_a_model_are_parameters_of_load() -> None:
    own = defaults(ww.load) | {"dtype": "float32", "device": "cpu"}  # where `load` has torch.float32 and no device
    assert {name: default for name, (_, default) in LOADING.items()} == {name: own[name] for name in LOADING}


def small(name: str, folder: Path) -> Result:
    """A small result of this command, saved in the folder."""
    model = str(weights("stories260K"))
    calls: dict[str, Callable[[], Any]] = {
        "profile": lambda: ww.profile(model, pairs=4, samples=2, folder=folder),
        "compare": lambda: ww.compare(*2 * [ww.profile(model, pairs=4, samples=2)], folder=folder),
        "ablate": lambda: ww.ablate("number", samples=8, draws=2, heads="0.0", folder=folder),
        "deposit": lambda: ww.deposit(model, pairs=3, samples=2, folder=folder),
        "lengths": lambda: ww.lengths("number", prompts=4, longest=17, folder=folder),
        "stretch": lambda: ww.stretch(model, pairs=4, samples=2, longest=160, measure=[120], folder=folder),
        "spectrum": lambda: ww.spectrum("letter", samples=2, folder=folder),
        "rotations": lambda: ww.rotations(model, keep=2, length=[32], samples=1, folder=folder),
        "train": lambda: ww.train("letter", folder=folder, steps=4, every=2, warmup=1, batch=8),
        "sweep": lambda: ww.sweep("index", frequency=[7], seeds=1, steps=4, folder=folder),
        "verify": lambda: ww.verify(["h-pos"], folder=folder),
        "doctor": lambda: ww.doctor(model, folder=folder),
        "atlas": lambda: ww.atlas(listed(folder, model), folder=folder),
        "dynamics": lambda: ww.dynamics(small("train", folder.with_name("run")), prompts=8, folder=folder),
    }
    return calls[name]()


def listed(folder: Path, model: str) -> Path:
    path = folder.with_name("models.toml")
    path.write_text(f'pairs = 4\nsamples = 2\n[[models]]\nmodel = "{model}"\n')
    return path


WITHOUT_RESULT = {
    "report",
    "plot",
    "export",
    "demo",
    "reproduce",
    "serve",
}  # files; profiles; the results of other commands; a page


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - WITHOUT_RESULT))
def test_a_saved_result_loads_equal(name: str, tmp_path: Path) -> None:
    made = small(name, tmp_path / "result")
    made.save(tmp_path / "result")  # once more: what `save` writes is what the function wrote
    loaded = type(made).load(tmp_path / "result")
    for field in fields(made):  # pyright: ignore[reportArgumentType] - every result is a dataclass
        mine, theirs = getattr(made, field.name), getattr(loaded, field.name)
        if isinstance(mine, pd.DataFrame):
            pd.testing.assert_frame_equal(mine, theirs)
        elif field.name == "tensors":
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[one].nan_to_num(7e7), theirs[one].nan_to_num(7e7)) for one in mine)
        else:
            assert mine == theirs, field.name
