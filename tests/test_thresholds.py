"""Every stated threshold is where it is stated to be: values just on either side of it get different names."""

from __future__ import annotations

from dataclasses import asdict, fields, make_dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch

from synthetic import random_ablation, random_atlas, random_lengths, random_profile, random_series
from wherewhat.cells.cells import cell_hash
from wherewhat.core.kinds import kind
from wherewhat.explorer.sentences import exclusion_sentence, length_sentences
from wherewhat.lab import Recipe
from wherewhat.studies.ablation.ablate import Control
from wherewhat.studies.ablation.terminal import show_ablation
from wherewhat.studies.atlas.sentences import atlas_sentences
from wherewhat.studies.dynamics.measure import purity_table
from wherewhat.studies.dynamics.result import Dynamics
from wherewhat.studies.encodings.tables import rows_of
from wherewhat.studies.multihop.comparison import in_words
from wherewhat.studies.profile.cell import PromptCell
from wherewhat.studies.stats import resamples


@pytest.mark.parametrize(
    ("positional", "symbolic", "expected"),
    [
        (0.8, 0.2, "where"), (0.799, 0.2, "mixed"), (0.8, 0.201, "mixed"),
        (0.2, 0.8, "what"), (0.2, 0.799, "mixed"), (0.201, 0.8, "mixed"),
        (0.8, 0.8, "unfocused"), (0.8, 0.799, "mixed"), (0.799, 0.8, "mixed"), (0.2, 0.2, "mixed"),
    ],
)  # fmt: skip
def test_a_head_is_pure_from_eight_tenths_and_up_to_two_tenths(positional, symbolic, expected):
    assert kind(positional, symbolic) == expected


@pytest.mark.parametrize(
    ("r", "words"),
    [(-0.5, " exclude"), (-0.499, "tend to exclude"), (-0.2, "tend to exclude"), (-0.199, "do not exclude")],
)
def test_the_scores_exclude_each_other_up_to_a_correlation_of_minus_one_half(r, words):
    profile = random_profile(2, 2, 2, blocks=4)
    correlation = {"r": r, "r_low": None, "r_high": None}
    (said,) = exclusion_sentence(replace(profile, about=profile.about | {"correlation": correlation}))
    assert said.startswith(f"The two scores {words.strip()} each other")


def test_the_models_of_an_atlas_are_counted_by_the_same_threshold():
    atlas = random_atlas(3, 2, 2)
    atlas = replace(atlas, models=atlas.models.assign(r=[-0.5, -0.499, -0.9]))
    assert any("exclude each other in 2 of 3 models" in said for said in atlas_sentences(atlas))


@pytest.mark.parametrize(("share", "reach"), [(0.9, "300 tokens"), (0.899, "100 tokens"), (0.85, "100 tokens")])
def test_a_model_holds_while_nine_tenths_of_its_answers_are_right(share, reach):
    found = random_lengths()
    shares = {17: 1.0, 20: 1.0, 50: 0.95, 100: 0.92, 300: share, 1000: 0.1}
    accuracy = found.accuracy.assign(accuracy=found.accuracy["length"].map(shares))
    said = length_sentences(replace(found, accuracy=accuracy))
    assert said[0] == f"At least 90 % of answers are right up to {reach}; at 1,000 tokens, 10 % are."


def test_hops_are_learnt_from_99_percent_on():
    series = random_series(steps=5, hops=2)
    steps = sorted(set(series.accuracy["step"]))
    curves = {1: [0.1, 0.6, 0.985, 0.99, 1.0], 2: [0.5, 0.9, 0.95, 0.98, 0.989]}
    accuracy = pd.DataFrame(
        {"step": step, "hops": hops, "accuracy": curves[hops][at]} for at, step in enumerate(steps) for hops in curves
    )
    said = in_words(Dynamics(series.heads, accuracy, purity_table(series.heads), {}))
    assert said["step at which 1, 2, 3, 4 hops first reach 99 %"] == f"{steps[3]} never"


