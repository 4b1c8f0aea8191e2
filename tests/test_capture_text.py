"""`ww.capture` takes token ids, texts and the output of a tokenizer, and gives the same trace for all of them."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import wherewhat as ww
from conftest import WEIGHTS
from tiny import tiny_model

WORDS = "Alice Bob likes red blue and green . What color does like ?".split()
TEXTS = ["Alice likes red . Bob likes blue .", "Bob likes green . Alice likes red ."]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: 20 + number for number, word in enumerate(["[UNK]", "[PAD]", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama")


def ids_of(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    return torch.tensor([tokenizer(text)["input_ids"] for text in texts])


def assert_same_trace(one: ww.Trace, other: ww.Trace) -> None:
    assert one.positions == other.positions
    for mine, theirs in zip(one.attention, other.attention, strict=True):
        assert torch.equal(mine.queries, theirs.queries)
        assert torch.equal(mine.keys, theirs.keys)


def test_a_text_is_captured_as_its_token_ids(model, tokenizer):
    expected = ww.capture(model, ids_of(tokenizer, TEXTS[:1]), queries=[3, -1])
    assert_same_trace(ww.capture(model, TEXTS[0], [3, -1], tokenizer=tokenizer), expected)
    assert_same_trace(ww.capture(model, TEXTS[:1], [3, -1], tokenizer=tokenizer), expected)


def test_texts_of_equal_length_form_a_batch(model, tokenizer):
    trace = ww.capture(model, TEXTS, tokenizer=tokenizer)
    assert trace.batch == 2
    assert_same_trace(trace, ww.capture(model, ids_of(tokenizer, TEXTS)))


@pytest.mark.parametrize("tensors", [None, "pt", "np"])
def test_the_output_of_a_tokenizer_is_captured_as_its_token_ids(model, tokenizer, tensors):
    expected = ww.capture(model, ids_of(tokenizer, TEXTS))
    encoded = tokenizer(TEXTS, return_tensors=tensors)
    assert_same_trace(ww.capture(model, encoded), expected)
    assert_same_trace(ww.capture(model, dict(encoded)), expected)
    assert_same_trace(ww.capture(model, encoded, tokenizer=tokenizer), expected)


def test_the_output_for_a_single_text_needs_no_batch_axis(model, tokenizer):
    expected = ww.capture(model, ids_of(tokenizer, TEXTS[:1]))
    assert_same_trace(ww.capture(model, tokenizer(TEXTS[0])), expected)


@pytest.mark.parametrize("tensors", [None, "pt", "np"])
def test_padding_is_refused(model, tokenizer, tensors):
    padded = tokenizer([TEXTS[0], "Bob likes"], padding=True, return_tensors=tensors)
    with pytest.raises(ww.BadInput, match=r"padded \(attention_mask has zeros\)"):
        ww.capture(model, padded)


def test_texts_of_different_lengths_are_refused(model, tokenizer):
    with pytest.raises(ww.BadInput, match="equal length, got 3, 8 tokens"):
        ww.capture(model, [TEXTS[0], "Bob likes red"], tokenizer=tokenizer)
    with pytest.raises(ww.BadInput, match="equal length, got 3, 8 tokens"):
        ww.capture(model, tokenizer([TEXTS[0], "Bob likes red"]))


def test_a_text_needs_its_tokenizer(model):
    for text in (TEXTS[0], TEXTS):
        with pytest.raises(ww.BadInput, match="pass its tokenizer as tokenizer="):
            ww.capture(model, text)


def test_a_dictionary_without_input_ids_is_refused(model):
    with pytest.raises(ww.BadInput, match="holds input_ids, got tokens"):
        ww.capture(model, {"tokens": [[1, 2, 3]]})


def test_an_empty_text_is_refused(model, tokenizer):
    for empty in ("", {"input_ids": []}):
        with pytest.raises(ww.BadInput, match="the prompt is empty"):
            ww.capture(model, empty, tokenizer=tokenizer)


@pytest.mark.weights
def test_a_real_tokenizer_adds_its_special_tokens(stories260k):
    tokenizer = ww.load_tokenizer(WEIGHTS / "stories260K")
    text = "Once upon a time"
    expected = ww.capture(stories260k, tokenizer(text, return_tensors="pt").input_ids)
    assert_same_trace(ww.capture(stories260k, text, tokenizer=tokenizer), expected)
