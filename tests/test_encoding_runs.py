"""Runs of encodings: interrupted and resumed, from cells to tables, claims and figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from wherewhat.display.style import save_drawn
from wherewhat.errors import BadInput
from wherewhat.lab.classifier import Classifier
from wherewhat.results import load_prefixed, save_prefixed
from wherewhat.studies.encodings import runs
from wherewhat.studies.encodings.claims import findings
from wherewhat.studies.encodings.cost import cost_sentence, processor_seconds
from wherewhat.studies.encodings.figures import FIGURES
from wherewhat.studies.encodings.runs import restore, run_settings, train_cell, training_cell
from wherewhat.studies.encodings.settings import (
    CLEAN,
    FEW_SEQUENCES,
    FLAWED,
    LARGE_MODEL,
    LONG_TASK,
    MAIN,
    SIZES,
    TASKS,
    EncodingSetting,
    plan,
)
from wherewhat.studies.encodings.tables import Encodings, gather, reproduce_encodings, rows_of
from wherewhat.studies.encodings.terminal import show_encodings
from wherewhat.studies.stats import mean_interval

TINY = replace(SIZES["small"], layers=2, heads=2, width=16, hidden=16, tested=64,
               recipe=replace(SIZES["small"].recipe, steps=20, batch=16, warmup=2))  # fmt: skip
RESULTS = Path(__file__).parent.parent / "results"
KILLABLE = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
torch.set_num_threads(1)
from wherewhat.studies.encodings import runs
from wherewhat.studies.encodings.settings import SIZES, EncodingSetting, plan
from wherewhat.studies.encodings.tables import Encodings, gather
from wherewhat.results import save_prefixed
runs.SAVE_SECONDS = 0
sizes = {
    name: replace(size, layers=2, heads=2, width=16, hidden=16, tested=64,
                  recipe=replace(size.recipe, steps=20, batch=16, warmup=2))
    for name, size in SIZES.items()
}
folder = Path(sys.argv[1])
medium = {one.size: one for one in plan("medium", [0], quick=True)}  # the last one of each size
wanted = [EncodingSetting("mla", "count"), *medium.values()]
save_prefixed(Encodings(*gather(folder / "cells", wanted, sizes=sizes), {}), folder / "encodings")
"""


