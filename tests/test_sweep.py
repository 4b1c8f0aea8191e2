"""Sweeps, the claims about them, their figures, and real heads on a plane."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import wherewhat as ww
from conftest import weights
from wherewhat.display.style import save_drawn
from wherewhat.errors import BadInput
from wherewhat.explorer import reproduce
from wherewhat.explorer.reproduce import OF_REAL_MODELS
from wherewhat.lab.ensemble import RECIPE, Ensemble, train_ensemble
from wherewhat.prompts.request import OPTIONS
from wherewhat.results import load_prefixed, save_prefixed
from wherewhat.studies.profile.figures_of_heads import plane_projection
from wherewhat.studies.profile.projection import project
from wherewhat.studies.profile.result import Profile
from wherewhat.studies.sweep import paper as decoupling
from wherewhat.studies.sweep.figures import FIGURES
from wherewhat.studies.sweep.paper import Decoupling
from wherewhat.studies.sweep.sweep import Sweep, angle_of
from wherewhat.tasks import Index

SHORT = replace(RECIPE, steps=60)
IDS, SEEDS = (1, 7, 13, 17), (0, 1)
TABLES = ("members", "training", "positions", "trajectories")
RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoupling")


@pytest.fixture(scope="module")
def made(folder: Path) -> Decoupling:
    return decoupling.reproduce_decoupling(folder, SEEDS, frequencies=IDS, recipe=SHORT)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole reproduction, with few frequencies and steps."""
    for name in ("reproduce_decoupling", "train_transformers"):
        monkeypatch.setattr(reproduce, name, partial(getattr(decoupling, name), frequencies=IDS, recipe=SHORT))


@pytest.mark.slow
def test_a_row_is_that_of_a_head_trained_alone(made: Decoupling) -> None:
    task, angle = Index(), torch.tensor([[angle_of(7)]])
    assert float(angle) == pytest.approx(10_000 ** (-6 / 32))
    alone = train_ensemble(Ensemble(task, angle, [1]), SHORT)
    row = made.members.query("setting == 'index' and frequency == 7 and seed == 1").to_dict("records")[0]
    test = task.sample(8192, seed=2**40)
    assert row["accuracy"] == pytest.approx(float(alone.accuracy(test)), abs=2e-3)  # float32, another order of sums
    scores = ww.score(alone.trace(test.tokens[:64]))
    assert row["positional"] == pytest.approx(float(scores.positional.mean()), abs=2e-3)
    assert row["symbolic"] == pytest.approx(float(scores.symbolic.mean()), abs=2e-3)
    places = made.positions.query("setting == 'index' and frequency == 7 and seed == 1")
    right = alone.right(test)[0, :, 0]
    for place in (1, 9, 16):
        share = places.query("place == @place")["accuracy"].item()
        assert share == pytest.approx(float(right[test.places == place - 1].mean()), abs=8e-3)
    moving = made.trajectories.query("setting == 'index' and frequency == 7 and what == 'queries' and word == '5'")
    assert moving["step"].tolist() == list(range(0, 61, 2))
    start = Ensemble(task, angle, [0]).queries[0, 4, :, 0].tolist()
    assert moving[["x", "y"]].iloc[0].tolist() == pytest.approx(start)


@pytest.mark.slow
def test_every_head_has_a_row_and_nothing_is_trained_twice(made: Decoupling, folder: Path) -> None:
    members = made.members
    assert len(members) == len(decoupling.SETTINGS) * len(IDS) * len(SEEDS)
    assert not members.isna().any(axis=None)
    assert members["setting"].nunique() == 5
    files = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    assert len(files) == 5
    again = decoupling.reproduce_decoupling(folder, SEEDS, frequencies=IDS, recipe=SHORT)
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == files
    save_prefixed(again, folder / "again")
    for loaded in (Decoupling.load(folder), load_prefixed(Decoupling, folder / "again")):
        for name in (*TABLES, "findings", "curvature"):
            pd.testing.assert_frame_equal(getattr(loaded, name), getattr(made, name))
    assert Decoupling.load(folder).about == made.about
    with pytest.raises(BadInput, match=r"no sweep here \(nothing.parquet is missing\)"):
        load_prefixed(Sweep, folder / "nothing")


