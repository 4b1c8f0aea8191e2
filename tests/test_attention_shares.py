"""Where attention goes: shares on the blocks, on the answer and on every token, against eager attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import wherewhat as ww
from page_data import decoded, held
from tiny import tiny_model
from wherewhat.core.kinds import LITTLE
from wherewhat.explorer.data_tokens import STORED
from wherewhat.explorer.page import explorer_html
from wherewhat.prompts import Prompt
from wherewhat.studies.profile import summary
from wherewhat.studies.profile.attention import TOP_KEYS, drawn_heads, from_fixed_point, sinks_before
from wherewhat.studies.profile.roles import in_role
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


def strip_of_tokens(source: dict[str, Any], prompt: int, query: int) -> Tensor:
    """The attention of all heads on all tokens (H T) as a page holds it."""
    arrays = {name: torch.from_numpy(decoded(source["arrays"][name]).astype("i8")) for name in STORED}
    tokens = source["tokens"]
    heads, last = len(source["labels"]), len(tokens["prompts"][prompt]["tokens"]) - 1
    if query == last:
        stored = arrays["token_attention"].reshape(heads, len(tokens["prompts"]), tokens["longest"])[:, prompt]
        return stored[:, : last + 1] / tokens["scale"]
    strongest = (heads, tokens["queries"], tokens["top"])
    keys, units = (arrays[name].reshape(strongest)[:, query - last - 1] for name in STORED[1:])
    return torch.zeros(heads, last + 1).scatter_add(1, keys, units / tokens["scale"])


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
    (source,) = held(explorer_html([found]))["sources"]
    for prompt in range(len(asked)):
        for query in range(1, 30) if prompt == 0 else (29,):
            shown = strip_of_tokens(source, prompt, query)
            wanted = eager[prompt, ..., query, :].flatten(0, 1)
            if query < 29:  # of other queries than the last, a page holds the strongest keys
                wanted = wanted.where(wanted >= wanted.topk(TOP_KEYS).values[:, -1:], 0)
            torch.testing.assert_close(shown, wanted, atol=1e-5, rtol=0)


def test_a_sink_is_a_token_before_the_blocks_to_which_a_tenth_of_the_heads_give_their_attention() -> None:
    """Tokens after the blocks are near the query: attention on them is not that of a sink."""
    rows = torch.full((5, 4, 30), 0.01)
    rows[0, :2, 1] = 0.31  # 2 of 20 heads
    rows[1, :1, 2] = 0.9  # one head
    rows[2:, :, 27] = 0.5  # near the query
    rows[3, :, 8] = 0.5  # in a block
    rows[4, 3] = torch.nan  # a head that this layer does not have
    assert drawn_heads(rows)[1].item() == pytest.approx(2 / 19)
    assert sinks_before(drawn_heads(rows), BLOCKS).nonzero().flatten().tolist() == [1]


def test_heads_on_little_attention_are_counted_and_left_out_of_a_second_correlation() -> None:
    found = ww.profile(tiny_model("llama"), prompts())
    little, heads = found.about["little"], found.heads
    assert little["heads"] == int((heads["on_blocks"] < LITTLE).sum())
    resting = heads[heads["on_blocks"] >= LITTLE]
    assert little["correlation"]["r"] == pytest.approx(resting["positional"].corr(resting["symbolic"]))


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_the_correlation_without_heads_on_little_attention_is_that_of_the_others(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = float(ww.profile(tiny_model("llama"), prompts()).heads["on_blocks"].quantile(share))
    monkeypatch.setattr(summary, "LITTLE", limit)
    found = ww.profile(tiny_model("llama"), prompts())
    resting = found.heads[found.heads["on_blocks"] >= limit]
    assert 0 < len(resting) < len(found.heads)
    assert found.about["little"]["heads"] == len(found.heads) - len(resting)
    expected = resting["positional"].corr(resting["symbolic"]) if len(resting) > 2 else None
    assert found.about["little"]["correlation"]["r"] == pytest.approx(expected)


def test_a_prompt_without_an_answer_has_no_attention_on_it() -> None:
    bare = [Prompt(prompt.ids, prompt.blocks) for prompt in prompts()]
    found = ww.profile(tiny_model("llama"), bare)
    assert found.about["retrieval"] is None
    assert found.heads[["answer", "answer_low", "answer_token", "answer_chance"]].isna().all(axis=None)
    mixed = ww.profile(tiny_model("llama"), [*bare[:1], *prompts()[1:]])
    asked = ww.profile(tiny_model("llama"), prompts()[1:])
    assert mixed.heads["answer"].tolist() == pytest.approx(asked.heads["answer"].tolist(), abs=1e-7)


def test_roles_are_read_from_the_table() -> None:
    found = ww.profile(tiny_model("llama"), prompts()).heads.head(3)
    found[["induction", "current_token", "on_first"]] = [[0.5, 0.1, 0.0], [0.0, 0.4, 0.9], [0.1, 0.39, 0.39]]
    found[["answer", "answer_low", "answer_chance"]] = [[0.3, 0.1, 0.2], [0.3, 0.25, 0.2], [0.1, 0.1, 0.2]]
    assert {role: in_role(found, role).tolist() for role in ("induction", "current-token", "sink", "retrieving")} == {
        "induction": [True, False, False],
        "current-token": [False, True, False],
        "sink": [False, True, False],
        "retrieving": [False, True, False],
    }