@pytest.mark.slow
def test_small_and_medium_runs_killed_with_9_and_resumed_give_the_same_tables(tmp_path: Path) -> None:
    def start(folder: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", KILLABLE, str(tmp_path / folder)])

    assert start("whole").wait() == 0
    cells = tmp_path / "killed" / "cells"
    for finished in (3, 12):  # in the second run, small, and in the last one, of the published size
        process = start("killed")
        while process.poll() is None and not (
            len(list(cells.glob("*.safetensors"))) >= finished and list(cells.glob("unfinished/*.safetensors"))
        ):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert list(cells.glob("unfinished/*.safetensors"))
        assert not (tmp_path / "killed" / "encodings.parquet").exists()
    assert start("killed").wait() == 0
    assert not list(cells.glob("unfinished/*.safetensors"))
    for name in ("encodings", "encodings-heads", "encodings-training", "encodings-layers"):
        assert (tmp_path / "whole" / f"{name}.parquet").read_bytes() == (
            tmp_path / "killed" / f"{name}.parquet"
        ).read_bytes()
    made = load_prefixed(Encodings, tmp_path / "whole" / "encodings")
    assert (len(made.runs), len(made.heads), len(made.training), len(made.layers)) == (5, 5 * 4, 5, 5 * 2)
    assert list(dict.fromkeys(made.runs["size"])) == ["small", LONG_TASK, LARGE_MODEL, FEW_SEQUENCES]


@pytest.mark.parametrize("solved", [None, 0.0])
def test_a_run_interrupted_between_snapshots_ends_with_the_same_weights(solved, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(runs, "SAVE_SECONDS", -1)  # after every step
    monkeypatch.setattr(runs, "SOLVED_STEPS", 15)
    size = replace(TINY, solved=solved)
    setting = EncodingSetting("mla", "distance", 1, dropout=0.1)
    cell = training_cell(setting, {"small": size})

    class Stopped(Exception): ...

    def stop(step: int) -> None:
        if step == 13:  # the state of step 12 is the last one saved
            raise Stopped

    with pytest.raises(Stopped):
        train_cell(cell, stop, unfinished=tmp_path)
    steps: list[int] = []
    resumed = train_cell(cell, steps.append, unfinished=tmp_path)
    assert steps[0] == 13
    assert resumed["looks"].tolist() == ([0, 1, 4, 10, 20] if solved is None else [0, 1, 4, 10, 15])
    whole = train_cell(cell)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_paper_size_is_the_published_configuration() -> None:
    """Figures of the paper and its code, as given in its text; 70,000 sequences of distance in batches of 512."""
    settings = plan("paper")
    cells = {(one.encoding, one.task): training_cell(one) for one in settings if one.variant == CLEAN}
    for (_, task), cell in cells.items():
        design, recipe, labels = cell.design, cell.recipe, cell.labels
        assert (design.layers, design.heads, design.width, design.head_dim, design.hidden) == (6, 16, 256, 16, 512)
        assert (design.vocabulary, design.tokens, recipe.dropout) == (574, 120, 0.1)
        assert (recipe.rate, recipe.batch, recipe.betas, recipe.decay) == (1e-4, 512, (0.98, 0.9), 1e-5)
        assert recipe.schedule == "cosine"
        assert recipe.warmup / recipe.steps == 0.06
        assert abs(recipe.steps - 100 * 0.7 * 100_000 / 512) < 100
        assert labels.samples == (100_000 if task == "distance" else 50_000)
    drawn = cells["rope", "distance"].labels.sample(5000)
    assert set(drawn.answers.tolist()) == set(range(2, 72))
    assert set(cells["rope", "count"].labels.sample(5000).answers.tolist()) == set(range(101))
    latent = cells["mla", "distance"].design.encoding
    assert (latent.latent, latent.decoupled) == (128, 16)
    assert cells["rope, half the dimensions", "distance"].design.encoding.dims == 8
    stopped = cells["p-rope", "distance"].design.encoding.angles(16, 16)[0]
    assert (int((stopped > 0).sum()), int((stopped == 0).sum())) == (4, 4)
    assert "rope, 8 heads" in {name for name, _ in cells}


def test_medium_runs_differ_from_the_published_setting_in_few_things() -> None:
    wanted = plan("medium")
    assert {one.dropout for one in wanted} == {0.1}
    assert len(wanted) == len(set(wanted))
    sizes = list(dict.fromkeys(one.size for one in wanted))
    assert sizes == ["small", LONG_TASK, LARGE_MODEL, FEW_SEQUENCES]
    paper = {(one.encoding, one.variant): training_cell(one).design for one in plan("paper", [0])}
    for one in wanted:
        cell, published = training_cell(one), paper[one.encoding, one.variant]
        if one.size in (LARGE_MODEL, FEW_SEQUENCES):
            assert replace(cell.design, vocabulary=574, tokens=120, classes=published.classes) == published
        if one.size in (LONG_TASK, FEW_SEQUENCES):
            assert cell.labels == replace(TASKS[one.task](), samples=None)
        else:
            assert cell.labels == TASKS[one.task].small()
    with pytest.raises(BadInput, match="small, medium, paper"):
        plan("large")


@pytest.fixture(scope="module")
def made() -> Encodings:
    wanted = [EncodingSetting(name, task) for name in MAIN for task in TASKS]
    wanted += [
        EncodingSetting("rope", "distance", 1),
        EncodingSetting("alibi", "distance", 0, FLAWED),
        EncodingSetting("rope", "distance", 0, "last layer"),
        EncodingSetting("rope", "distance", 0, size=LARGE_MODEL, dropout=0.1),
    ]
    return Encodings(*gather(None, wanted, sizes={"small": TINY, LARGE_MODEL: TINY}), {})


@pytest.mark.slow
def test_the_tables_have_one_row_per_run_and_one_per_head(made: Encodings) -> None:
    keys = ["encoding", "task", "seed", "variant", "size", "dropout"]
    assert not made.runs.duplicated(keys).any()
    assert not made.heads.duplicated([*keys, "layer", "head"]).any()
    assert len(made.heads) == len(made.runs) * 4
    assert len(made.layers) == len(made.runs) * 2
    largest = made.heads.groupby(keys)["zero"].max().clip(lower=0)
    assert np.allclose(largest, made.runs.set_index(keys)["largest"].sort_index(), atol=1e-6)


@pytest.mark.slow
def test_findings_skip_what_was_not_run_and_figures_are_drawn(made: Encodings, tmp_path: Path) -> None:
    found = findings(made)
    assert found["claim"].str.contains("ALiBi fails").sum() == 2
    assert not found["claim"].str.contains("latent").any()
    for name, draw in FIGURES.items():
        save_drawn(tmp_path / f"{name}.png", lambda draw=draw: draw(made))
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_terminal_shows_every_run_beside_what_was_published(made: Encodings) -> None:
    console = Console(width=200, record=True, file=StringIO())
    show_encodings(made, console)
    text = console.export_text()
    rope = next(line for line in text.splitlines() if line.split()[:1] == ["rope"])
    assert "92.6 %" in rope
    assert "never" in rope  # twenty steps are not enough
    assert any(line.split()[:2] == ["alibi:", "all"] for line in text.splitlines())
    assert "distance, published model, small task, dropout 0.1: 1 seed" in text
    assert "Claims, small, dropout 0\n" in text


def test_a_claim_is_judged_by_its_seeds() -> None:
    accuracy = [0.9, 0.8, 0.95, 0.3, 0.2, 0.79]
    runs = pd.DataFrame({"encoding": ["rope"] * 3 + ["nope"] * 3, "accuracy": accuracy})
    runs = runs.assign(task="distance", variant="clean", seed=[0, 1, 2] * 2)
    columns = dict.fromkeys(
        ("steps_to_90", "largest", "share", "effective", "agreement", "condition", "seed_rank"), 0.5
    )
    runs = runs.assign(size="small", dropout=0.0)
    found = findings(Encodings(runs.assign(**columns), runs, runs, runs, {})).set_index("claim")["holds"]
    assert not found["Distance: RoPE is ahead of NoPE"]  # 0.80 against 0.79 in one seed
    runs.loc[5, "accuracy"] = 0.3
    found = findings(Encodings(runs.assign(**columns), runs, runs, runs, {})).set_index("claim")["holds"]
    assert found["Distance: RoPE is ahead of NoPE"]


def test_steps_to_90_and_shares_are_read_off_the_curve() -> None:
    steps = torch.arange(100)
    trained = {
        "accuracy": (steps >= 60).float(), "norm": torch.ones(100), "heads": torch.ones(100, 2, 2),
    }  # fmt: skip
    trained["heads"][:, 0, 0] = 5
    measured = {"whole": torch.tensor(1.0), "zero": torch.tensor([[0.4, 1.0], [1.0, 0.8]]), "mean": torch.ones(2, 2)}
    signals = {name: torch.ones(2, 2, 2) for name in ("condition", "rank", "pull", "agreement", "seed_agreement")}
    signals["seed"] = torch.tensor([[[1.0, 4], [3, 2]], [[6, 8], [1, 1]]])  # margins 3 and 1, then 2 and 0
    signals["position_share"] = torch.tensor([[0.5, 0.25], [0.1, 0.2]])
    run, heads, training, layers = rows_of(trained, measured, signals)
    row = run.to_dict("records")[0]
    assert row["steps_to_90"] == 80  # the end of the first twenty steps with 90 % accuracy
    assert row["early_share"] == pytest.approx(5 / 8)
    assert row["largest"] == pytest.approx(0.6)
    assert row["effective"] == pytest.approx(0.8**2 / (0.6**2 + 0.2**2))
    assert row["norm_variation"] == 0
    assert row["seed_rank"] == 1
    assert list(training["step"]) == [20, 40, 60, 80, 100]
    assert heads["early_share"].sum() == pytest.approx(1)
    assert (row["seed"], row["seed_growth"], row["margin_growth"], row["seed_head_rank"]) == (4, 2, 3, 4)
    assert (list(layers["margin"]), list(layers["margin_trained"])) == ([3, 1], [2, 0])
    assert list(layers["position_share_trained"]) == pytest.approx([0.1, 0.2])
    without = rows_of(trained, measured, signals | {"seed": torch.zeros(2, 2, 2)})[0]  # neither rotation nor bias
    assert without[["seed_growth", "margin_growth", "seed_head_rank"]].isna().all(axis=None)


def test_intervals_over_seeds_are_students() -> None:
    values = [0.7, 0.9, 0.95]
    reach = 4.302652729911275 * np.std(values, ddof=1) / np.sqrt(3)  # the 97.5 % quantile of Student's t for 2 degrees
    assert mean_interval(values)[1:] == pytest.approx((np.mean(values) - reach, np.mean(values) + reach))
    assert mean_interval([180.0, 180.0]) == (180, 180, 180)
    assert np.isnan(mean_interval([0.5])[1:]).all()
    assert np.isnan(mean_interval([0.5, np.nan])).all()


def test_settings_are_ordered_from_small_to_published() -> None:
    made = load_prefixed(Encodings, RESULTS / "encodings")
    turned = replace(made, runs=made.runs.iloc[::-1])
    order = list(turned.by_setting())
    assert order == list(made.by_setting())
    assert order[:2] == [("small", 0.0), ("small", 0.1)]
    assert sorted(order[2:], key=lambda one: list(SIZES).index(one[0])) == order[2:]


def test_published_tables_are_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    made = load_prefixed(Encodings, RESULTS / "encodings")
    save_prefixed(made, tmp_path / "encodings")
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in RESULTS.glob("encodings*.parquet")}
    assert {FLAWED, CLEAN} < set(made.runs["variant"])


@pytest.mark.slow
def test_a_saved_study_is_the_one_returned(tmp_path: Path) -> None:
    made = reproduce_encodings(tmp_path, quick=True, sizes={"small": TINY})
    loaded = Encodings.load(tmp_path)
    for name in ("runs", "heads", "training", "layers"):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(made, name))
    assert loaded.about == made.about