def test_published_tables_are_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    for name in ("decoupling", "decoupling-transformer"):
        save_prefixed(load_prefixed(Sweep, RESULTS / name), tmp_path / name)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in RESULTS.glob("decoupling*.parquet")}


def test_a_saved_sweep_is_the_one_returned(tmp_path: Path) -> None:
    sentences: list[str] = []
    options = {"frequency": [7, 13], "seeds": 2, "steps": 20, "second_plane": True, "folder": tmp_path}
    found = ww.sweep("induction", **options, say=sentences.append)
    loaded = ww.Sweep.load(tmp_path)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(found, name))
    assert loaded.about == found.about
    assert sentences == []
    again = ww.sweep("induction", **options, say=sentences.append)
    pd.testing.assert_frame_equal(again.members, found.members)
    assert sentences == ["1 of 1 sweeps were trained before and are reused"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"symbols": 1}, "symbols must be at least 2"),
        ({"frequency": []}, "frequency IDs are 1 to 32"),
        ({"steps": 0}, "must be positive"),
        ({"rate": 0.0}, "must be positive"),
        ({"init_std": 0.0}, "init_std must be positive"),
    ],
)
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ww.sweep("index", **options)


def test_curvature_is_that_of_a_parabola_with_a_t_test_over_seeds() -> None:
    draws = np.random.default_rng(0)
    x, bends = np.linspace(-1, 1, 16), np.array([0.3, 0.25, 0.4, 0.1, 0.2])
    rows = [
        {"setting": "index", "frequency": 3, "seed": seed, "place": place + 1, "accuracy": bend * x[place] ** 2 + slope}
        for seed, (bend, slope) in enumerate(zip(bends, draws.normal(size=5), strict=True))
        for place in range(16)
    ]
    constant = [row | {"frequency": 4, "accuracy": 1.0} for row in rows]
    row, flat = decoupling.curvature(pd.DataFrame(rows + constant)).to_dict("records")
    assert flat["bend"] == 0
    assert np.isnan(flat["p"])  # no variance, no test
    assert row["bend"] == pytest.approx(bends.mean())
    assert row["p"] == pytest.approx(stats.ttest_1samp(bends, 0).pvalue)


def test_claims_hold_and_fail_as_they_should() -> None:
    """Made-up numbers that satisfy every claim; then each claim is violated in turn."""
    learnt = {"index": (0.17, 9.0, 0.2), "retrieval": (0.0, 0.03, 0.25)}
    rows, places = [], []
    for setting in decoupling.SETTINGS:
        for number in range(1, 33):
            low, high, otherwise = learnt.get(
                setting.name, (0.017, 0.06, 0.5) if setting.second_plane else (2.0, 3.0, 0.9)
            )
            accuracy = 1.0 if low <= angle_of(number) <= high else otherwise
            half = number in (11, 12) and setting.name in learnt
            for seed in range(5):
                rows.append({"setting": setting.name, "frequency": number, "angle": angle_of(number), "seed": seed})
                rows[-1]["accuracy"] = 0.6 if half else accuracy
                bend = (1 if setting.name == "index" else -1) * (0.2 + 0.01 * seed)
                places += [
                    {**rows[-1], "place": place, "accuracy": 0.6 + bend * (place - 8.5) ** 2 / 64}
                    for place in range(1, 17)
                ]
    members, positions = pd.DataFrame(rows), pd.DataFrame(places)
    found = decoupling.findings(members, decoupling.curvature(positions))
    assert found["holds"].all()
    assert found["found"].iloc[-1].endswith("; the same at 2 of 2 IDs with 30 to 95 % accuracy")

    for setting, number, accuracy, broken in (
        ("index", 5, 0.98, 0),
        ("index", 20, 0.41, 1),
        ("retrieval", 20, 0.98, 2),
        ("retrieval", 2, 0.41, 3),
        ("induction", 15, 0.96, 4),
        ("induction, angles (0, theta)", 11, 0.9, 5),
        ("induction, 8 symbols", 15, 0.96, 6),
    ):
        those = (members["setting"] == setting) & (members["frequency"] == number)
        table = decoupling.findings(
            members.assign(accuracy=members["accuracy"].where(~those, accuracy)), decoupling.curvature(positions)
        )
        assert np.flatnonzero(~table["holds"]).tolist()[:1] == [broken]
    upside_down = decoupling.curvature(positions.assign(accuracy=-positions["accuracy"]))
    assert np.flatnonzero(~decoupling.findings(members, upside_down)["holds"]).tolist() == [7, 8]


