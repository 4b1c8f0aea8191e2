"""The wheel is complete: installed without the sources, the demo runs on the bundled models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pandas as pd
import pytest

from synthetic import random_profile
from wherewhat.explorer.page import explorer_html
from wherewhat.studies.profile.result import Profile

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=outside, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The executables of an environment with the wheel, which shares the dependencies of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("wherewhat-*.whl")
    venv.create(folder / "fresh")
    place = {"base": str(folder / "fresh"), "platbase": str(folder / "fresh")}
    # A path in a .pth file adds the packages of this environment, but not its editable install of the sources.
    libraries = Path(sysconfig.get_path("purelib", vars=place))
    (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "fresh" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--force-reinstall", wheel], check=True)
    where = run(python, "-c", "import wherewhat; print(wherewhat.__file__)", cwd=folder)
    assert Path(where.stdout.strip()).is_relative_to(libraries)
    return folder / "fresh" / "bin"


def test_a_report_is_written_from_the_wheel(installed, tmp_path):
    """The script, the style and the template of the page are part of the wheel."""
    random_profile(2, 3, 4, blocks=5).save(tmp_path / "profile")
    done = run(installed / "wherewhat", "report", "profile", "-o", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page == explorer_html([Profile.load(tmp_path / "profile")])


def test_the_demo_runs_from_the_wheel(installed, tmp_path):
    done = run(installed / "wherewhat", "demo", "--prompts", "2", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["number"]["accuracy"]["right"] == 2
    assert len(pd.read_parquet(tmp_path / "demo" / "letter" / "heads.parquet")) == 12