def test_a_run_is_restored_as_it_was_at_each_snapshot() -> None:
    setting = EncodingSetting("rope", "distance", 3)
    cell, trained, measured = next(run_settings([setting], None, sizes={"small": TINY}))
    first = Classifier(cell.design, 3).state_dict()
    assert all(torch.equal(value, first[name]) for name, value in restore(cell, trained, 0).state_dict().items())
    tokens = cell.labels.sample(64, seed=2**40)
    with torch.no_grad():
        right = restore(cell, trained)(tokens.tokens).argmax(-1) == tokens.answers
    assert float(measured["whole"]) == pytest.approx(float(right.float().mean()))


# Signals.


def test_runs_of_another_size_are_added_and_the_same_ones_replaced() -> None:
    def study(*rows: tuple[str, float, float]) -> Encodings:
        runs = pd.DataFrame(rows, columns=["size", "dropout", "accuracy"])
        runs = runs.assign(encoding="rope", task="count", variant="clean", seed=0)
        return Encodings(runs, runs.assign(head=0), runs, runs, {})

    both = study(("small", 0.0, 0.9), ("small", 0.1, 0.8)).with_runs_of(study(("small", 0.1, 0.7), ("paper", 0.1, 0.6)))
    for table in both.tables():
        assert list(table["accuracy"]) == [0.9, 0.7, 0.6]
    assert list(both.heads["head"]) == [0, 0, 0]


