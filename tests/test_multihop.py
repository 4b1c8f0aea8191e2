"""The reproduction of the learning dynamics on a task that is small in number only, and its findings in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from wherewhat.lab import Recipe, load_checkpoint
from wherewhat.lab.train import accuracy_by_hops
from wherewhat.studies.dynamics.measure import purity_table
from wherewhat.studies.dynamics.result import Dynamics
from wherewhat.studies.multihop.figures import draw_multihop
from wherewhat.studies.multihop.paper import PUBLISHED, MultihopResults, at_lengths, in_words, reproduce_multihop
from wherewhat.studies.multihop.terminal import show_multihop
from wherewhat.studies.multihop.train import train_task
from wherewhat.tasks import TASKS, Number


class Few(Number):
    """The number task with a hundredth of its sequences."""

    def splits(self, seed=0, total=4800):
        return super().splits(seed, total)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(TASKS, "number", Few)


@pytest.mark.slow
def test_all_tables_come_out_and_nothing_is_done_twice(few, tmp_path):
    recipe = {"tasks": ("number",), "seeds": (3, 4), "recipe": lambda seed: Recipe(steps=2, batch=8, seed=seed)}
    made = reproduce_multihop(tmp_path, **recipe, prompts=(12, 5), longest=20)
    draw_multihop(made, tmp_path)
    drawn = {path.name for path in (tmp_path / "results").glob("*.png")}
    assert drawn == {f"dynamics-{name}.png" for name in ("discrepancy", "geometry-number", "lengths-number")}
    assert made.lengths.query("seed == 4 and hops == 0")["length"].tolist() == [17, 20]
    assert len(made.geometry) == len(made.loss) == 2 * 12  # seeds, heads
    with (tmp_path / "shown.txt").open("w") as shown:
        show_multihop(made, Console(file=shown, width=120))
    assert "slope" in (tmp_path / "shown.txt").read_text()
    assert list(made.comparison["finding"]) == list(PUBLISHED)
    assert {"published", "seed 3", "seed 4"} <= set(made.comparison.columns)
    assert len(made.heads) == 2 * 2 * 12  # seeds, checkpoints at 0 and 2, heads
    expected = accuracy_by_hops(load_checkpoint(tmp_path / "number-4"), Few().splits()[2])
    assert made.test.query("seed == 4")["accuracy"].tolist() == expected
    assert Dynamics.load(tmp_path / "number-3" / "dynamics").about["prompts"] == 12
    assert Dynamics.load(tmp_path / "number-4" / "dynamics").about["prompts"] == 5
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*")}
    again = reproduce_multihop(tmp_path, **recipe, prompts=(12, 5), longest=20)
    pd.testing.assert_frame_equal(again.heads, MultihopResults.load(tmp_path / "multihop").heads)
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*")}


def test_findings_are_told_as_the_paper_tells_them():
    steps, layers = np.arange(0, 250, 50), np.arange(4)
    since = {1: 50, 0: 150, 2: 100}  # layer: pure from this step on; 0 and 1 positional, 2 symbolic, 3 never
    rows = []
    for step in steps:
        for layer in layers:
            pure = step >= since.get(layer, 1000)
            where, what = ((0.97, 0.02) if layer < 2 else (0.02, 0.97)) if pure else (0.5, 0.5)
            rows.append({"step": step, "query": 0, "layer": layer, "head": 0, "positional": where, "symbolic": what})
    heads = pd.DataFrame(rows).assign(mean_frequency=lambda frame: frame["layer"] * 10.0)
    accuracy = pd.DataFrame(
        {"step": step, "hops": hops, "accuracy": 1.0 if step >= 100 * hops else 0.1}
        for step in steps
        for hops in (1, 2, 3)
    )
    said = in_words(Dynamics(heads, accuracy, purity_table(heads), {}))
    assert said == {
        "pure positional, gamma 0.1": "layers 0-1",
        "pure symbolic, gamma 0.1": "layer 2",
        "positional heads in the order in which they became pure": "1 0",
        "symbolic heads in the order in which they became pure": "2",
        "pure positional, gamma 0.05": "layers 0-1",
        "pure symbolic, gamma 0.05": "layer 2",
        "step at which 1, 2, 3, 4 hops first reach 99 %": "100 200 never",
        "mean frequency ID by layer": "0 10 20 30",
    }


def test_accuracy_at_some_lengths_in_words():
    table = pd.DataFrame({"hops": [0, 0, 1], "length": [100, 1000, 300], "accuracy": [0.6, 0.02, 0.9]})
    assert at_lengths(table) == {"accuracy at 100, 300, 1000, 5000 tokens": "0.60 - 0.02 -"}


def test_the_command_goes_on_with_what_is_there(few, tmp_path, run, refuse):
    train_task("number", tmp_path / "number-0", Recipe(steps=2, batch=8))
    refuse("holds a run with other settings", "reproduce", "dynamics", "-o", tmp_path, "--seeds", 1)
    refuse("no paper 'dynamo'", "reproduce", "dynamo", "-o", tmp_path)
