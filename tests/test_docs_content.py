"""What the documentation says is what the code does: numbers, commands, the README, and the tutorials."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nbformat
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from conftest import weights
from wherewhat.cli import app

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import docs_loose  # noqa: E402
import docs_numbers  # noqa: E402
import docs_tutorials  # noqa: E402

COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", text)


def shown_commands(path: Path) -> list[list[str]]:
    """The commands of wherewhat in the shell blocks of a page, as words."""
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("wherewhat ")]


def test_the_numbers_of_all_pages_are_those_of_their_tables():
    assert list(docs_numbers.outdated((ROOT / "docs").rglob("*.md"))) == []


def test_every_number_that_can_be_rendered_is_on_a_page():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert {name for name in docs_numbers.NUMBERS if f"<!--= {name} -->" not in pages} == set()


def test_every_decimal_number_in_a_page_of_results_has_a_source():
    assert docs_loose.unsupported() == {}


def test_a_number_without_a_source_is_found():
    page = (
        "<!--= a -->0.4567<!--/--> is 0.46 or `0.99` ([paper](x-1.23)), not 0.47, 1,000.5 or <!--= b -->1,000<!--/-->.1"
    )
    assert docs_loose.loose(page) == ["0.47", "1,000.5"]


def test_no_line_of_text_starts_with_the_mark_of_a_number():
    """Such a line would be a block of HTML in Markdown, and break its paragraph."""
    for path in (ROOT / "docs").rglob("*.md"):
        assert not re.findall(r"(?m)^\s*<!--= .+-->.+$", path.read_text(encoding="utf-8")), path


def test_a_number_that_differs_is_found_and_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("All <!--= theorems -->26<!--/--> claims, and <!--= cells, Ray -->9<!--/--> ms.")
    count = len(pd.read_parquet(ROOT / "results" / "theorems.parquet"))
    (ray,) = (one for one in json.loads((ROOT / "bench/results.json").read_text())["cells"] if "ray" in one["where"])
    (text,) = docs_numbers.outdated([page]).values()
    plain = re.sub(r"<!--.*?-->", "", text)
    assert plain == f"All {count} claims, and {round(ray['ms per cell'], 1)} ms."
    page.write_text("<!--= unknown -->1<!--/-->")
    with pytest.raises(SystemExit, match="no number is called 'unknown'"):
        docs_numbers.outdated([page])


def test_correlations_of_profiles_are_those_of_their_heads():
    rows, heads = (pd.read_parquet(ROOT / "results" / f"{name}.parquet") for name in ("profiles", "profiles-heads"))
    by = ["model", "pairs", "group", "task"]
    assert len(rows) == 21  # five models on two tasks with two sizes of blocks, and three with 256 pairs
    for key, own in heads.groupby(by):
        (row,) = rows[(rows[by] == list(key)).all(axis=1)].to_dict("records")
        resting = own[own["on_blocks"] >= 0.01]
        assert row["r"] == pytest.approx(own["positional"].corr(own["symbolic"]), abs=1e-5)
        assert row["resting_r"] == pytest.approx(resting["positional"].corr(resting["symbolic"]), abs=1e-5)
        assert own["on_blocks"].between(0, 1 + 1e-5).all()
    prose, binding = (
        heads[(heads["task"] == task) & (heads["group"] == 1) & (heads["pairs"] < 256)].reset_index(drop=True)
        for task in ("prose", "binding")
    )
    kept = (prose["kind"] == binding["kind"]).groupby(prose["model"]).sum()
    assert kept.to_dict() == rows[rows["task"] == "prose"].set_index("model")["kept"].to_dict()


def test_the_finding_of_the_readme_is_that_of_the_table():
    found = pd.read_parquet(ROOT / "results" / "ablation-models.parquet").query(
        "model == 'Qwen2.5-Coder-0.5B' and measure == 'binding_accuracy' and how == 'ablate'"
    )
    answers = (found["after"] * found["units"]).round().astype(int)
    (own,), drawn = answers[found["draw"].isna()], answers[found["draw"].notna()]
    assert (found["before"] == 1).all()
    assert (found["units"] == 16).all()
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"it answers {own}; without ten others of the same layers, {drawn.min()} to {drawn.max()}." in said


def test_the_claim_of_the_readme_about_rotations_is_that_of_the_table():
    table = pd.read_parquet(ROOT / "results" / "rotations.parquet")
    by = ["model", "documents", "measure", "calibrated", "length"]

    def means(rows: pd.DataFrame) -> pd.Series:
        found: Any = rows.query("documents != 'copies'").groupby([*by, "set"])["value"].mean()
        return found.groupby(by).mean()

    plan, plain = means(table.query("share == 2 and criterion == 'plan'")), means(table.query("criterion == 'none'"))
    kl = plan.xs("kl", level="measure")
    matched = kl.index.get_level_values("calibrated") == kl.index.get_level_values("length")
    assert kl.index.unique("model").size == 4
    assert kl[~matched].index.unique("model").size == 3
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"In four of five small models half can go: mean KL is at most {kl[matched].max():.3f} nats on text" in said
    assert f"as long as the calibration text, {kl.max():.3f} on longer text (three models); copying can suffer" in said
    assert (plan - plain).xs("copy_loss", level="measure").max() > 1


def test_planning_rotations_cost_less_than_three_passes():
    rows = json.loads((ROOT / "bench/results.json").read_text())["rotations"]
    assert max(row["tokens"] for row in rows) > 2048  # from there on, not all queries count
    assert max(row["planning ratio"] for row in rows) < 3
    assert "less than three plain passes" in (ROOT / "docs" / "rotations.md").read_text(encoding="utf-8")


def test_the_readme_counts_the_model_types_of_the_table():
    table = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    (counts,) = re.findall(r'\*\*(\d+) verified, (\d+) at level "prompt" only, (\d+) refused\.\*\*', table)
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Of the {sum(map(int, counts))} causal model types of transformers, {counts[0]} are measured" in said
    assert f"{counts[1]} add positions" in said
    assert f"{counts[2]} are refused" in said


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_shown_exists_with_its_options(path):
    for name, *words in shown_commands(path):
        context = typer.Context(COMMANDS[name])
        COMMANDS[name].make_parser(context).parse_args(list(words))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
    assert (ROOT / "docs/figures/swap.gif").stat().st_size < 1_000_000


@pytest.mark.slow
@pytest.mark.weights
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) == 8
    real = weights("SmolLM2-135M-Instruct-GGUF") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / real.name).symlink_to(real)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert "positional" in capsys.readouterr().out
    assert (tmp_path / "plane.png").stat().st_size > 10_000
    assert "<h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def served_until_interrupted(words: list[str]) -> int:
    """The exit code of `wherewhat serve`, which runs until Control-C, after one request."""
    command = [sys.executable, "-m", "wherewhat", "serve", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            address = next(line for line in iter(running.stderr.readline, "") if "http://" in line).split()[-1]
            with urlopen(address, timeout=60) as page:
                assert page.status == 200
            running.send_signal(signal.SIGINT)
            return running.wait(60)
        finally:
            running.kill()


@pytest.mark.slow
@pytest.mark.weights
def test_the_commands_of_the_readme_run_on_a_smaller_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small, quick = str(weights("stories260K")), {"profile": ["--samples", "4"], "ablate": ["--samples", "2"]}
    for name, *words in shown_commands(ROOT / "README.md"):
        words = [small if "SmolLM2-135M" in word or word.endswith(".gguf") else word for word in words]
        words = ["12" if word == "64" else word for word in words]  # as many pairs as fit
        if name == "serve":
            assert served_until_interrupted([word for word in words if word != "--open"]) == 0
        elif name != "demo":  # tests/test_wheel.py
            done = CliRunner().invoke(app, [name, *words, *quick.get(name, [])])
            assert done.exit_code == 0, done.output
    assert (tmp_path / "smollm2.html").is_file()


def test_what_a_cell_prints_is_one_output(tmp_path):
    printed = [nbformat.v4.new_output("stream", name="stdout", text=f"{line}\n") for line in ("a", "b")]
    cell = nbformat.v4.new_code_cell("print()", outputs=printed)
    page = docs_tutorials.page(nbformat.v4.new_notebook(cells=[cell]), "name", tmp_path)
    assert page == "```python\nprint()\n```\n\n```text\na\nb\n```\n"


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in all tests
    weights("stories260K")
    stored = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in stored.cells if cell.cell_type == "code")  # committed without outputs
    monkeypatch.setenv("WHEREWHAT_WEIGHTS", os.environ.get("WHEREWHAT_WEIGHTS") or str(weights("stories260K").parent))
    found = docs_tutorials.executed(path)
    assert found is not None
    page = docs_tutorials.page(found, path.stem, tmp_path / "pictures")
    assert page.count("```python") == sum(cell.cell_type == "code" for cell in found.cells)
    assert "Traceback" not in page
    assert "<style" not in page