def test_the_cost_counts_missing_runs_only(tmp_path: Path) -> None:
    wanted = [EncodingSetting("rope", "distance", seed) for seed in range(2)]
    sizes = {"small": TINY}
    assert cost_sentence(wanted, tmp_path, sizes).startswith("2 of 2 runs to train, at most 0.0 hours")
    assert processor_seconds(training_cell(wanted[0], sizes), 64) > 0
    list(run_settings(wanted[:1], tmp_path, sizes=sizes))
    assert cost_sentence(wanted, tmp_path, sizes).startswith("1 of 2 runs to train")
    assert "1 run of small, distance" in cost_sentence(wanted, tmp_path, sizes)
    list(run_settings(wanted, tmp_path, sizes=sizes))
    assert cost_sentence(wanted, tmp_path, sizes) == "0 of 2 runs to train"


def test_the_command_line_refuses_what_does_not_apply(refuse) -> None:
    refuse("applies to encodings, not to dynamics", "reproduce", "dynamics", "--quick")
    refuse("no size 'big': small, medium, paper", "reproduce", "encodings", "--size", "big")
    refuse("device nowhere cannot be used", "reproduce", "encodings", "--device", "nowhere")
    refuse("dynamics, decoupling, encodings", "reproduce", "poetry")
    refuse("nowhere", "deposit", "nowhere/model")


def test_a_run_with_a_row_in_the_table_is_not_trained_again() -> None:
    known = load_prefixed(Encodings, RESULTS / "encodings")
    wanted = [EncodingSetting("rope", "distance", 0), EncodingSetting("rope", "distance", 0, dropout=0.125)]
    assert known.missing(wanted) == wanted[1:]
