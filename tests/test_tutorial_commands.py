"""Every command that a tutorial shows is run: the same words, on a small model, with options that make it short.

What cannot be reached from a test stands on loopback: a hub, an endpoint. A Ray cluster is one of this machine, and a
bucket is kept in memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import revisions
from conftest import ENVIRONMENT, weights
from loopback import Front
from stand_in_hub import StandInHub
from test_docs_content import NOTEBOOKS, shown_commands
from test_encoding_runs import TINY
from test_endpoint import by_rule
from test_ray import QUIET
from test_sweep import shorten
from wherewhat.cli import app
from wherewhat.explorer import reproduce

# Options that are added to a command that starts with these words, after the placeholders in it are replaced.
SHORTER = {
    "ablate": "--samples 2 --draws 2",
    "dynamics": "--prompts 2",
    "dynamics out": "--pairs 4",
    "dynamics owner/tiny": "--pairs 4",
    "lengths": "--prompts 2 --longest 24",
    "profile MODEL --kind": "--pairs 4 --samples 2",
    "profile MODEL --pairs": "--samples 2",
    "profile MODEL --task book.txt": "--samples 2",
    "profile MODEL -o": "--pairs 4 --samples 2",
    "reproduce decoupling": "--seeds 2",
    "reproduce encodings": "--seeds 1",
    "rotations": "--length 64 --samples 1 --keep 2",
    "spectrum": "--samples 2",
    "stretch": "--pairs 4 --samples 2",
    "sweep": "--steps 4 --seeds 1 --frequency 7",
    "train": "--steps 4 --every 2 --warmup 1 --batch 8",
}


def prepare(folder: Path, model: Path) -> None:
    """The files that tutorials take for granted: a list of models, prompts, a book, the checkpoints of a Trainer."""
    (folder / "models.toml").write_text(f'pairs = 4\nsamples = 2\n[[models]]\nmodel = "{model}"\n')
    (folder / "book.txt").write_text("Once upon a time there was a little girl called Lily. She had a red ball. " * 20)
    text = '{"text": "In the box. A red ball. A big book. A blue cup. Tom sees the red", "blocks": '
    (folder / "prompts.jsonl").write_text(text + '[[11, 23], [23, 35], [35, 47]], "answer": " ball"}\n')
    for path in revisions.learn(folder / "learnt", model, (0, 4)).iterdir():
        shutil.copytree(path, folder / "out" / path.name.replace("step", "checkpoint-"))


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_commands_of_a_tutorial_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shorten(monkeypatch)  # `reproduce decoupling`
    short = partial(reproduce.reproduce_encodings, sizes={"small": TINY})
    monkeypatch.setattr(reproduce, "reproduce_encodings", short)
    prepare(tmp_path, weights("stories260K"))
    branches = {folder.name: folder for folder in (tmp_path / "learnt").iterdir()}
    with StandInHub(branches) as hub, Front(by_rule) as endpoint:
        hub.replace_the_real_one(monkeypatch)
        placeholders = {"BASE": "MODEL", "TUNED": "MODEL", "EleutherAI/pythia-70m": "owner/tiny", "HOST:PORT": "local"}
        placeholders |= {"2048": "256"}  # as long as the context of the small model allows
        placeholders |= {"s3://BUCKET/atlas": "memory://bucket/atlas", "https://HOST/v1": endpoint.url}
        for words in shown_commands(path):
            words = [placeholders.get(word, word) for word in words]
            more = " ".join(SHORTER[start] for start in SHORTER if " ".join(words).startswith(start)).split()
            words = [str(weights("stories260K")) if word == "MODEL" else word for word in words + more]
            if "--ray" in words:  # a cluster in a process of its own
                command = [sys.executable, "-m", "wherewhat", *words]
                done = subprocess.run(command, env=ENVIRONMENT | QUIET, capture_output=True, text=True, timeout=300)
                assert done.returncode == 0, done.stderr
            else:
                shown = CliRunner().invoke(app, words)
                assert shown.exit_code == 0, (words, shown.output, shown.exception)
