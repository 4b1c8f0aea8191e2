"""Every example of docs/integrations.md runs, on a real model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import needed, weights

PAGE = (Path(__file__).parents[1] / "docs" / "integrations.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
INSTALLED = ("peft", "tensorboard")  # by the extra `dev`; every other package by `integrations`


def packages(section: str) -> list[str]:
    found = re.search(r"<!-- needs: (.+?) -->", SECTIONS[section])
    return found[1].split(", ") if found else []


def marked(section: str) -> object:
    extra = [pytest.mark.integrations] if set(packages(section)) - set(INSTALLED) else []
    return pytest.param(section, marks=[pytest.mark.slow, pytest.mark.weights, *extra])


@pytest.mark.parametrize("section", [marked(section) for section in SECTIONS])
def test_the_examples_of(section, tmp_path):
    """Code blocks of a section run one after the other in an empty folder; those in Python are one script."""
    for package in packages(section):
        needed(package)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "stories15M").symlink_to(weights("stories15M").resolve())
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)
    assert blocks
    script = ""
    for language, code in blocks:
        script = script + code if language == "python" else script
        command = [sys.executable, "-c", script] if language == "python" else ["bash", "-ec", code]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PATH": paths, "OMP_NUM_THREADS": "1"}, text=True,
            capture_output=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
