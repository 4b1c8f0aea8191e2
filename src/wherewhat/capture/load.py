"""From a hub id, a folder or a .gguf file to a model, with one clear sentence where that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..errors import BadInput


def load(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> PreTrainedModel:
    """Load a causal language model for measuring; nothing from the hub is executed unless asked for.

    >>> model = ww.load("HuggingFaceTB/SmolLM2-135M")        # doctest: +SKIP
    >>> model = ww.load("models/SmolLM2.Q4_1.gguf")          # doctest: +SKIP
    """
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise BadInput(f"{path}: no such file")
        source, options["gguf_file"] = str(path.parent), path.name
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"{path}: the folder holds no config.json")
        source = str(path)
    elif path.is_absolute() or str(name).count("/") != 1 or str(name).startswith("."):
        raise BadInput(f"{name}: neither a folder, a .gguf file nor a hub id of the form owner/name")
    else:
        source, options["revision"] = str(name), revision
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True, **options
        )
        model, report = loaded
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"{name}: cannot be loaded ({reason})") from error
    if missing := sorted(report["missing_keys"]):
        # transformers would draw them at random, and their heads would be scored as if they had learnt something.
        raise BadInput(f"{name}: {len(missing)} weights are missing, among them {missing[0]}")
    return model.eval()
