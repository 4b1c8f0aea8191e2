"""The package as a whole: every exported name resolves, and importing it is quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wherewhat as ww


@pytest.mark.parametrize("name", ww.__all__)
def test_every_name_of_the_stub_resolves(name):
    assert getattr(ww, name) is not None
    assert name in dir(ww)


def test_executors_and_prompts_are_exported():
    names = "ProcessExecutor RayExecutor SerialExecutor executing own_prompts plain_text repeats binding Prompt".split()
    assert set(names) <= set(ww.__all__)


def test_importing_the_package_imports_no_heavy_library():
    heavy = "torch transformers pandas numpy scipy matplotlib rich typer ray fsspec".split()
    code = f"import sys, wherewhat; print(*[name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


def test_modules_can_be_imported_under_another_name():
    import wherewhat.tracing.self_check as c

    assert callable(c.certify)


HEAVY = """
import sys
sys.argv = ["wherewhat", *sys.argv[1:]]
from wherewhat.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
heavy = [name for name in ("torch", "transformers", "pandas", "scipy", "matplotlib") if name in sys.modules]
print(f"exit {code}, imported {heavy}")
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("profile", "--help"), 0),
        (("profile", "/nowhere/at/all"), 2),
        (("ablate", "missing.gguf"), 2),
        (("doctor", "."), 2),
        (("profile", "owner/name", "--dtype", "int3"), 2),
        (("compare", "missing", "missing"), 2),
    ],
)
def test_help_and_refusals_do_not_wait_for_torch(words, code, tmp_path):
    done = subprocess.run([sys.executable, "-c", HEAVY, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == f"exit {code}, imported []", done.stderr
    assert code == 0 or done.stderr.startswith("wherewhat: ")


def test_the_harness_is_refused_with_the_version_that_it_needs(monkeypatch):
    from wherewhat import harness

    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", None)
    with pytest.raises(
        ww.BadInput, match=r"lm_eval 0.4.13 or newer is needed .* pip install 'wherewhat\[integrations\]'"
    ):
        harness.register()
