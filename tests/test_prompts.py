"""Prompts have correct blocks, query and answer with any tokenizer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import wherewhat as ww
from conftest import weights
from wherewhat.errors import BadInput
from wherewhat.prompts import KINDS, TEMPLATES, PromptRequest, binding, make_prompts, own_prompts, plain_text, repeats
from wherewhat.prompts.binding import NAMES, _token_forms, _words_apart
from wherewhat.prompts.prompt import answer_token, tokenize
from wherewhat.prompts.request import longest, request_prompts

MODELS = ["stories260K", "stories15M", "SmolLM2-135M-Instruct-GGUF"]
REAL = [pytest.param(name, marks=pytest.mark.weights) for name in MODELS]


@pytest.fixture(params=REAL)
def tokenizer(request):
    return AutoTokenizer.from_pretrained(weights(request.param), model_max_length=10**6)


@pytest.fixture(params=REAL[-1:])
def smol(request):
    return AutoTokenizer.from_pretrained(weights(request.param))


def test_there_are_names_for_512_pairs():
    assert len(set(NAMES)) == len(NAMES) > 512


def built_tokenizer(form: str) -> PreTrainedTokenizerFast:
    """Small tokenizers of other families, trained here: no BOS, unknown words, separate tokens for spaces."""
    forms = {
        "words": (models.WordLevel(unk_token="[UNK]"), pre_tokenizers.Whitespace(), None, trainers.WordLevelTrainer),
        "pieces": (
            models.WordPiece(unk_token="[UNK]"),
            pre_tokenizers.BertPreTokenizer(),
            None,
            trainers.WordPieceTrainer,
        ),
        "bytes": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
            trainers.BpeTrainer,
        ),
        "characters": (models.BPE(unk_token="[UNK]"), pre_tokenizers.Split("", "isolated"), None, trainers.BpeTrainer),
    }
    model, cut, decoder, trainer = forms[form]
    made = Tokenizer(model)
    made.pre_tokenizer = cut
    if decoder is not None:
        made.decoder = decoder
    words = [*NAMES, *(word for kind in KINDS.values() for word in kind.words)]
    parts = [part for template in TEMPLATES.values() for part in vars(template).values()]
    parts += [part for kind in KINDS.values() for part in (kind.noun, kind.about, kind.says, kind.asks)]
    made.train_from_iterator(
        [f"A {word} is here: {word}, {word}." for word in words] + parts, trainer(special_tokens=["[UNK]"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


@pytest.fixture(scope="module", params=["words", "pieces", "bytes", "characters", *REAL])
def any_tokenizer(request):
    if request.param in MODELS:
        return AutoTokenizer.from_pretrained(weights(request.param), model_max_length=10**6)
    return built_tokenizer(request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_each_block_is_one_statement_and_the_next_token_identifies_the_answer(any_tokenizer, template, kind):
    for prompt in binding(any_tokenizer, pairs=12, samples=3, kind=kind, template=template):
        assert len(prompt.blocks) + prompt.skipped == 12
        assert len(prompt.blocks) >= 6
        assert len({stop - start for start, stop in prompt.blocks}) == 1
        assert all(later == stop for (_, stop), (later, _) in pairwise(prompt.blocks)) or prompt.skipped
        for (start, stop), label in zip(prompt.blocks, prompt.labels, strict=True):
            assert label in prompt.text
            assert label.endswith(".")
            assert squeezed(any_tokenizer, prompt.ids[start:stop]) == label.replace(" ", "")
        answer = squeezed(any_tokenizer, [prompt.answer])
        assert answer
        target = prompt.labels[prompt.target]
        words = [word for word in KINDS[kind].words if f" {word}" in target.removesuffix(".")]
        assert any(word.startswith(answer) for word in words)
        others = {word for label in prompt.labels for word in KINDS[kind].words if f" {word}" in label} - set(words)
        assert not any(any_tokenizer.tokenize(f" {word}") == any_tokenizer.tokenize(f" {words[0]}") for word in others)


def squeezed(tokenizer, ids) -> str:
    """The text of tokens without spaces, which tokenizers may add or drop."""
    return tokenizer.decode(list(ids)).replace(" ", "").replace("##", "")


def test_a_space_with_its_own_token_belongs_to_the_prompt():
    characters = built_tokenizer("characters")
    prompt = binding(characters, pairs=4, samples=1)[0]
    assert prompt.text.endswith(" likes")
    assert characters.decode(prompt.ids[-1:]) == " "
    assert characters.decode([prompt.answer]).strip()


def test_answers_unknown_to_the_tokenizer_are_not_scored():
    words = built_tokenizer("words")
    ids, answer = answer_token(words, words("Alice likes")["input_ids"], "Alice likes", " xylophone")
    assert answer is None
    assert len(ids) == 2


def test_an_answer_that_shares_a_token_with_the_prompt_is_not_scored(smol):
    ids, _ = tokenize(smol, "Alice li")
    assert answer_token(smol, ids, "Alice li", "kes") == (ids, None)


def test_the_first_token_identifies_a_word(any_tokenizer):
    for kind in KINDS.values():
        words = _words_apart(any_tokenizer, kind.words)
        firsts = [token for _, token in _token_forms(any_tokenizer, words)]
        assert len(set(firsts)) == len(words) >= 2


def test_a_preamble_and_bos_come_before_the_first_block(tokenizer):
    prompt = binding(tokenizer, pairs=4, samples=1)[0]
    assert prompt.ids[0] == tokenizer.bos_token_id
    before = tokenizer.decode(prompt.ids[: prompt.blocks[0][0]], skip_special_tokens=True).strip()
    assert before == "Here is a list of what people like."


def test_the_answer_continues_the_prompt_and_stands_in_the_target(smol):
    for prompt in binding(smol, pairs=16, samples=4):
        start, stop = prompt.blocks[prompt.target]
        assert prompt.answer in prompt.ids[start:stop]
        assert prompt.text.endswith(" likes")


def test_the_question_is_spread_over_the_prompt(smol):
    targets = sorted(prompt.target for prompt in binding(smol, pairs=64, samples=8))
    assert [later - earlier for earlier, later in pairwise(targets)] == [8] * 7


def test_several_questions_about_each_list(smol):
    asked = binding(smol, pairs=16, samples=2, questions=4)
    lists = [prompt.labels for prompt in asked]
    assert lists[:4] == [lists[0]] * 4
    assert lists[4:] == [lists[4]] * 4 != lists[:4]
    assert [prompt.labels for prompt in binding(smol, pairs=16, samples=2)] == [lists[0], lists[4]]
    targets = sorted(prompt.target for prompt in asked)  # evenly spread over the lists
    assert [later - earlier for earlier, later in pairwise(targets)] == [2] * 7
    for prompt in asked:
        assert prompt.text.endswith(f"{prompt.labels[prompt.target].split()[0]} likes")


def test_up_to_512_pairs_and_the_same_seed_gives_the_same_prompts(smol):
    once, again, other = (binding(smol, pairs=512, samples=1, seed=seed)[0] for seed in (1, 1, 2))
    assert once == again != other
    assert len(once.blocks) > 480


def test_a_chat_template_wraps_the_prompt(smol):
    prompt = binding(smol, pairs=4, samples=1, chat=True)[0]
    assert "<|im_start|>assistant" in prompt.text
    assert len(prompt.blocks) == 4
    assert prompt.answer is not None


def test_repeats_determine_the_next_token(smol):
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
        ("", "contains no prompts"),
        ("not json", "line 1"),
        ('{"text": "a"}', "line 1"),
        ('{"ids": [1], "blocks": 3}', "line 1"),
        ('{"ids": [1, 2, 3, 4], "blocks": [[1, 2]]}', "line 1: 1 blocks of equal length"),
    ],
)
def test_invalid_own_prompts_are_refused(smol, tmp_path, content, said):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(ww.BadInput, match=said):
        own_prompts(smol, path)


def test_as_many_pairs_as_fit(smol):
    for context in (60, 100, 177, 256):
        prompts, task = make_prompts(PromptRequest("binding"), smol, context)
        assert longest(prompts) <= context < longest(binding(smol, pairs=task.pairs + 1))
        assert task.settings()["pairs"] == task.pairs == len(prompts[0].blocks) + prompts[0].skipped
    assert make_prompts(PromptRequest("binding"), smol, 8192)[1].pairs == 64
    with pytest.raises(ww.BadInput, match="more than the 20"):
        make_prompts(PromptRequest("binding"), smol, 20)
    with pytest.raises(ww.BadInput, match="more than the 256 that the model takes; use fewer pairs"):
        make_prompts(PromptRequest("binding", pairs=200), smol, 256)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "juggling"}, "no task 'juggling'"),
        ({"name": "missing.txt"}, "missing.txt: no such file"),
        ({"name": "repeats", "pairs": 8}, "--pairs does not apply to the task repeats"),
        ({"name": "binding", "width": 4}, "--width does not apply to the task binding"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"pairs": 513}, "pairs must be 2 to 512"),
        ({"template": "sonnet"}, "no template 'sonnet'"),
    ],
)
def test_invalid_tasks_are_refused(wrong, said):
    with pytest.raises(ww.BadInput, match=said):
        PromptRequest(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"pairs": 1}, {"pairs": 513}, {"samples": 0}, {"questions": 0}, {"kind": "smell"}, {"template": "sonnet"}]
)
def test_invalid_binding_prompts_are_refused(smol, wrong):
    with pytest.raises(ww.BadInput):
        binding(smol, **wrong)


@pytest.mark.weights
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"text": "Ann likes red. Bob", "blocks": [[0, 5], [5, 300]]}, "does not lie in the 18 characters"),
        ({"text": "Ann likes red. Bob", "blocks": [[0, 8], [5, 13]]}, "overlap"),
        ({"ids": [1, 5, 6, 7, 8], "blocks": [[1, 2], [4, 9]]}, "does not lie in the 5 tokens"),
        ({"ids": [1, 5, 6, 7, 8], "blocks": [[1, 2], [-1, 0]]}, "does not lie"),
    ],
)
def test_spans_outside_the_prompt_are_refused_with_their_line(tmp_path, line, said):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(line))
    with pytest.raises(BadInput, match=f"line 1: .*{said}"):
        own_prompts(AutoTokenizer.from_pretrained(weights("stories15M")), path)


@pytest.mark.weights
def test_unicode_line_separators_do_not_end_a_line(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "Ann likes\u2028red. Bob", "blocks": [[0, 3], [15, 18]]}', encoding="utf-8")
    assert len(own_prompts(AutoTokenizer.from_pretrained(weights("stories15M")), path)) == 1


@pytest.mark.weights
def test_neighbouring_statements_form_one_block() -> None:
    """The text is the same; each block holds as many statements as asked, and the target the one in question."""
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    single, grouped = (binding(tokenizer, 12, 3, 0, group=group) for group in (1, 4))
    for one, four in zip(single, grouped, strict=True):
        assert (one.text, one.ids, one.answer) == (four.text, four.ids, four.answer)
        assert one.target is not None
        assert four.target == one.target // 4
        assert four.blocks == tuple((one.blocks[at][0], one.blocks[at + 3][1]) for at in range(0, len(one.blocks), 4))
        assert four.labels == tuple(" ".join(one.labels[at : at + 4]) for at in range(0, len(one.labels), 4))
        assert four.answer_at == one.answer_at
        assert four.answer_at is not None
        assert four.ids[four.answer_at] == four.answer
    with pytest.raises(BadInput, match="group must be 1 to 6 statements per block"):
        binding(tokenizer, 12, 3, 0, group=7)


def test_every_task_takes_the_options_that_it_has() -> None:
    one, other = request_prompts(["binding", "prose"], {"pairs": 8, "samples": 3, "width": 4})
    assert (one.pairs, one.samples, one.width) == (8, 3, None)
    assert (other.pairs, other.samples, other.width) == (None, 3, 4)
    with pytest.raises(BadInput, match="--width does not apply to the task binding or repeats"):
        request_prompts(["binding", "repeats"], {"width": 4})
    with pytest.raises(BadInput, match="each task is given once"):
        request_prompts(["prose", "prose"], {})
    with pytest.raises(BadInput, match="stretch must be at least 26 tokens for blocks of 8"):
        PromptRequest("prose", stretch=20)


@pytest.mark.weights
def test_a_short_text_can_be_measured(tmp_path: Path) -> None:
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    (tmp_path / "short.txt").write_text("Once upon a time there was a little girl who liked the sea very much. " * 3)
    with pytest.raises(BadInput, match=r"too few for prompts of 256 tokens .*; shorter prompts need --stretch"):
        make_prompts(PromptRequest(str(tmp_path / "short.txt")), tokenizer, 512)
    prompts, _ = make_prompts(PromptRequest(str(tmp_path / "short.txt"), stretch=30), tokenizer, 512)
    assert {len(prompt.ids) for prompt in prompts} == {30}


@pytest.mark.weights
def test_a_line_without_blocks_says_what_a_prompt_needs(tmp_path: Path) -> None:
    tokenizer = ww.load_tokenizer(weights("stories260K"))
    file = tmp_path / "own.jsonl"
    for line in ('{"text": "A list."}', '{"blocks": [[0, 1], [1, 2]]}', "[1]"):
        file.write_text(line)
        with pytest.raises(BadInput, match='line 1: expected an object with "blocks" and either "text" or "ids"'):
            ww.own_prompts(tokenizer, file)
    file.write_text('{"ids": [1, 20, 21, 22, 23, 9], "blocks": [[1, 3], [3, 5]], "answer": 23}')
    (prompt,) = ww.own_prompts(tokenizer, file)
    assert (prompt.target, prompt.answer_at) == (1, 4)