@pytest.mark.slow
def test_figures_show_means_over_seeds_and_are_the_same_twice(made: Decoupling, tmp_path: Path) -> None:
    for copy in ("one", "two"):
        save_drawn(tmp_path / f"{copy}.png", lambda: FIGURES["behaviour"](made))
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    axes = FIGURES["accuracy"](made).axes[2]
    line = axes.containers[1].lines[0]  # Retrieval
    members = made.members.query("setting == 'retrieval'")
    for angle, accuracy in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert accuracy == pytest.approx(np.mean(members.loc[np.isclose(members["angle"], angle), "accuracy"]))


@pytest.mark.weights
def test_planes_add_up_to_the_attention_of_the_model_itself(stories260k) -> None:
    """Inner products of query and keys on all planes, summed and scaled, are the logits of a head with grouped keys."""
    ids = torch.randint(5, 500, (1, 23), generator=torch.Generator().manual_seed(0))
    trace = ww.capture(stories260k, ids)
    layer, head = 2, 5
    planes = [project(trace, layer, head, number) for number in range(1, trace.planes + 1)]
    logits = sum(plane.keys @ plane.query for plane in planes) * trace.attention[layer].scaling
    before = stories260k.config._attn_implementation
    stories260k.set_attn_implementation("eager")
    with torch.no_grad():
        rows = stories260k(ids, output_attentions=True).attentions[layer][0, head, -1]
    stories260k.set_attn_implementation(before)
    np.testing.assert_allclose(torch.tensor(logits).softmax(-1), rows, atol=1e-5)
    one = planes[0]
    for place in (0, 7, 22):  # contents are rotated to their positions
        turn = np.exp(1j * one.angle * place)
        assert complex(*one.contents[place]) * turn == pytest.approx(complex(*one.keys[place]), abs=1e-4)
    assert complex(*one.query_content) * np.exp(22j * one.angle) == pytest.approx(complex(*one.query), abs=1e-4)
    dots = next(part for part in plane_projection(one).axes[1].collections if part.get_gid() == "keys")
    np.testing.assert_array_equal(dots.get_offsets(), one.keys)
    for wrong, reason in (((9, 0, 1), "layers are 0 to 4"), ((0, 8, 1), "has 8 heads"), ((0, 0, 5), "IDs 1 to 4")):
        with pytest.raises(BadInput, match=reason):
            project(trace, *wrong)


