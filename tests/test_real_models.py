"""Models that others trained, measured while they do what they were published to do."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

import brute_force
import wherewhat as ww
from conftest import weights
from wherewhat.explorer.page import explorer_html
from wherewhat.tracing.hook import implementation

# The sample of karpathy/llama2.c, doc/stories260K.md: temperature 0, from BOS.
PUBLISHED = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. \
She said, "I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she said, "I'm sorry, mom. I didn't know what to do." \
Her mom said, "Don't worry, Lily. We can help you."""

PREAMBLE = "Here is a list of what people like."
LIKES = {
    "Alice": "red", "Mary": "blue", "John": "green", "Tom": "black", "Anna": "white", "Peter": "pink",
    "Paul": "brown", "James": "gold",
}  # fmt: skip


@pytest.fixture(scope="module")
def story(stories260k) -> Tensor:
    """256 tokens that the model writes by itself, greedily, after BOS."""
    bos = torch.tensor([[stories260k.config.bos_token_id]])
    return stories260k.generate(bos, attention_mask=torch.ones_like(bos), max_new_tokens=256, do_sample=False)


@pytest.fixture(scope="module")
def binding() -> tuple[Tensor, list[tuple[int, int]]]:
    """SmolLM2's tokens of a list of who likes what, ending in a question, and one block per statement."""
    tokenizer = AutoTokenizer.from_pretrained(weights("SmolLM2-135M-Instruct-GGUF"))
    ids, blocks = [tokenizer.bos_token_id, *tokenizer(PREAMBLE).input_ids], []
    for name, colour in LIKES.items():
        statement = tokenizer(f" {name} likes {colour}.").input_ids
        blocks.append((len(ids), len(ids) + len(statement)))
        ids += statement
    return torch.tensor([[*ids, *tokenizer(" Tom likes").input_ids]]), blocks


