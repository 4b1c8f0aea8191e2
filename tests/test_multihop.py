"""The reproduction of the learning dynamics on a task that is small in number only, and its findings in words."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from wherewhat.lab import Recipe, load_checkpoint
from wherewhat.lab.half import float16_products
from wherewhat.lab.train import accuracy_by_hops
from wherewhat.results import save_prefixed
from wherewhat.studies.dynamics.measure import purity_table
from wherewhat.studies.dynamics.result import Dynamics
from wherewhat.studies.multihop import paper
from wherewhat.studies.multihop.comparison import at_lengths, curves, in_words, words_of_paper
from wherewhat.studies.multihop.figures import OF_RUNS, draw_multihop
from wherewhat.studies.multihop.paper import MultihopResults, reproduce_multihop
from wherewhat.studies.multihop.published import published
from wherewhat.studies.multihop.runs import AUTHORS, RECIPES
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
def test_all_tables_come_out_and_nothing_is_done_twice(few, monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "FAR", 17)
    monkeypatch.setattr(paper, "FAR_PROMPTS", 3)
    plan = {"tasks": ("number",), "seeds": (3, 4), "prompts": (12, 5), "longest": 27}
    plan |= {"recipe": Recipe(steps=2, batch=8, embedding_dropout=0.0)}
    made = reproduce_multihop(tmp_path, **plan)
    save_prefixed(made, tmp_path / "results" / "dynamics", first=False)
    draw_multihop(made, tmp_path)
    drawn = {path.name for path in (tmp_path / "results").glob("*.png")}
    assert drawn == {"dynamics-discrepancy.png"} | {f"dynamics-{name}-number-64.png" for name in OF_RUNS}
    lengths = made.lengths.query("seed == 4 and hops == 0 and moment == 'last'")
    assert lengths["length"].tolist() == [17, 27]  # as published: 0 and 10 added tokens
    assert lengths["asked"].tolist() == [200, 3]
    assert len(made.geometry) == len(made.loss) == 2 * 2 * 12  # seeds, moments, heads
    with (tmp_path / "shown.txt").open("w") as shown:
        show_multihop(made, Console(file=shown, width=120))
    assert "slope" in (tmp_path / "shown.txt").read_text()
    assert list(made.comparison.query("task == 'number'")["finding"]) == list(words_of_paper("number"))
    assert {"published", *(f"{AUTHORS}, seed {seed}" for seed in (3, 4))} <= set(made.comparison.columns)
    assert len(made.heads) == 2 * 2 * 12  # seeds, checkpoints at 0 and 2, heads
    assert {"task", "seed", "recipe", "step", "layer"} <= set(made.heads.columns)
    expected = accuracy_by_hops(load_checkpoint(tmp_path / "number-64-4"), Few().splits()[2])
    assert made.test.query("seed == 4 and moment == 'last'")["accuracy"].tolist() == expected
    assert Dynamics.load(tmp_path / "number-64-3" / "dynamics").about["prompts"] == 12
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*")}
    again = reproduce_multihop(tmp_path, **plan)
    pd.testing.assert_frame_equal(again.heads, MultihopResults.load(tmp_path / "multihop").heads)
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*")}

    train_task("number", tmp_path / "number-192-0", Recipe(steps=4, batch=8), exact_gelu=True)
    (tmp_path / "number-192-0" / "checkpoints" / "step-000004.safetensors").unlink()
    said: list[str] = []
    rest = reproduce_multihop(tmp_path, finished_only=True, prompts=(12, 5), longest=27, say=said.append)
    assert said == ["number-192-0: not finished, left out"]
    pd.testing.assert_frame_equal(rest.heads, made.heads)
    shutil.rmtree(tmp_path / "number-64-4")  # its rows stay, from the results folder
    kept = reproduce_multihop(tmp_path, finished_only=True, prompts=(12, 5), longest=27)
    assert sorted(kept.heads["seed"].unique()) == [3, 4]


def test_mixed_precision_rounds_products_forwards_and_backwards():
    left, right = (torch.randn(5, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    left.requires_grad_()
    with float16_products():
        found = left @ right
    wanted = (left.half().float() @ right.half().float()).half().float()
    assert torch.equal(found, wanted.detach())
    (found * 1e-3).sum().backward()
    given = (torch.full((5, 5), 1e-3) * 2**16).half().float() / 2**16
    assert torch.equal(left.grad, (given @ right.half().float().T * 2**16).half().float() / 2**16)


def test_recipes_change_one_thing_each():
    plain = RECIPES["64"].recipe(2)
    assert plain == Recipe(embedding_dropout=0.0, seed=2)
    assert RECIPES["192"].recipe(2) == replace(plain, batch=192)
    assert RECIPES["half"].recipe(2) == replace(plain, half=True)
    assert RECIPES["order"].recipe(2) == replace(plain, data_seed=1002)
    assert RECIPES["init"].recipe(2) == replace(plain, seed=1002, data_seed=2)
    assert RECIPES["tanh"].recipe(2) == replace(plain, embedding_dropout=None)
    assert "data_seed" not in plain.settings()  # runs of before stay the same runs


def test_the_paper_in_its_own_words_by_our_rules():
    number, letter = words_of_paper("number"), words_of_paper("letter")
    assert number["pure positional, gamma 0.2"] == "layers 1-3"  # layer 0 ends at .39 / .62: not pure, by figure 6
    assert number["symbolic heads in the order in which they became pure, gamma 0.2"] == "5 6 7 4 8 9 10 11"
    assert letter["pure symbolic, gamma 0.05"] == "layers 1-11"
    assert number["accuracy with 100, 300, 1000, 5000 added tokens"] == "0.74 0.47 0.20 0.04"


def test_the_share_of_a_published_curve_within_the_seeds():
    known = published("dynamics-accuracy").query("task == 'number' and hops == '2'")
    base = pd.DataFrame({"step": known["step"], "hops": 2, "accuracy": known["accuracy"], "task": "number"})
    seeds = [
        base.assign(seed=seed, recipe="r", accuracy=base["accuracy"] + shift) for seed, shift in ((0, 0.1), (1, -0.1))
    ]
    heads = pd.DataFrame({"query": [0], "head": 0, "layer": 0, "step": 50, "positional": 1.0, "symbolic": 0.0})
    heads = heads.assign(task="number", recipe="r", seed=0)
    far = pd.DataFrame({"task": ["number"], "recipe": "r", "seed": 0, "moment": "last", "hops": 0, "length": 117})
    tables = {"heads": heads, "accuracy": pd.concat(seeds), "lengths": far.assign(accuracy=0.5)}
    found = curves(tables).set_index("curve")
    assert found.loc["accuracy, hops 2", ["seeds", "inside"]].tolist() == [2, 1.0]
    assert found.loc["accuracy, hops 2", "distance"] == pytest.approx(0, abs=1e-9)
    assert found.loc["accuracy by added tokens 0", "distance"] == pytest.approx(0.739 - 0.5, abs=1e-9)


def test_findings_are_told_as_the_paper_tells_them():
    steps, layers = np.arange(0, 250, 50), np.arange(4)
    since = {1: 50, 0: 150, 2: 100}  # layer: pure from this step on; 0 and 1 positional, 2 symbolic, 3 never
    rows = []
    for step in steps:
        for layer in layers:
            pure = step >= since.get(layer, 1000)
            where, what = ((0.97, 0.02) if layer < 2 else (0.02, 0.97)) if pure else (0.5, 0.5)
            rows.append({"step": step, "query": 0, "layer": layer, "head": 0, "positional": where, "symbolic": what})
    heads = pd.DataFrame(rows)
    accuracy = pd.DataFrame(
        {"step": step, "hops": hops, "accuracy": 1.0 if step >= 100 * hops else 0.1}
        for step in steps
        for hops in (1, 2, 3)
    )
    said = in_words(Dynamics(heads, accuracy, purity_table(heads), {}))
    assert said == {
        "pure positional, gamma 0.2": "layers 0-1",
        "positional heads in the order in which they became pure, gamma 0.2": "1 0",
        "pure symbolic, gamma 0.2": "layer 2",
        "symbolic heads in the order in which they became pure, gamma 0.2": "2",
        "pure positional, gamma 0.1": "layers 0-1",
        "pure symbolic, gamma 0.1": "layer 2",
        "pure positional, gamma 0.05": "layers 0-1",
        "pure symbolic, gamma 0.05": "layer 2",
        "step at which 1, 2, 3, 4 hops first reach 99 %": "100 200 never",
    }


def test_accuracy_at_some_lengths_in_words():
    table = pd.DataFrame({"hops": [0, 0, 1], "length": [117, 1017, 317], "accuracy": [0.6, 0.02, 0.9]})
    table = table.assign(moment="last", task="number", recipe="r", seed=0)
    better = pd.concat([table, table.assign(moment="best", accuracy=0.7)])
    assert at_lengths(table) == {"accuracy with 100, 300, 1000, 5000 added tokens": "0.60 - 0.02 -"}
    assert at_lengths(better) == {"accuracy with 100, 300, 1000, 5000 added tokens": "0.70 - 0.70 -"}


def test_the_command_goes_on_with_what_is_there(few, tmp_path, run, refuse):
    train_task("number", tmp_path / "number-64-0", Recipe(steps=2, batch=8))
    refuse("holds a run with other settings", "reproduce", "dynamics", "-o", tmp_path, "--seeds", 1)
    refuse("no paper 'dynamo'", "reproduce", "dynamo", "-o", tmp_path)
