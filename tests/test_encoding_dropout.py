"""The tool that tests models with dropout at some places: the places are right, and torch's encoder is ours."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from wherewhat.lab.classifier import Classifier
from wherewhat.studies.encodings.runs import training_cell
from wherewhat.studies.encodings.settings import EncodingSetting

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import encoding_dropout

    yield encoding_dropout
    sys.modules.pop("encoding_dropout", None)


@pytest.fixture
def model() -> Classifier:
    return Classifier(replace(training_cell(EncodingSetting("nope", "count")).design, layers=2), seed=3)


def test_dropout_is_where_it_is_said_to_be(tool, model) -> None:
    tokens, seen = torch.randint(2, 60, (3, 30), generator=torch.Generator().manual_seed(0)), {}
    for place in ("embeddings", *tool.LAYER):
        drop, calls = tool.DropoutAt((place,)), []

        def watched(values, drop=drop, calls=calls):
            dropped = drop(values)
            if dropped is not values:
                calls.append(tuple(values.shape))
            return dropped

        model(tokens, drop=watched)
        seen[place] = calls
    width, hidden, heads = model.design.width, model.design.hidden, model.design.heads
    assert seen == {
        "embeddings": [(3, 30, width)],
        "attention weights": [(3, heads, 30, 30)] * 2,
        "attention output": [(3, 30, width)] * 2,
        "hidden units": [(3, 30, hidden)] * 2,
        "MLP output": [(3, 30, width)] * 2,
    }
    everywhere, nowhere = (
        model(tokens, drop=tool.DropoutAt(tool.CONDITIONS[name])) for name in ("everywhere", "nowhere")
    )
    assert torch.equal(nowhere, model(tokens))
    assert not torch.allclose(everywhere, nowhere)


def test_torchs_encoder_is_the_classifier(tool, model) -> None:
    tokens = torch.randint(2, 60, (3, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = tool.TorchEncoder(model, 0.1).eval()(tokens)
        assert torch.allclose(theirs, model(tokens), atol=1e-5)


def test_shares_of_answers(tool) -> None:
    logits = torch.eye(5)[[1, 2, 4, 0]]
    assert tool.shares(logits, torch.tensor([1, 1, 1, 1])) == {
        "accuracy": 0.25, "one_above": 0.25, "above": 0.5, "one_below": 0.25, "below": 0.25
    }  # fmt: skip


def test_a_folder_without_trained_models_is_refused(tool, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        sys, "argv", ["encoding_dropout.py", "--folder", str(tmp_path), "--results", str(tmp_path / "t")]
    )
    with pytest.raises(SystemExit):
        tool.main()
    assert "no new trained model" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
