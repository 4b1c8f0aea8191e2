"""Spectra of whole models: heads with a known answer, families with biases, soft-capping and windows, bad input."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import tiny
import wherewhat as ww
from wherewhat.lab import Recipe, Shape, Transformer
from wherewhat.prompts import Prompt
from wherewhat.studies.multihop.train import train_task
from wherewhat.studies.spectrum.figures import spectrum_figure
from wherewhat.studies.spectrum.terminal import sentences


def random_prompts(count: int, tokens: int = 20) -> list[Prompt]:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(10, 40, (count, tokens), generator=draw).tolist()
    return [Prompt(tuple(ids), blocks=((1, 2), (2, 3)), text="") for ids in rows]


def test_a_head_whose_contents_are_all_equal_is_toeplitz():
    """All tokens have the same embedding, so every logit is a function of distance: position explains everything."""
    model = Transformer(Shape(vocabulary=50, layers=1, heads=2, width=32, hidden=8), seed=1).eval()
    with torch.no_grad():
        model.embedding.weight.copy_(torch.randn(32, generator=torch.Generator().manual_seed(0)))
    found = ww.spectrum(model, random_prompts(2)).heads
    assert found[["toeplitz", "distance", "position"]].to_numpy() == pytest.approx(1, abs=1e-6)
    assert (found["interaction"] < 1e-6).all()
    assert np.isinf(found["condition_unrotated"]).all()  # all logits are equal
    assert (found["effective_rank_unrotated"] < 1.001).all()
    assert (found["effective_rank"] > 2).all()


@pytest.mark.weights
def test_rows_are_those_of_the_whole_matrix(stories15m):
    prompt = Prompt(tuple(torch.randint(3, 3000, (60,), generator=torch.Generator().manual_seed(0)).tolist()), (), "")
    found = ww.spectrum(stories15m, [prompt], base=(500.0,))
    layer = ww.capture(stories15m, torch.tensor([prompt.ids]), queries=range(1, 60)).attention[3]
    logits = (layer.queries @ layer.keys[:, :, 1:].mT * layer.scaling)[0].double().numpy()
    values = np.linalg.svd(logits, compute_uv=False)[:, :48]
    mine = found.heads.query("layer == 3")
    assert mine["norm"].to_numpy() == pytest.approx(values[:, 0], rel=1e-4)
    assert mine["condition"].to_numpy() == pytest.approx(values[:, 0] / values[:, 47], rel=1e-2)
    shorter = found.spectra.query("layer == 3 and rotation == 'own' and tokens == 32")["norm"].to_numpy()
    assert shorter == pytest.approx(np.linalg.svd(logits[:, :32, :32], compute_uv=False)[:, 0], rel=1e-4)
    assert set(found.spectra["rotation"]) == {"unrotated", "own", "500"}
    assert found.spectra["tokens"].unique().tolist() == [8, 16, 32, 59]


def test_another_base_gives_the_values_of_a_model_with_that_base():
    """In the first layer contents do not depend on the rotation, so a model with the other base must agree."""
    models = {base: Transformer(Shape(50, layers=1, heads=2, width=32, hidden=8, base=base)) for base in (100.0, 1e4)}
    one, other = (ww.spectrum(model.eval(), random_prompts(2), base=(100.0,)).spectra for model in models.values())
    own = one.query("rotation == 'own'")[["norm", "condition"]].to_numpy()
    assert other.query("rotation == '100'")[["norm", "condition"]].to_numpy() == pytest.approx(own, rel=1e-3)
    assert abs(other.query("rotation == 'own'")[["norm"]].to_numpy() / own[:, :1] - 1).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bloom", "gpt2", "gemma2", "smollm3", "deepseek_v2", "gpt_oss"])
def test_every_kind_of_positional_encoding_is_measured(family):
    found = ww.spectrum(tiny.tiny_model(family, 0), random_prompts(1, 24), base=(100.0,))
    heads = found.heads
    assert heads["distance"].between(0, 1).all()
    assert heads["toeplitz"].between(0, 1).all()
    shares = heads[["content", "position", "interaction"]].sum(axis=1, skipna=False).to_numpy()
    if family == "gpt2":  # contents carry their positions: there is no table of contents at positions
        assert np.isnan(shares).all()
        assert set(found.spectra["rotation"]) == {"own"}
    else:
        assert shares == pytest.approx(1)
    if family == "bloom":
        assert heads["interaction"].max() < 1e-9
        assert sentences(found) == [
            "No rotation in layers 0-3: their values are those of queries and keys alone, before any bias."
        ]
    if family == "smollm3":
        without = heads[heads["kernel_norm"].isna()]
        assert len(without)
        assert (without["content"] > 1 - 1e-9).all()
    assert (heads["kernel_norm"].dropna() <= 1 + 1e-9).all()


@pytest.mark.slow
def test_existing_cells_are_reused_and_a_saved_result_is_read_back(tmp_path):
    model = ww.embedded("letter")
    prompts = ww.multihop("letter", 3)
    first = ww.spectrum(model, prompts[:2], folder=tmp_path, base=())
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    ww.spectrum(model, prompts, folder=tmp_path, base=())
    assert written.items() < {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}.items()
    pd.testing.assert_frame_equal(ww.spectrum(model, prompts[:2], folder=tmp_path, base=()).heads, first.heads)
    loaded = ww.Spectrum.load(tmp_path)
    assert loaded.about == first.about
    assert loaded.name == "letter"
    for table in ("heads", "spectra", "kernels"):
        pd.testing.assert_frame_equal(getattr(loaded, table), getattr(first, table))


def test_a_spectrum_without_kernels_is_read_back(tmp_path):
    found = ww.spectrum(tiny.tiny_model("bloom", 0), random_prompts(1, 24), folder=tmp_path, base=())
    assert found.kernels.empty
    pd.testing.assert_frame_equal(ww.Spectrum.load(tmp_path).kernels, found.kernels)


@pytest.mark.slow
def test_the_command(run, refuse, tmp_path):
    train_task("letter", tmp_path / "run", Recipe(steps=1, batch=8))
    code, out, _ = run("spectrum", tmp_path / "run", "-o", tmp_path / "made", "--samples", 2, "--base", 100)
    assert code == 0
    assert "12 heads on 2 prompts of 17 tokens" in out
    assert "The norm is smaller with rotation than without in" in out
    code, out, _ = run("spectrum", "number", "-o", tmp_path / "other", "--samples", 2, "--base", 100, "--json")
    rows = json.loads(out)["heads"]
    assert len(rows) == 12
    assert sum(rows[0][name] for name in ("content", "position", "interaction")) == pytest.approx(1)
    assert (tmp_path / "other" / "spectrum.pdf").read_bytes().startswith(b"%PDF")
    refuse("a base must be larger than 1", "spectrum", "number", "--base", 0.5, "-o", tmp_path / "no")
    refuse("task and pairs do not apply", "spectrum", "number", "--pairs", 4)
    refuse("samples must be at least 1", "spectrum", "number", "--samples", 0)
    refuse("no such file", "spectrum", tmp_path / "missing.gguf")
    refuse("no task 'poem'", "spectrum", "number/x", "--task", "poem")


@pytest.mark.slow
def test_the_figure_shows_the_tables():
    found = ww.spectrum(ww.embedded("number"), ww.multihop("number", 2), base=(100.0,))
    shares, conditions, lengths = spectrum_figure(found).axes
    assert (shares.collections[0].get_offsets() == found.heads[["distance", "interaction"]].to_numpy()).all()
    assert (conditions.collections[0].get_offsets()[:, 1] == found.heads["condition"].to_numpy()).all()
    drawn = {line.get_gid(): line.get_ydata() for line in lengths.lines}
    medians = found.spectra.groupby(["rotation", "tokens"])["condition"].median()
    assert drawn.keys() == {"unrotated", "own", "100"}
    for name, values in drawn.items():
        assert values.tolist() == medians[name].tolist()


@pytest.mark.slow
def test_kernels_reach_far_beyond_the_prompts():
    table = ww.spectrum(ww.embedded("number"), ww.multihop("number", 1), base=(100.0,)).kernels
    assert set(table["rotation"]) == {"own", "100"}
    assert max(table["tokens"]) == 65_536
    assert (table.query("tokens == 65536")["effective_rank"] > 50).any()  # out of at most 128 for 64 planes
    assert table["largest"].between(1 / 128, 1).all()
