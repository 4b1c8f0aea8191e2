"""Heads of real models followed to longer prompts: exact where nothing below changes, and really run elsewhere."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import wherewhat as ww
from conftest import weights
from wherewhat.capture.load import load_tokenizer
from wherewhat.cli import app
from wherewhat.errors import BadInput
from wherewhat.prompts.binding import binding
from wherewhat.prompts.prompt import Prompt
from wherewhat.studies.holding import fillers_for, holding, lengthen


def alike(token: int, blocks: int = 6) -> Prompt:
    """A beginning of two tokens, the same token again and again, and a query."""
    return Prompt((1, 7, *[token] * blocks, 40), tuple((2 + at, 3 + at) for at in range(blocks)))


def test_the_first_layer_is_predicted_exactly_where_what_is_inserted_is_like_what_is_there(stories260k) -> None:
    """Statements of one token, all the same: the mean over contents is that content, and layer 0 sees nothing else."""
    found = holding(stories260k, [alike(20), alike(33)], longest=80, measure=(20, 47, 80))
    first = found.curves.query("layer == 0")
    assert sorted(first["length"].unique()) == [9, 20, 47, 80]
    np.testing.assert_allclose(first["predicted"], first["measured"], atol=2e-6)
    deeper = found.curves.query("layer == 4 and length == 80")
    assert not np.allclose(deeper["predicted"], deeper["measured"], atol=1e-3)  # contents have changed by then
    assert set(found.agreement()) == {"rank correlation", "mean error", "lost", "close"}


def test_what_is_measured_is_the_attention_of_the_model_itself(stories260k, tmp_path: Path) -> None:
    prompt = alike(20)
    found = holding(stories260k, [prompt], longest=40, folder=tmp_path, measure=(30,))
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
    assert len(list(tmp_path.iterdir())) == 1
    again = holding(stories260k, [prompt], longest=40, folder=tmp_path, measure=(30,))
    assert again.heads.equals(found.heads)


def test_longer_prompts_say_nothing_more_of_what_is_asked() -> None:
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


def test_prediction_alone_runs_nothing_longer(stories260k) -> None:
    found = holding(stories260k, [alike(20)], longest=300)
    assert found.curves.empty
    assert found.agreement() == {}
    assert found.heads["measured"].isna().all()
    assert (found.heads["predicted"] > 9).all()


def test_what_cannot_be_followed_is_refused(stories260k) -> None:
    with pytest.raises(BadInput, match="lengths go from 10"):
        holding(stories260k, [alike(20)], longest=9)
    with pytest.raises(BadInput, match="to 50"):
        holding(stories260k, [alike(20)], longest=50, measure=(60,))
    with pytest.raises(BadInput, match="equal lengths"):
        holding(stories260k, [alike(20), alike(20, 7)], longest=50)
    bloom = weights("stories260K")
    result = CliRunner().invoke(app, ["stretch", str(bloom), "--longest", "9999"])
    assert isinstance(result.exception, BadInput)


def test_the_command(tmp_path: Path) -> None:
    arguments = ["stretch", str(weights("stories260K")), "--pairs", "4", "--samples", "2", "--longest", "256"]
    result = CliRunner().invoke(app, [*arguments, "--measure", "200", "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    heads = ww.capture(ww.load(weights("stories260K")), torch.tensor([[1, 2, 3]]))
    assert len(said["heads"]) == len(heads.layers) * 8
    assert all(row["predicted"] is None or row["predicted"] > 0 for row in said["heads"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"cells", "curves.parquet", "heads.parquet"}
    shown = CliRunner().invoke(app, [*arguments, "--measure", "200", "-o", str(tmp_path / "out")])
    assert "lost, measured" in shown.stdout
    assert not math.isnan(said["agreement"]["mean error"])
