"""The real models, and what happens where they are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedModel

import wherewhat as ww

torch.set_num_threads(1)
settings.register_profile("wherewhat", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("wherewhat")

WEIGHTS = Path(os.environ.get("WHEREWHAT_WEIGHTS", Path(__file__).parents[2] / "shared" / "weights"))


def weights(name: str) -> Path:
    """The path of some real weights; the test is skipped without them, and fails without them under CI."""
    path = WEIGHTS / name
    if not path.exists():
        reason = f"no weights at {path}: set WHEREWHAT_WEIGHTS to the folder that holds {name}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def stories260k() -> PreTrainedModel:
    return ww.load(weights("stories260K"))


@pytest.fixture(scope="session")
def stories15m() -> PreTrainedModel:
    return ww.load(weights("stories15M"))


@pytest.fixture(scope="session")
def smollm2() -> PreTrainedModel:
    return ww.load(weights("SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf"))
