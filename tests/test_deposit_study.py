"""Deposits: what every head costs, and the saved result."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from rich.console import Console

import wherewhat as ww
from wherewhat.studies.ablation.deposit import run_deposit
from wherewhat.studies.ablation.measures import Behaviour, losses
from wherewhat.studies.ablation.terminal import show_deposit


@pytest.mark.weights
@pytest.mark.slow
def test_deposit_of_a_language_model(stories260k) -> None:
    """Every head's cost against a run in which its columns of the output matrix are zero."""
    ids = torch.randint(3, 200, (3, 12), generator=torch.Generator().manual_seed(0))
    behaviour = Behaviour("text", lambda model: {"text_loss": losses(model, ids).mean(1)}, ids)
    found = run_deposit(stories260k, behaviour)
    before = float(losses(stories260k, ids).mean())
    weight = stories260k.model.layers[2].self_attn.o_proj.weight.data
    kept, width = weight.clone(), stories260k.config.head_dim
    weight[:, 3 * width : 4 * width] = 0
    after = float(losses(stories260k, ids).mean())
    weight.copy_(kept)
    costs = found.heads.set_index(["layer", "head"])["cost"]
    assert costs[2, 3] == pytest.approx(after - before, abs=1e-4)
    row = found.measures.to_dict("records")[0]
    assert row["largest"] == pytest.approx(costs.max())
    assert costs[row["layer"], row["head"]] == costs.max()
    assert float(losses(stories260k, ids).mean()) == pytest.approx(before, abs=1e-6)


@pytest.mark.slow
def test_a_saved_deposit_is_read_back(tmp_path) -> None:
    found = ww.deposit("number", folder=tmp_path, samples=20)
    loaded = ww.Deposit.load(tmp_path)
    for table in ("measures", "heads"):
        pd.testing.assert_frame_equal(getattr(loaded, table), getattr(found, table))
    assert loaded.about == found.about
    assert (found.about["ablation"], found.about["settings"]) == ("zero", {"samples": 20})
    assert len(found.heads) == 2 * 12  # measures and heads
    console = Console(record=True, width=80)
    show_deposit(loaded, console)
    row = next(line.split() for line in console.export_text().splitlines() if line.split()[:1] == ["accuracy"])
    worst = found.heads.query("measure == 'accuracy'").nlargest(1, "cost").iloc[0]
    assert row[2:4] == [f"{worst['layer']}.{worst['head']}", f"{worst['cost']:.3f}"]
