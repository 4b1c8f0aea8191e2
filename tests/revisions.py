"""A small model while it learns, saved as folders of revisions, and the same as a git repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = (0, 4, 8, 16, 128)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def learn(folder: Path, tokenizer_from: Path, steps: Sequence[int] = STEPS) -> Path:
    """Folders step0, step4, ...: a two-layer Llama that learns to say again what was said 6 tokens before."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(max(steps) + 1):
        if step in steps:
            model.save_pretrained(folder / f"step{step}")
            for name in TOKENIZER:
                shutil.copy(tokenizer_from / name, folder / f"step{step}")
        ids = torch.randint(10, 512, (8, 6)).repeat(1, 4)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return folder


def commit_all(revisions: Path, repository: Path, tags: Sequence[str] = ()) -> dict[str, str]:
    """A git repository with a commit for each folder, under a tag if it is among them, else a branch; their commits."""
    repository.mkdir(parents=True)
    git(repository, "init", "-q", "-b", "main")
    commits = {}
    for revision in sorted(path.name for path in revisions.iterdir()):
        for old in (path for path in repository.iterdir() if path.is_file()):
            old.unlink()
        shutil.copytree(revisions / revision, repository, copy_function=shutil.copy, dirs_exist_ok=True)
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "--allow-empty", "-m", revision)
        git(repository, *(("tag", "-a", "-m", "saved") if revision in tags else ("branch",)), revision)
        commits[revision] = git(repository, "rev-parse", "HEAD")
    return commits


def git(repository: Path, *words: str) -> str:
    whom = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", repository, *words], env=os.environ | whom, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
