"""Training and watching from the command line."""

from __future__ import annotations

import json

import pandas as pd
import pytest


@pytest.mark.slow
def test_a_run_is_trained_once_and_watched_once(run, refuse, tmp_path):
    short = ("--steps", 4, "--every", 2, "--warmup", 1, "--batch", 8)
    code, out, _ = run("train", "letter", "-o", tmp_path, *short, "--json")
    assert code == 0
    assert len(json.loads(out)["accuracy"]) == 4
    state = (tmp_path / "state.safetensors").read_bytes()
    code, out, _ = run("train", "letter", "-o", tmp_path, *short)
    assert code == 0
    assert "accuracy for 1, 2, 3, 4 hops" in out
    assert (tmp_path / "state.safetensors").read_bytes() == state
    refuse("holds a run with other settings", "train", "number", "-o", tmp_path, *short)
    code, out, _ = run("dynamics", tmp_path, "--prompts", 12, "--hop-positions")
    assert code == 0
    assert "letter: 3 checkpoints to step 4" in out
    assert pd.read_parquet(tmp_path / "dynamics" / "heads.parquet").shape[0] == 3 * 4 * 12
    code, out, _ = run("dynamics", tmp_path, "--prompts", 12, "--hop-positions", "--json")
    assert json.loads(out)["checkpoints"] == 3
    refuse("at most the 2400", "dynamics", tmp_path, "--prompts", 2401)


def test_what_cannot_be_trained_or_watched(refuse, tmp_path):
    refuse("no task 'chess': number, letter", "train", "chess", "-o", tmp_path)
    refuse("schedule is linear or cosine", "train", "number", "--schedule", "steep", "-o", tmp_path)
    refuse("must be positive", "train", "number", "--rate", 0, "-o", tmp_path)
    refuse("must be positive", "train", "number", "--rate", "nan", "-o", tmp_path)
    refuse("at most 702 symbols", "sweep", "index", "--symbols", 1000, "-o", tmp_path)
    refuse("tau must be positive", "dynamics", tmp_path, "--tau", 0)
    refuse("no paper 'poetry'", "reproduce", "poetry")
    refuse("nor a language model", "dynamics", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    refuse("damaged", "lengths", tmp_path)