def own_attention(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """The model's own eager attention (B, H, T, T), a layer each."""
    with implementation(model, "eager"), torch.no_grad():
        return list(model(ids, output_attentions=True, use_cache=False).attentions)


def assert_rows_are_the_models_own(model: PreTrainedModel, ids: Tensor, queries: list[int]) -> None:
    own, trace = own_attention(model, ids), ww.capture(model, ids, queries=queries)
    assert len(own) == len(trace.attention) == model.config.num_hidden_layers
    for query in queries:
        for layer, matrix in enumerate(own):
            rows = trace.at(query).attention_rows(layer)
            torch.testing.assert_close(rows, matrix[:, :, query, : query + 1], atol=1e-5, rtol=0)


def test_stories260k_writes_its_published_story(story):
    text = AutoTokenizer.from_pretrained(weights("stories260K")).decode(story[0], skip_special_tokens=True)
    assert text.strip().startswith(PUBLISHED)


def test_stories260k_writes_the_same_story_while_it_is_captured(stories260k, story):
    ids = story[:, :2]
    while ids.shape[1] < story.shape[1]:
        ids = torch.cat([ids, ww.capture(stories260k, ids).output.argmax(-1, keepdim=True)], dim=1)
    assert ids.tolist() == story.tolist()


def test_attention_rows_of_stories260k_are_its_own(stories260k, story):
    assert_rows_are_the_models_own(stories260k, story[:, :200], queries=[1, 17, 100, 199])


def test_attention_rows_of_stories15m_are_its_own(stories15m):
    tokenizer = AutoTokenizer.from_pretrained(weights("stories15M"))
    ids = tokenizer(PUBLISHED, return_tensors="pt").input_ids[:, :120]
    assert_rows_are_the_models_own(stories15m, ids, queries=[1, 50, 119])


def test_attention_rows_of_smollm2_are_its_own(smollm2, binding):
    ids, _ = binding
    assert_rows_are_the_models_own(smollm2, ids, queries=[7, ids.shape[1] - 1])


TAUS = [1e-4, 1e-2, float("inf")]


def assert_scores_are_those_of_the_published_procedure(
    model: PreTrainedModel, ids: Tensor, blocks: list[tuple[int, int]]
) -> None:
    trace = ww.capture(model, ids)
    with implementation(model, "eager"):
        by_hand = brute_force.scores(model, ids, blocks, TAUS)
    for tau in TAUS:
        scores = ww.score(trace, blocks=blocks, tau=tau)
        ours = torch.stack([scores.positional[0], scores.symbolic[0]]).double()
        torch.testing.assert_close(ours, by_hand[tau], atol=1e-4, rtol=0)


def test_stories260k_scores_as_swaps_done_by_hand(stories260k, story):
    """17 tokens, one per block: the setting of the paper."""
    blocks = [(at, at + 1) for at in range(16)]
    assert_scores_are_those_of_the_published_procedure(stories260k, story[:, :17], blocks)


def test_stories15m_scores_as_swaps_done_by_hand(stories15m):
    tokenizer = AutoTokenizer.from_pretrained(weights("stories15M"))
    ids = tokenizer(PUBLISHED, return_tensors="pt").input_ids[:, :38]
    blocks = [(at, at + 4) for at in (1, 5, 9, 15, 19, 23, 30)]
    assert_scores_are_those_of_the_published_procedure(stories15m, ids, blocks)


def test_prompts_of_a_batch_score_as_they_do_alone(stories260k, story):
    prompts = story[:, :120].reshape(4, 30)
    together = ww.score(ww.capture(stories260k, prompts), tau=1e-2)
    for index, prompt in enumerate(prompts):
        alone = ww.score(ww.capture(stories260k, prompt[None]), tau=1e-2)
        torch.testing.assert_close(together.positional[[index]], alone.positional, atol=1e-4, rtol=0)
        torch.testing.assert_close(together.symbolic[[index]], alone.symbolic, atol=1e-4, rtol=0)


def test_the_rotation_of_the_stories_is_the_one_they_were_trained_with(stories260k, stories15m, story):
    for model, dimension in ((stories260k, 8), (stories15m, 48)):
        trained = 10_000.0 ** -(torch.arange(0, dimension, 2) / dimension)
        angles = ww.capture(model, story[:, :20]).angles
        torch.testing.assert_close(angles, trained.expand_as(angles), atol=1e-6, rtol=1e-4)


def test_the_statements_of_the_binding_prompt_are_equally_long(binding):
    ids, blocks = binding
    assert len({stop - start for start, stop in blocks}) == 1
    assert len(blocks) == len(LIKES)
    assert blocks[-1][1] < ids.shape[1] - 1


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("without_first", [False, True])
def test_every_head_and_frequency_of_smollm2_has_scores_in_range(smollm2, binding, tau, without_first):
    ids, blocks = binding
    trace = ww.capture(smollm2, ids)
    for measure, shape in ((ww.score, (1, 30, 9)), (ww.score_frequencies, (1, 30, 9, 32))):
        scores = measure(trace, blocks=blocks, tau=tau, without_first=without_first)
        for score in (scores.positional, scores.symbolic):
            assert score.shape == shape
            assert ((score >= 0) & (score <= 1)).all()
        assert scores.skipped.eq(0).all()


def test_no_number_measured_on_smollm2_is_missing(smollm2, binding):
    trace = ww.capture(smollm2, binding[0])
    exclusion = ww.exclusion(trace)
    for numbers in (*exclusion, *ww.frequency_use(trace), ww.entropy(trace)):
        assert numbers.isfinite().all()
    assert (exclusion.variance <= exclusion.bound * (1 + 1e-6)).all()
    entropy = ww.entropy(trace)
    assert ((entropy >= 0) & (entropy <= 1)).all()


def test_a_capture_leaves_the_model_as_it_was(stories260k, story):
    ids = story[:, :40]
    with torch.no_grad():
        before = stories260k(ids).logits
        implementation_before = stories260k.config._attn_implementation
        ww.capture(stories260k, ids, check=True)
        assert torch.equal(stories260k(ids).logits, before)
    assert stories260k.config._attn_implementation == implementation_before


@pytest.mark.slow
def test_the_page_of_smollm2_stays_below_6_megabytes(smollm2):
    """With 64 pairs and 8 prompts: measured with one, the others added as they are before they are compressed."""
    tokenizer = AutoTokenizer.from_pretrained(weights("SmolLM2-135M-Instruct-GGUF"))
    first, *others = ww.binding(tokenizer, pairs=64, samples=8)
    profile = ww.profile(smollm2, [first])
    shown = len(profile.heads) * max(len(prompt.ids) for prompt in others)
    added = sum(shown * 2 * 4 / 3 + len(json.dumps(asdict(prompt))) for prompt in others)  # 2 bytes each, in base64
    assert 3e6 < len(explorer_html([profile]).encode()) + added < 6e6
