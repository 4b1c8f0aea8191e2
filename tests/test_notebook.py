"""The example notebook runs from a model to a figure, and notebooks show results as the explorer."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from synthetic import random_profile, random_series
from wherewhat.explorer.page import explorer_html
from wherewhat.studies.profile.result import Profile

EXAMPLE = Path(__file__).parents[1] / "examples" / "explore.ipynb"
HOSTILE = "</iframe><script>alert(1)</script>\" onload='alert(2)' &quot;"


def elements(html: str) -> list[tuple[str, dict[str, str | None]]]:
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
    parser.feed(html)
    return found


@pytest.mark.slow
def test_the_example_runs_and_shows_the_explorer_and_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in all tests
    notebook = nbformat.read(EXAMPLE, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")  # committed without outputs
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    _, heads, page, *figures = (output.data for output in outputs if output.output_type == "execute_result")
    assert re.search(r"^3 +3 +where ", heads["text/plain"], re.MULTILINE)
    ((tag, said),) = elements(page["text/html"])
    assert (tag, said["sandbox"]) == ("iframe", "allow-scripts allow-downloads")
    assert "<h1>number</h1>" in said["srcdoc"]
    assert len(figures) == 2
    assert all("image/png" in figure for figure in figures)
    assert (tmp_path / "plane.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_a_notebook_shows_the_live_page_until_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cells = ["import wherewhat as ww\npage = ww.explore('number')\npage", ASK, "page.close()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, asked, _ = (cell.outputs for cell in notebook.cells)
    ((tag, said),) = elements(shown[-1].data["text/html"])
    assert tag == "iframe"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", said["src"] or "")
    assert asked[-1].data["text/plain"] == "(200, 1)"


ASK = """
import json, urllib.request
base, token = page.address.split("?token=")
for text in ("as u m bf bv m dn m 5 7 10 1 10 5 1 10 16", "u as m bf bv m dn m 5 7 10 1 10 5 1 10 16"):
    body = json.dumps({"text": text}).encode()  # the first prompt of its length may need the self-check
    answer = urllib.request.urlopen(urllib.request.Request(base + "api/measure", body, {"x-wherewhat-token": token}))
answer.status, json.load(answer)["passes"]
"""


def test_notebooks_show_results_as_the_explorer_and_hostile_text_stays_inside_its_frame():
    made = random_profile(2, 2, 3, blocks=4)
    prompt = made.about["prompts"][0] | {"tokens": [HOSTILE] * 18, "text": HOSTILE, "labels": [HOSTILE] * 4}
    hostile = Profile(made.heads, made.frequencies, made.about | {"model": HOSTILE, "prompts": [prompt]}, made.tensors)
    for source in (hostile, random_series()):
        ((tag, said),) = elements(source._repr_html_())
        assert tag == "iframe"
        assert set(said) == {"sandbox", "title", "width", "height", "style", "srcdoc"}
        assert said["srcdoc"] == explorer_html([source])