def test_an_encoding_is_learnt_from_90_percent_on():
    accuracy = torch.tensor([0.5, 0.8, 0.895, 0.9, 1.0]).repeat_interleave(20)
    heads, signals = torch.ones(100, 1, 2), torch.ones(2, 1, 2)
    trained = {"accuracy": accuracy, "heads": heads, "norm": torch.linspace(1, 2, 100)}
    measured = {"whole": torch.tensor(1.0), "zero": torch.tensor([[0.5, 0.9]]), "mean": torch.tensor([[0.5, 0.9]])}
    names = ("condition", "rank", "pull", "agreement", "seed", "seed_agreement")
    run, *_ = rows_of(trained, measured, dict.fromkeys(names, signals))
    assert run["steps_to_90"].item() == 80


def test_only_effects_that_differ_from_random_have_a_star(console_text):
    found = random_ablation(random_profile(2, 2, 2, blocks=4))
    trials = found.effects[found.effects["draw"].isna()].drop_duplicates("measure").iloc[[0, 0]]
    rows = trials.assign(
        what=["layer 0", "layer 1"], how="ablate", counts=[True, False], against=[0.25, 0.125], against_low=[0.1, -0.1],
        against_high=[0.4, 0.3],
    )  # fmt: skip
    rows["counts"] = rows["counts"].astype(object)
    lines = console_text(lambda console: show_ablation(replace(found, effects=rows), console)).splitlines()
    (first,) = (line for line in lines if "+0.25 (" in line)
    (second,) = (line for line in lines if "+0.12 (" in line)
    assert first.rstrip().endswith("*")
    assert "*" not in second


@pytest.fixture
def console_text():
    import io

    from rich.console import Console

    def text(show):
        console = Console(file=io.StringIO(), width=200)
        show(console)
        return console.file.getvalue()

    return text


@pytest.mark.parametrize(("shift", "counts"), [(0.0, False), (5.0, True), (-5.0, True)])
def test_an_effect_counts_if_its_interval_excludes_zero(shift, counts):
    draw = torch.Generator().manual_seed(0)
    controls = torch.randn(10, 40, generator=draw, dtype=torch.float64)
    change = torch.randn(40, generator=draw, dtype=torch.float64)
    row = Control(controls, resamples(40, 0), 0).against(change - change.mean() + controls.mean() + shift)
    assert row["counts"] is counts
    assert row["against"] == pytest.approx(shift)
    assert (row["against_low"] > 0 or row["against_high"] < 0) is counts


def test_the_default_recipe_is_the_published_one():
    """GPT-J from scratch: AdamW 1e-4, betas (0.95, 0.999), weight decay 1e-4, 750 warm-up steps, then linear to 0."""
    assert asdict(Recipe()) == {
        "steps": 6750, "batch": 64, "rate": 1e-4, "betas": (0.95, 0.999), "decay": 1e-4, "warmup": 750,
        "schedule": "linear", "clip": 1.0, "dropout": 0.1, "embedding_dropout": None, "seed": 0, "data_seed": None,
        "half": False, "bfloat16": False,
    }  # fmt: skip


def test_the_order_of_fields_does_not_change_the_name_of_a_cell():
    fields_of = {"seed": int, "name": str}
    one, other = (make_dataclass("Cell", order) for order in (fields_of.items(), reversed(fields_of.items())))
    assert cell_hash(one(seed=1, name="a")) == cell_hash(other(seed=1, name="a"))


def test_every_field_of_a_cell_changes_its_name():
    cell = PromptCell("abc", "float32", (1, 2, 3), ((0, 1), (1, 2)), 2, 1, 1, 1e-4)
    others = {
        "weights": "abd", "dtype": "bfloat16", "ids": (1, 2, 4), "blocks": ((0, 1), (2, 3)), "answer": None,
        "target": 0, "answer_at": 2, "shown": True, "every_query": True, "tau": 1e-2,
        "table": True, "level": "prompt", "swaps": 7, "seed": 1, "version": cell.version + 1,
    }  # fmt: skip
    assert set(others) == {field.name for field in fields(cell)}
    names = [cell_hash(cell), *(cell_hash(replace(cell, **{name: value})) for name, value in others.items())]
    assert len(set(names)) == len(names)
    assert cell_hash(replace(cell)) == cell_hash(cell)
    assert np.char.str_len(names).tolist() == [20] * len(names)
