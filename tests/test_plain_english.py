"""`make check` refuses the phrases of the old dialect, also across line breaks, and accepts plain English."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("plain_english", Path(__file__).parents[1] / "tools" / "plain_english.py")
assert SPEC is not None
assert SPEC.loader is not None
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)


@pytest.mark.parametrize(
    "phrase",
    [
        "a table with a row a head",
        "eight tokens a block",
        "a run that was stopped goes on where it was",
        "what is there is not measured again",
        "give the command\n    # again",
        "left out for want of attention",
        "the dimensions that do not turn",
        "this file is no TOML",
        "get numbers for machines",
    ],
)
def test_the_old_dialect_is_found(phrase):
    assert tool.phrases(phrase)


@pytest.mark.parametrize(
    "phrase",
    [
        "a table with one row per head",
        "to score a model, load it first",
        "the token a head attends to",
        "a dash if there is no number",
        "an interrupted run resumes",
        "these tokens are not run again",
    ],
)
def test_plain_english_is_accepted(phrase):
    assert not tool.phrases(phrase)


def test_findings_name_file_line_and_suggestion(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("Good.\nOne row a\nhead.\nA row a head <!-- plain-english: ok -->\n")
    assert tool.main([str(page)]) == 1
    assert capsys.readouterr().out == f"{page}:2: row a head -> one X per Y\n"
    page.write_text("One row per head.\n")
    assert tool.main([str(page)]) == 0
