"""Where attention goes: shares on the blocks, on the answer and on every token, against eager attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import wherewhat as ww
from tiny import tiny_model
from wherewhat.prompts import Prompt
from wherewhat.studies.profile.attention import TOP_KEYS, from_fixed_point
from wherewhat.tracing.hook import implementation

# GQA, windows, windows with soft-capping, learned sinks, MLA, partial interleaved RoPE, ALiBi.
ARCHITECTURES = ("llama", "gemma3_text", "gemma2", "gpt_oss", "deepseek_v3", "gptj", "mpt", "qwen2")
BLOCKS = tuple((start, start + 4) for start in range(3, 23, 4))


def eager_attention(model: PreTrainedModel, ids: tuple[int, ...]) -> Tensor:
    """The attention of every query on every key, as the model itself returns it: L H Q T."""
    with implementation(model, "eager"), torch.no_grad():
        shown = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    return torch.stack([layer[0] for layer in shown]).float()[..., : len(ids)]  # eager attention may append its sinks


def prompts() -> list[Prompt]:
    draw = torch.Generator().manual_seed(3)
    made = []
    for target in (1, 3, 4):
        ids = torch.randperm(118, generator=draw)[:30].add(10).tolist()
        made.append(Prompt(tuple(ids), BLOCKS, answer=ids[BLOCKS[target][0] + 2], target=target))
    return made


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shares_and_every_token_are_those_of_eager_attention(name: str) -> None:
    model, asked = tiny_model(name), prompts()
    level = {"level": "prompt", "swaps": 1} if name == "mpt" else {}
    found = ww.profile(model, asked, **level)
    eager = torch.stack([eager_attention(model, prompt.ids) for prompt in asked])  # P L H Q T
    rows = eager[..., -1, :]
    inside = torch.tensor([at for span in BLOCKS for at in range(*span)])
    outside = torch.tensor([at for at in range(1, 29) if at not in inside])
    expected = {
        "on_blocks": rows[..., inside].sum(-1),
        "on_query": rows[..., -1],
        "on_first": rows[..., 0],
        "elsewhere": rows[..., outside].sum(-1),
        "answer": torch.stack(
            [row[..., slice(*BLOCKS[p.target or 0])].sum(-1) for row, p in zip(rows, asked, strict=True)]
        ),
        "answer_token": torch.stack(
            [row[..., p.ids.index(p.answer or 0)] for row, p in zip(rows, asked, strict=True)]
        ),
        "answer_chance": rows[..., inside].sum(-1) / len(BLOCKS),
    }  # fmt: skip
    for column, values in expected.items():
        torch.testing.assert_close(
            torch.from_numpy(found.heads[column].to_numpy(copy=True)).float(), values.mean(0).flatten(),
            atol=1e-5, rtol=0,
        )  # fmt: skip
    stored = from_fixed_point(found.tensors["token_attention"])
    torch.testing.assert_close(stored, rows, atol=1e-5, rtol=0)
    keys = found.tensors["strongest_keys"].long()
    best = eager[0][..., 1:, :]
    assert keys.shape == (*best.shape[:3], TOP_KEYS)
    torch.testing.assert_close(
        from_fixed_point(found.tensors["strongest_attention"]), best.topk(TOP_KEYS).values, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(best.gather(-1, keys), best.topk(TOP_KEYS).values, atol=1e-5, rtol=0)
