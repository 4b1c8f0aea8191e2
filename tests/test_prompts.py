"""Prompts know their blocks, their query and their right answer, whatever the tokenizer."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from transformers import AutoTokenizer

import wherewhat as ww
from conftest import weights
from wherewhat.prompts import KINDS, binding, own_prompts, plain_text, repeats
from wherewhat.prompts.binding import NAMES

MODELS = ["stories260K", "stories15M", "SmolLM2-135M-Instruct-GGUF"]


@pytest.fixture(params=MODELS)
def tokenizer(request):
    return AutoTokenizer.from_pretrained(weights(request.param), model_max_length=10**6)


@pytest.fixture
def smol():
    return AutoTokenizer.from_pretrained(weights(MODELS[-1]))


def test_there_are_names_for_512_pairs():
    assert len(set(NAMES)) == len(NAMES) > 512


@pytest.mark.parametrize("kind", KINDS)
def test_each_block_is_one_statement(tokenizer, kind):
    for prompt in binding(tokenizer, pairs=12, samples=3, kind=kind):
        assert len(prompt.blocks) + prompt.left_out == 12
        assert len({stop - start for start, stop in prompt.blocks}) == 1
        for start, stop in prompt.blocks:
            said = tokenizer.decode(prompt.ids[start:stop]).strip()
            assert said in prompt.text
            assert said[0].isupper()
            assert said.count(".") == 1
            assert said.endswith(".")


def test_a_preamble_and_bos_come_before_the_first_block(tokenizer):
    prompt = binding(tokenizer, pairs=4, samples=1)[0]
    assert prompt.ids[0] == tokenizer.bos_token_id
    before = tokenizer.decode(prompt.ids[: prompt.blocks[0][0]], skip_special_tokens=True).strip()
    assert before == KINDS["color"].preamble


def test_the_answer_continues_the_prompt_and_stands_in_the_target(smol):
    for prompt in binding(smol, pairs=16, samples=4):
        start, stop = prompt.blocks[prompt.target]
        assert prompt.answer in prompt.ids[start:stop]
        assert prompt.text.endswith(" likes")


def test_the_question_walks_through_the_prompt(smol):
    targets = sorted(prompt.target for prompt in binding(smol, pairs=64, samples=8))
    assert [later - earlier for earlier, later in pairwise(targets)] == [8] * 7


def test_up_to_512_pairs_and_the_same_again_from_the_same_seed(smol):
    once, again, other = (binding(smol, pairs=512, samples=1, seed=seed)[0] for seed in (1, 1, 2))
    assert once == again != other
    assert len(once.blocks) > 480


def test_a_chat_template_wraps_the_prompt(smol):
    prompt = binding(smol, pairs=4, samples=1, chat=True)[0]
    assert "<|im_start|>assistant" in prompt.text
    assert len(prompt.blocks) == 4
    assert prompt.answer is not None


def test_repeats_tell_what_comes_next(smol):
    prompt = repeats(smol, tokens=10, samples=1)[0]
    start = prompt.blocks[0][0]
    assert prompt.ids[start : start + 9] == prompt.ids[start + 10 :]
    assert prompt.answer == prompt.ids[start + 9]


def test_plain_text_is_cut_into_blocks(smol):
    text = "Once upon a time there was a little girl who loved to play outside in the park. " * 40
    prompts = plain_text(smol, text, width=4, tokens=65, samples=3)
    assert len(prompts) == 3
    assert all(stop - start == 4 for prompt in prompts for start, stop in prompt.blocks)
    assert all(len(prompt.ids) == 65 and prompt.blocks[-1][1] <= prompt.query for prompt in prompts)


def test_own_prompts_by_characters_and_by_tokens(smol, tmp_path):
    path = tmp_path / "mine.jsonl"
    text = "People: Ann likes red. Bob likes blue. Ann likes"
    lines = [
        {"text": text, "blocks": [[7, 22], [22, 38]], "answer": " red"},
        {"ids": [5, 6, 7, 8, 9, 10, 11], "blocks": [[1, 3], [3, 5]]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    spoken, given = own_prompts(smol, path)
    assert [smol.decode(spoken.ids[a:b]) for a, b in spoken.blocks] == [" Ann likes red.", " Bob likes blue."]
    assert smol.decode([spoken.answer]) == " red"
    assert given.blocks == ((1, 3), (3, 5))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompts"),
        ("not json", "line 1"),
        ('{"text": "a"}', "line 1"),
        ('{"ids": [1], "blocks": 3}', "line 1"),
    ],
)
def test_own_prompts_that_are_none(smol, tmp_path, content, said):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(ww.BadInput, match=said):
        own_prompts(smol, path)


@pytest.mark.parametrize("wrong", [{"pairs": 1}, {"pairs": 513}, {"samples": 0}, {"kind": "smell"}])
def test_binding_prompts_that_cannot_be(smol, wrong):
    with pytest.raises(ww.BadInput):
        binding(smol, **wrong)
