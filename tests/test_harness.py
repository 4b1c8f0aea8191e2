"""A task of lm-evaluation-harness with heads ablated, against the same log-likelihoods computed under `ww.gate`;
`make integrations` runs these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import wherewhat as ww
from conftest import needed, weights
from wherewhat import harness
from wherewhat.tracing.gate import mean_outputs

pytestmark = [pytest.mark.integrations, pytest.mark.weights]
ITEMS = [
    ("Once upon a time, there was a little", [" girl", " stone", " tax"], 0),
    ("The dog was very happy and wagged his", [" moon", " tail", " idea"], 1),
    ("She was sad because she lost her favourite", [" toy", " of", " zero"], 0),
]
TASK = """
task: little
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{right}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a task, which lm_eval reads with --include_path."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [json.dumps({"text": text, "choices": choices, "right": right}) for text, choices, right in ITEMS]
    (tmp_path / "little.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "little.yaml").write_text(TASK.format(data=tmp_path / "little.jsonl"))
    return tmp_path


def evaluate(folder: Path, model: str = "wherewhat", **arguments: Any) -> tuple[float, list[list[float]]]:
    """The accuracy, and the log-likelihood of every choice."""
    lm_eval, tasks = needed("lm_eval"), needed("lm_eval.tasks")
    harness.register()
    found = lm_eval.simple_evaluate(
        model=model, model_args={"pretrained": str(weights("stories15M"))} | arguments, tasks=["little"],
        task_manager=tasks.TaskManager(include_path=str(folder)), device="cpu", log_samples=True, bootstrap_iters=0,
    )  # fmt: skip
    samples = sorted(found["samples"]["little"], key=lambda one: one["doc_id"])
    shares = [[float(part[0]) for part in one["filtered_resps"]] for one in samples]
    return found["results"]["little"]["acc,none"], shares


def own(model: Any, tokenizer: Any) -> list[list[float]]:
    """The log-likelihood of every choice, one prompt at a time."""
    rows = []
    for text, choices, _ in ITEMS:
        start = tokenizer(text)["input_ids"]
        ends = [tokenizer(text + choice)["input_ids"] for choice in choices]
        row = []
        for ids in ends:
            with torch.no_grad():
                logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            row.append(sum(float(logs[at - 1, ids[at]]) for at in range(len(start), len(ids))))
        rows.append(row)
    return rows


def test_ablated_heads_change_a_task_as_the_gate_does(task: Path) -> None:
    path = weights("stories15M")
    model, tokenizer = ww.load(path), ww.load_tokenizer(path)
    _, intact = evaluate(task)
    _, theirs = evaluate(task, model="hf")
    assert torch.allclose(torch.tensor(intact), torch.tensor(theirs), atol=1e-5)
    assert torch.allclose(torch.tensor(intact), torch.tensor(own(model, tokenizer)), atol=1e-3)
    (task / "heads.txt").write_text("0.0\n0.1 # a comment\n2.3\n")
    _, gone = evaluate(task, heads=f"@{task / 'heads.txt'}", ablation="zero")
    with ww.gate(model, ablate=[(0, 0), (0, 1), (2, 3)]):
        assert torch.allclose(torch.tensor(gone), torch.tensor(own(model, tokenizer)), atol=1e-3)
    assert (torch.tensor(gone) - torch.tensor(intact)).abs().max() > 0.1
    _, mean = evaluate(task, heads="0.0; 0.1; 2.3")
    outputs = mean_outputs(model, harness._story(tokenizer))
    with ww.gate(model, ablate=[(0, 0), (0, 1), (2, 3)], mean_of=outputs):
        assert torch.allclose(torch.tensor(mean), torch.tensor(own(model, tokenizer)), atol=1e-3)
    _, streamed = evaluate(task, stream="*.*", sink=1, recent=2)
    with ww.gate(model, stream=[(None, None)], sink=1, recent=2):
        assert torch.allclose(torch.tensor(streamed), torch.tensor(own(model, tokenizer)), atol=1e-3)


def test_the_command_is_that_of_the_harness(task: Path) -> None:
    needed("lm_eval")
    command = [
        sys.executable, "-m", "wherewhat.harness", "--model", "wherewhat", "--include_path", str(task), "--model_args",
        f"pretrained={weights('stories15M')},drop=fastest quarter", "--tasks", "little", "--device", "cpu",
        "--output_path", str(task / "out"),
    ]  # fmt: skip
    done = subprocess.run(command, text=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    (written,) = (task / "out").rglob("results*.json")
    acc = json.loads(written.read_text())["results"]["little"]["acc,none"]
    assert acc == evaluate(task, drop="fastest quarter")[0]


def test_what_the_harness_cannot_ablate_is_refused(task: Path) -> None:
    with pytest.raises(ww.BadInput, match=r"reads 3.1 as a number: write a semicolon after it"):
        evaluate(task, heads=3.1)
    with pytest.raises(ww.BadInput, match="needs a profile"):
        evaluate(task, heads="3 most symbolic heads")
    with pytest.raises(ww.BadInput, match="layer 9"):
        evaluate(task, heads="9.0;")
