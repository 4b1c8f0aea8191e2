"""Fixtures: the real models, which are skipped where they are missing, and the command line."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedModel

import wherewhat as ww

torch.set_num_threads(1)
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "xdg")  # of converted .gguf files
settings.register_profile("wherewhat", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("wherewhat")

# Of other processes: this package, one thread.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(ww.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
WEIGHTS = Path(os.environ.get("WHEREWHAT_WEIGHTS", Path(__file__).parents[2] / "shared" / "weights"))


def missing(reason: str) -> NoReturn:
    """A requirement of a test is missing: the test is skipped, but fails under CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def mostly_slow(names: Iterable[str], *quick: str) -> list[Any]:
    """Parameters of a test: all of these are tested by `make test`, only the quick ones by `make fast` as well."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def weights(name: str) -> Path:
    """The path of some real weights."""
    path = WEIGHTS / name
    if not path.exists():
        missing(f"no weights at {path}: set WHEREWHAT_WEIGHTS to the folder that holds {name}")
    return path


def needed(package: str) -> Any:
    """A package of the extra "integrations"."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing(f"{error}: `make integrations` installs it and runs these tests")


def firefox_and_driver() -> tuple[str, Any]:
    """The path of Firefox, and the module that drives it."""
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        missing("no Firefox: apt-get install firefox-esr")
    try:
        return path, importlib.import_module("marionette_driver.marionette")
    except ImportError:  # it needs modules that Python 3.13 removed
        missing("marionette_driver cannot be imported")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use a real model, directly or through another fixture, are marked as such."""
    for item in items:
        if {"stories260k", "stories15m", "smollm2"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.weights)


@pytest.fixture(scope="session")
def stories260k() -> PreTrainedModel:
    return ww.load(weights("stories260K"))


@pytest.fixture(scope="session")
def stories15m() -> PreTrainedModel:
    return ww.load(weights("stories15M"))


@pytest.fixture(scope="session")
def smollm2() -> PreTrainedModel:
    return ww.load(weights("SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the entry point with these arguments: exit code, standard output, standard error."""

    from wherewhat.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wherewhat", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def refuse(run):
    """Assert that a command is refused with exit code 2 and one line that matches these words."""

    def call(words: str, *arguments: object) -> None:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert re.fullmatch(rf"wherewhat: [^\n]*{words}[^\n]*\n", err), err

    return call


ALL_FAULTS = os.environ.get("WHEREWHAT_FAULTS") == "all"  # set by `make faults`


def share(all_of_them: int, some: int) -> int:
    """How many faults to try: all of them in `make faults`, a fixed share in `make test`."""
    return all_of_them if ALL_FAULTS else some


@pytest.fixture
def tried(record_property: Any) -> Any:
    """Counts what a test of faults tried, for the summary at the end: `tried("flipped bytes", 40)`."""

    def add(what: str, number: int = 1) -> None:
        record_property("tried", (what, number))

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the tests of faults tried."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "tried" and getattr(report, "when", "") == "call":
                    total[value[0]] += value[1]
    if total:
        terminalreporter.write_line("Faults tried: " + ", ".join(f"{n} {what}" for what, n in sorted(total.items())))