@pytest.mark.slow
def test_the_command_line(run, refuse, made, folder, tmp_path, monkeypatch) -> None:
    few = ("--frequency", 1, "--frequency", 17, "--seeds", 2, "--steps", 20)
    code, out, _ = run("sweep", "index", "-o", tmp_path, *few, "--json")
    assert code == 0
    rows = json.loads(out)
    assert [(row["seed"], row["frequency"]) for row in rows] == [(0, 1), (0, 17), (1, 1), (1, 17)]
    again = ww.sweep("index", frequency=[1, 17], seeds=2, steps=20)
    assert rows == again.members.to_dict("records")
    assert ww.Sweep.load(tmp_path).members.equals(again.members)
    code, out, _ = run("sweep", "induction", "-o", tmp_path, *few, "--second-plane", "--symbols", 4)
    assert code == 0
    assert "induction, 4 symbols, angles (0, theta): 2 seeds" in out
    refuse("no task 'chess': index, retrieval, induction", "sweep", "chess", "-o", tmp_path)
    refuse("seeds must be at least 1", "sweep", "index", "--seeds", 0, "-o", tmp_path)
    refuse("frequency IDs are 1 to 32", "sweep", "index", "--frequency", 33, "-o", tmp_path)
    refuse("retrieval needs at least 16 symbols, got 8", "sweep", "retrieval", "--symbols", 8, "-o", tmp_path)
    refuse("no paper 'poetry': dynamics, decoupling", "reproduce", "poetry")
    shorten(monkeypatch)
    code, out, _ = run("reproduce", "decoupling", "-o", folder, "--seeds", 2, "--json")
    printed = json.loads(out, parse_constant=pytest.fail)  # NaN is not valid JSON
    assert code == 0
    assert len(printed["findings"]) == len(pd.read_parquet(folder / "results" / "decoupling-findings.parquet"))
    code, out, _ = run("reproduce", "decoupling", "-o", folder, "--seeds", 2)
    assert code == 0
    assert "Index: at least 99 % from angle" in out
    written = sorted(path.name for path in (folder / "results").iterdir())
    assert len([name for name in written if name.endswith(".png")]) == 2 * len(FIGURES)
    assert {"decoupling.parquet", "decoupling-transformer.parquet"} <= set(written)


@pytest.mark.slow
@pytest.mark.weights
def test_the_figures_of_a_real_model(run, refuse, made, folder, monkeypatch) -> None:
    """Drawn from its profile if there is one; otherwise the model is profiled first."""
    monkeypatch.setitem(OPTIONS["binding"], "samples", 2)
    monkeypatch.setattr("wherewhat.prompts.request.DEFAULT_PAIRS", 8)
    shorten(monkeypatch)
    ww.reproduce("decoupling", folder=folder, seeds=2, model=str(weights("stories260K")))
    profile = Profile.load(folder / "profiles" / "stories260K")
    drawn = {path.name: path.read_bytes() for path in (folder / "results").glob("decoupling-model-*.pdf")}
    assert sorted(drawn) == sorted(f"decoupling-model-{name}.pdf" for name in OF_REAL_MODELS)
    for path in (folder / "results").glob("decoupling-model-*.pdf"):
        path.unlink()
    there = folder / "profiles" / "stories260K"
    code, out, _ = run("reproduce", "decoupling", "-o", folder, "--seeds", 2, "--model", there, "--json")
    assert code == 0
    assert json.loads(out)["model"]["correlation"] == profile.about["correlation"]
    assert drawn == {path.name: path.read_bytes() for path in (folder / "results").glob("decoupling-model-*.pdf")}
    refuse("model applies to decoupling, not to dynamics", "reproduce", "dynamics", "--model", "x")


@pytest.mark.weights
def test_the_plane_of_a_profiled_head(run, refuse, stories260k, tmp_path) -> None:
    prompt = ww.Prompt(tuple(range(5, 30)), tuple((at, at + 4) for at in range(1, 21, 4)))
    ww.profile(stories260k, [prompt], folder=tmp_path / "profile")
    chosen = ("--figure", "plane-projection", "--layer", 1, "--head", 2, "--frequency", 3)
    code, _, err = run("plot", tmp_path / "profile", *chosen, "-o", tmp_path / "plane.png")
    assert (code, err) == (0, f"Saved {tmp_path / 'plane.png'}\n")
    assert (tmp_path / "plane.png").read_bytes().startswith(b"\x89PNG")
    refuse("shows one result, got 2", "plot", tmp_path / "profile", tmp_path / "profile", *chosen)
    refuse("layers are 0 to 4", "plot", tmp_path / "profile", "--figure", "plane-projection", "--layer", 7)
