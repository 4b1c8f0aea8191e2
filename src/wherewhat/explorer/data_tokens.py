"""Attention on the tokens of the first prompts, as the page holds it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..prompts import Prompt
from ..studies.profile.attention import SCALE
from ..studies.profile.result import Profile

MOST_BYTES = 4 * 2**20  # of either array before it is compressed; prompts and queries beyond that are omitted


def token_data(profile: Profile, there: np.ndarray) -> tuple[dict[str, Any] | None, dict[str, np.ndarray]]:
    """The first prompts, and the attention of every head on their tokens in units of 1/65535.

    `there` (L, H) tells which heads exist. `token_attention` (head, prompt, token) is that of the last query;
    `strongest_keys` and `strongest_attention` (head, query, 8) are those of the last queries of the first prompt.
    """
    tensors = {name: values.numpy() for name, values in profile.tensors.items() if name in STORED}
    if "token_attention" not in tensors:  # a profile of an earlier version
        return None, {}
    rows = np.moveaxis(tensors.pop("token_attention"), 0, 2)[there]
    prompts = max(1, MOST_BYTES // rows[:, :1].nbytes)
    arrays = {"token_attention": rows[:, :prompts]}
    for name, values in tensors.items():
        own = values[there]
        arrays[name] = own[:, -max(1, MOST_BYTES // (2 * own[:, :1].nbytes)) :]
    about = {
        "prompts": [shown_prompt(one) for one in profile.about["prompts"][:prompts][: rows.shape[1]]],
        "longest": rows.shape[2],
        "queries": arrays["strongest_keys"].shape[1] if tensors else 0,
        "top": arrays["strongest_keys"].shape[2] if tensors else 0,
        "scale": SCALE,
    }
    return about, arrays


STORED = ("token_attention", "strongest_keys", "strongest_attention")


def shown_prompt(about: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a prompt as text, or as ids if their text is not known, its blocks, and the answer."""
    prompt = Prompt(tuple(about["ids"]), tuple((start, stop) for start, stop in about["blocks"]),
                    answer=about["answer"], target=about["target"])  # fmt: skip
    return {
        "tokens": about.get("tokens") or [f"⟨{number}⟩ " for number in prompt.ids],
        "blocks": about["blocks"],
        "target": prompt.target,
        "answer_at": prompt.answer_at,
    }
