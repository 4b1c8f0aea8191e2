"""Heads of real models in longer prompts: predicted exactly where the layers below do not change, else measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import wherewhat as ww
from conftest import weights
from wherewhat.cli import app
from wherewhat.errors import BadInput
from wherewhat.prompts.binding import binding
from wherewhat.prompts.prompt import Prompt
from wherewhat.studies.lengths.stretch import fillers_for, lengthen
from wherewhat.tracing.load import load_tokenizer

pytestmark = pytest.mark.weights


def alike(token: int, blocks: int = 6) -> Prompt:
    """Two first tokens, the same token repeated, and a query."""
    return Prompt((1, 7, *[token] * blocks, 40), tuple((2 + at, 3 + at) for at in range(blocks)))


def test_the_first_layer_is_predicted_exactly_if_inserted_tokens_equal_those_of_the_prompt(stories260k) -> None:
    """All statements are the same token: the mean over contents is that content, and layer 0 sees nothing else."""
    found = ww.stretch(stories260k, [alike(20), alike(33)], longest=80, measure=(20, 47, 80))
    first = found.curves.query("layer == 0")
    assert sorted(first["length"].unique()) == [9, 20, 47, 80]
    np.testing.assert_allclose(first["predicted"], first["measured"], atol=2e-6)
    deeper = found.curves.query("layer == 4 and length == 80")
    assert not np.allclose(deeper["predicted"], deeper["measured"], atol=1e-3)  # contents have changed by then
    assert set(found.agreement()) == {"rank correlation", "mean error", "lost", "close"}


def test_measured_attention_is_that_of_the_model(stories260k, tmp_path: Path) -> None:
    prompt = alike(20)
    found = ww.stretch(stories260k, [prompt], longest=40, folder=tmp_path, measure=(30,))
    longer = lengthen(prompt, 30, seed=0)
    assert longer == (1, 7, *[20] * 27, 40)
    before = stories260k.config._attn_implementation
    stories260k.set_attn_implementation("eager")
    with torch.no_grad():
        short, far = (
            torch.stack(stories260k(torch.tensor([ids]), output_attentions=True).attentions)[:, 0, :, -1]
            for ids in (prompt.ids, longer)
        )
    stories260k.set_attn_implementation(before)
    most = short[..., 2:8].argmax(-1) + 2
    expected = far.gather(2, most[..., None] + 21)[..., 0]
    seen = found.curves.query("length == 30").sort_values(["layer", "head"])["measured"]
    np.testing.assert_allclose(seen.to_numpy().reshape(expected.shape), expected, atol=1e-5)
    assert len(list((tmp_path / "cells").iterdir())) == 1
    again = ww.stretch(stories260k, [prompt], longest=40, folder=tmp_path, measure=(30,))
    assert again.heads.equals(found.heads)


@pytest.mark.parametrize("measure", [None, (30,)])
def test_what_is_saved_is_what_is_returned(stories260k, tmp_path: Path, measure) -> None:
    found = ww.stretch(stories260k, [alike(20)], longest=40, folder=tmp_path, measure=measure)
    loaded = ww.Stretch.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.heads, found.heads)
    pd.testing.assert_frame_equal(loaded.curves, found.curves)
    assert loaded.about == found.about


def test_inserted_statements_do_not_mention_the_name_asked_about() -> None:
    tokenizer = load_tokenizer(weights("stories260K"))
    prompts = binding(tokenizer, 6, samples=3)
    others = binding(tokenizer, 64, samples=2, seed=1)
    for prompt, pool in zip(prompts, fillers_for(prompts, others), strict=True):
        assert prompt.target is not None
        name = prompt.labels[prompt.target].split()[0]
        assert any(name in other.text for other in others) or len(pool) > 50
        width, start = prompt.blocks[0][1] - prompt.blocks[0][0], prompt.blocks[0][0]
        longer = lengthen(prompt, 200, 1, pool)
        extra = len(longer) - len(prompt.ids)
        assert 200 - width < len(longer) <= 200
        assert longer[:start] == prompt.ids[:start]
        assert longer[start + extra :] == prompt.ids[start:]
        inserted = tokenizer.decode(longer[start : start + extra])
        assert inserted.count("likes") == extra // width
        assert name not in inserted.split()
        own = lengthen(prompt, 200, 1)  # without fillers, its own statements
        assert tokenizer.decode(own).count(prompt.labels[prompt.target]) == 1


def test_without_measure_nothing_longer_is_run(stories260k) -> None:
    found = ww.stretch(stories260k, [alike(20)], longest=300)
    assert found.curves.empty
    assert found.agreement() == {}
    assert found.heads["measured"].isna().all()
    assert (found.heads["predicted"] > 9).all()


def test_impossible_lengths_are_refused(stories260k) -> None:
    with pytest.raises(BadInput, match="lengths range from 10"):
        ww.stretch(stories260k, [alike(20)], longest=9)
    with pytest.raises(BadInput, match="the longest length is 50, got 60"):
        ww.stretch(stories260k, [alike(20)], longest=50, measure=(60,))
    with pytest.raises(BadInput, match="equal lengths"):
        ww.stretch(stories260k, [alike(20), alike(20, 7)], longest=50)
    with pytest.raises(BadInput, match="at least 3"):
        ww.stretch("a model that is not loaded", pairs=2)
    with pytest.raises(BadInput, match="lengths predicts"):
        ww.stretch("number")
    result = CliRunner().invoke(app, ["stretch", str(weights("stories260K")), "--longest", "9999"])
    assert "context is" in str(result.exception)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    arguments = ["stretch", str(weights("stories260K")), "--pairs", "4", "--samples", "2", "--longest", "256"]
    result = CliRunner().invoke(app, [*arguments, "--measure", "200", "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    heads = ww.capture(ww.load(weights("stories260K")), torch.tensor([[1, 2, 3]]))
    assert len(summary["heads"]) == len(heads.layers) * 8
    assert all(row["predicted"] is None or row["predicted"] > 0 for row in summary["heads"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"cells", *ww.Stretch.files()}
    shown = CliRunner().invoke(app, [*arguments, "--measure", "200", "-o", str(tmp_path / "out")])
    assert "lost, measured" in shown.stdout
    assert not math.isnan(summary["agreement"]["mean error"])
