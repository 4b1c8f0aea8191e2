"""Level "prompt": blocks of tokens change places, the whole model runs again."""

from __future__ import annotations

import itertools
import math
from functools import cache

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, PreTrainedModel

import wherewhat as ww
from conftest import weights
from tiny import tiny_model
from wherewhat.prompts import binding
from wherewhat.studies.profile.prompt_level import (
    cosines,
    draw,
    estimate,
    exchange,
    inclusion,
    reusable_cache,
    run,
    score_prompt,
    swap_weights,
)
from wherewhat.tracing.hook import implementation

EQUAL = [(2, 5), (6, 9), (9, 12), (13, 16), (18, 21)]
UNEQUAL = [(12, 13), (1, 4), (4, 6), (14, 20), (8, 12)]  # and not in the order of the prompt


shared_model = cache(tiny_model)  # checked once for all tests


def prompt(tokens: int = 23) -> Tensor:
    return torch.randint(10, 128, (1, tokens), generator=torch.Generator().manual_seed(1))


def by_hand(model: PreTrainedModel, ids: Tensor, blocks: list[tuple[int, int]], taus: list[float]) -> Tensor:
    """Positional and symbolic scores and pairs left out (tau, L, H, 3), with nothing of wherewhat in them.

    The model's own eager attention on token ids exchanged by hand, one run a pair; the definition in plain loops.
    """

    def last_rows(tokens: list[int]) -> list[Tensor]:
        with implementation(model, "eager"), torch.no_grad():
            attentions = model(torch.tensor([tokens]), output_attentions=True, use_cache=False).attentions
        return [matrix[0, :, -1].double() for matrix in attentions]

    def mean(row: Tensor, start: int, length: int) -> float:
        return sum(row[start : start + length].tolist()) / length

    def cosine(v: tuple[float, float], w: tuple[float, float]) -> float:
        return (v[0] * w[0] + v[1] * w[1]) / (math.hypot(*v) * math.hypot(*w))

    tokens = ids[0].tolist()
    before = last_rows(tokens)
    after = {}
    for i, j in itertools.combinations(sorted(blocks), 2):
        one, other = tokens[slice(*i)], tokens[slice(*j)]
        between = tokens[i[1] : j[0]]
        after[i, j] = last_rows(tokens[: i[0]] + other + between + one + tokens[j[1] :])
    scores = torch.zeros(len(taus), len(before), len(before[0]), 3)
    for layer, rows in enumerate(before):
        for head, row in enumerate(rows):
            gaps, stays, follows, skipped = [], [], [], 0
            for (i, j), swapped in after.items():
                mine, theirs = i[1] - i[0], j[1] - j[0]
                v = (mean(row, i[0], mine), mean(row, j[0], theirs))
                now = swapped[layer][head]
                w = (mean(now, i[0], theirs), mean(now, j[1] - mine, mine))
                if max(v) == 0 or max(w) == 0:
                    skipped += 1
                    continue
                gaps.append(abs(v[0] - v[1]))
                stays.append(cosine(v, w))
                follows.append(cosine(v[::-1], w))
            for number, tau in enumerate(taus):
                alphas = [math.exp((gap - max(gaps)) / tau) for gap in gaps]
                stay, follow = (
                    sum(a * c for a, c in zip(alphas, cs, strict=True)) / sum(alphas) for cs in (stays, follows)
                )
                scores[number, layer, head] = torch.tensor([stay, follow, skipped])
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("model_type", ["gpt2", "opt", "bloom", "mpt", "llama", "gpt_neo", "gemma3_text", "jamba"])
def test_scores_are_those_of_runs_by_hand(model_type, blocks):
    model, taus = shared_model(model_type), [1e-4, 1e-2]
    for tau, own in zip(taus, by_hand(model, prompt(), blocks, taus), strict=True):
        scores = score_prompt(model, prompt(), blocks, tau=tau)
        torch.testing.assert_close(scores.positional, own[..., 0], atol=1e-4, rtol=0)
        torch.testing.assert_close(scores.symbolic, own[..., 1], atol=1e-4, rtol=0)
        assert torch.equal(scores.skipped, own[..., 2])
        assert scores.swaps == scores.possible == 10


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "gptj", "gemma2", "cohere2", "gpt_oss", "bloom"])
def test_both_levels_agree_in_the_first_layer(model_type):
    model = shared_model(model_type)
    for blocks in (EQUAL, [(at, at + 1) for at in range(10, 16)]):
        scores, trace = score_prompt(model, prompt(), blocks), ww.capture(model, prompt())
        keys = ww.score(trace, blocks)
        torch.testing.assert_close(scores.positional[0], keys.positional[0, 0], atol=1e-4, rtol=0)
        torch.testing.assert_close(scores.symbolic[0], keys.symbolic[0, 0], atol=1e-4, rtol=0)
        assert torch.equal(scores.skipped, keys.skipped[0])
        torch.testing.assert_close(scores.entropy, ww.entropy(trace)[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(scores.output, trace.output[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stories260k", "stories15m"])
def test_both_levels_agree_in_the_first_layer_of_real_models(name, request):
    model = request.getfixturevalue(name)
    tokenizer = AutoTokenizer.from_pretrained(weights({"stories260k": "stories260K", "stories15m": "stories15M"}[name]))
    made = binding(tokenizer, pairs=8, samples=1)[0]
    ids, blocks = torch.tensor([made.ids]), list(made.blocks)
    scores, keys = score_prompt(model, ids, blocks), ww.score(ww.capture(model, ids), blocks)
    torch.testing.assert_close(scores.positional[0], keys.positional[0, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(scores.symbolic[0], keys.symbolic[0, 0], atol=1e-4, rtol=0)
    assert (scores.positional[1:] - keys.positional[0, 1:]).abs().max() > 0.01  # later layers react
    assert torch.equal(scores.positional_low, scores.positional)
    assert torch.equal(scores.symbolic_high, scores.symbolic)
    assert scores.attention.shape == (*scores.positional.shape, len(blocks))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type",
    "gpt2 opt bloom mpt gpt_neo gptj falcon llama gemma2 gemma3_text gpt_oss deepseek_v3".split(),
)
def test_the_common_beginning_need_not_run_again(model_type):
    model, ids = shared_model(model_type), prompt()
    exchanges = [exchange(ids[0], one, other) for one, other in itertools.combinations(UNEQUAL, 2)]
    past, deviation = reusable_cache(model, ids, exchanges)
    assert past is not None
    assert deviation < 1e-5
    whole = run(model, exchanges, batch=10)
    torch.testing.assert_close(run(model, exchanges, past, batch=3), whole, atol=1e-4, rtol=0)


def test_a_capture_that_goes_on_from_a_cache_is_the_capture():
    model, ids = shared_model("llama"), prompt()
    whole, past = ww.capture(model, ids, queries=[20, 22]), DynamicCache()
    ww.capture(model, ids[:, :15], past=past)
    rest = ww.capture(model, ids, queries=[20, 22], past=past)
    for layer in range(4):
        for query in (20, 22):
            torch.testing.assert_close(rest.at(query).attention_rows(layer), whole.at(query).attention_rows(layer))
    with pytest.raises(ww.BadInput, match="among the 23 tokens of the past"):
        ww.capture(model, ids, past=past)


@pytest.mark.parametrize("model_type", ["jamba", "lfm2", "zamba2"])
def test_a_model_with_a_memory_of_another_kind_runs_from_the_start(model_type):
    scores = score_prompt(shared_model(model_type), prompt(), EQUAL)
    assert not scores.cached
    assert scores.check["prefix"] == math.inf


def test_a_model_that_goes_on_wrongly_from_a_cache_runs_from_the_start(monkeypatch):
    model = tiny_model("gpt2")
    expected = score_prompt(model, prompt(), EQUAL)
    assert expected.cached
    forward = model.forward

    def without_past_positions(input_ids, **rest):
        return forward(input_ids=input_ids, position_ids=torch.arange(input_ids.shape[1])[None], **rest)

    monkeypatch.setattr(model, "forward", without_past_positions)
    scores = score_prompt(model, prompt(), EQUAL)
    assert not scores.cached
    assert 1e-4 < scores.check["prefix"] < math.inf
    torch.testing.assert_close(scores.positional, expected.positional, atol=1e-4, rtol=0)


def test_what_a_layer_does_not_have_is_nan():
    model = tiny_model("laguna", num_attention_heads_per_layer=[4, 2, 4, 2])
    scores = score_prompt(model, prompt(), swaps=20)
    for part in (scores.positional, scores.symbolic_low, scores.skipped, scores.entropy, scores.attention[..., 0]):
        assert part.isnan().tolist() == [[False] * 4, [False, False, True, True]] * 2


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4), st.integers(0, 3))
def test_an_exchange_moves_two_blocks_and_nothing_else(order, lengths, gap):
    ends = list(itertools.accumulate(length + gap for length in lengths))
    spans = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    ids = torch.arange(ends[-1] + 2)
    one, other = spans[order[0]], spans[order[1]]
    swapped = exchange(ids, one, other)
    here, there = (swapped.ids[slice(*place)].tolist() for place in swapped.places)
    assert (here, there) == (ids[slice(*other)].tolist(), ids[slice(*one)].tolist())
    moved = {*here, *there}
    assert [n for n in swapped.ids.tolist() if n not in moved] == [n for n in ids.tolist() if n not in moved]
    assert torch.equal(swapped.ids[: swapped.start], ids[: swapped.start])
    assert swapped.start == min(one[0], other[0])


def test_cosines_of_faint_attention_are_those_of_strong():
    v, w = torch.tensor([[0.5, 0.1], [0.2, 0.3]]).double(), torch.tensor([[0.4, 0.4], [0.9, 0.0]]).double()
    torch.testing.assert_close(cosines(v.log() - 900, w.log() - 1200), cosines(v.log(), w.log()))
    assert cosines(torch.full((2,), -math.inf), torch.zeros(2)).isnan().all()


@pytest.fixture(scope="module")
def enumerated(stories260k) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """For some models: block attention (L, H, M), all pairs, and the cosines of all swaps (2, P, L, H)."""
    made = binding(AutoTokenizer.from_pretrained(weights("stories260K")), pairs=16, samples=1, seed=5)[0]
    pairs_of_tokens = [(at, at + 2) for at in range(3, 37, 2)]
    found = {}
    for name, model, ids, blocks in (
        ("stories260k", stories260k, torch.tensor([made.ids]), made.blocks),
        ("bloom", shared_model("bloom"), prompt(40), pairs_of_tokens),
        ("gpt2", tiny_model("gpt2", seed=1), prompt(40), pairs_of_tokens),
    ):
        log_d = score_prompt(model, ids, blocks, swaps=1).attention.double().log()
        pairs = torch.combinations(torch.arange(len(blocks)))
        after = run(model, [exchange(ids[0], blocks[i], blocks[j]) for i, j in pairs.tolist()])
        found[name] = log_d, pairs, cosines(log_d[..., pairs].movedim(-2, 0), after)
    return found


def estimates(log_d: Tensor, pairs: Tensor, both: Tensor, tau: float, swaps: int, seed: int) -> list[Tensor]:
    """Value, low, high (2, L, H) and what else an estimate tells, from a sample of swaps that were all run before."""
    chance = inclusion(log_d, pairs, tau, swaps)
    chosen = draw(chance, seed)
    found = [
        estimate(swap_weights(one, pairs, tau), chance, chosen, both[:, chosen][:, :, layer])
        for layer, one in enumerate(log_d)
    ]
    return [torch.stack(part, dim=-2) for part in zip(*found, strict=True)]


@pytest.mark.parametrize("tau", [1e-4, 1e-2, math.inf])
@pytest.mark.parametrize("name", ["stories260k", "bloom", "gpt2"])
def test_intervals_of_samples_hold_the_score_of_all_swaps(name, tau, enumerated):
    log_d, pairs, both = enumerated[name]
    alphas = torch.stack([swap_weights(layer, pairs, tau) for layer in log_d])
    truth = torch.einsum("lhp,splh->slh", alphas, both)
    samples = [estimates(log_d, pairs, both, tau, swaps=40, seed=seed) for seed in range(50)]
    value, low, high, unseen, _ = (torch.stack(part) for part in zip(*samples, strict=True))
    held = ((low - 1e-9 <= truth) & (truth <= high + 1e-9)).double()
    assert held.mean() > 0.93  # promised: 0.95
    assert ((low <= value) & (value <= high)).all()
    assert (value - truth).mean().abs() < 0.01  # no lean to either side
    if tau == math.inf:  # weight on every swap, so much is unseen: they say more than the bounds that hold for certain
        assert (high - low).mean() < unseen.mean() / 2


@pytest.mark.parametrize("run_of_100", [20, 50, 80])
def test_intervals_keep_their_promise_where_all_is_well_behaved(run_of_100):
    cosines = torch.rand(2, 100, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # 300 heads
    weight, chance = torch.full((300, 100), 0.01).double(), torch.full((100,), run_of_100 / 100).double()
    held = []
    for seed in range(20):
        chosen = draw(chance, seed)
        found = estimate(weight, chance, chosen, cosines[:, chosen])
        held.append((found.low <= cosines.mean(1)) & (cosines.mean(1) <= found.high))
    assert 0.94 < torch.stack(held).double().mean() < 0.98


def test_swaps_that_are_always_run_speak_for_themselves_only():
    sure = torch.arange(40) < 10
    weight, chance = torch.full((1, 40), 0.025).double(), sure.double().clamp(min=0.3)
    for seed in range(5):
        chosen = draw(chance, seed)
        cosines = sure[chosen].double().expand(2, 1, -1).mT
        found = estimate(weight, chance, chosen, cosines)
        torch.testing.assert_close(found.value, torch.full((2, 1), 0.25).double())
        torch.testing.assert_close(found.low, torch.full((2, 1), 0.25).double())


@pytest.mark.parametrize("tau", [1e-4, math.inf])
def test_each_swap_is_drawn_with_its_chance(tau, enumerated):
    log_d, pairs, _ = enumerated["gpt2"]
    chance = inclusion(log_d, pairs, tau, 40)
    samples = [draw(chance, seed) for seed in range(2000)]
    assert {len(sample) for sample in samples} == {40}
    often = torch.bincount(torch.cat(samples), minlength=len(pairs)) / len(samples)
    assert (often[chance == 1] == 1).all()
    error = (often - chance).abs() / (chance * (1 - chance) / len(samples)).sqrt().clamp(min=1e-3)
    assert error.max() < 4.5  # of 136 swaps
    favourite = log_d.exp().mean((0, 1)).argmax()
    assert (chance[(pairs == favourite).any(-1)] == 1).all()


def test_a_sample_is_repeatable_and_says_what_it_rests_on():
    model = shared_model("gpt2")
    steps: list[tuple[str, int, int]] = []
    one, again, other = (
        score_prompt(model, prompt(), swaps=30, seed=seed, progress=lambda *step: steps.append(step))
        for seed in (0, 0, 1)
    )
    assert (one.swaps, one.possible) == (30, 231)
    assert torch.equal(one.positional, again.positional)
    assert torch.equal(one.positional_low, again.positional_low)
    assert not torch.equal(one.positional, other.positional)
    assert ((one.unseen >= 0) & (one.unseen < 1)).all()
    assert ((one.effective >= 1) & (one.effective <= 30.001)).all()
    assert steps[:2] == [("swaps", 16, 30), ("swaps", 30, 30)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": prompt().repeat(2, 1)}, "one prompt at a time, got 2"),
        ({"input_ids": prompt().float()}, "whole numbers"),
        ({"input_ids": prompt()[:, :1]}, "one token"),
        ({"blocks": [(2, 5)]}, "at least two"),
        ({"blocks": [(2, 5), (4, 7)]}, "overlap"),
        ({"blocks": [(2, 5), (20, 23)]}, "contains the query"),
        ({"blocks": [(2, 5), (5, 5)]}, "empty"),
        ({"blocks": [(2, 5), 7]}, "pair"),
        ({"tau": 0.0}, "tau"),
        ({"swaps": 0}, "swaps must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"model": torch.nn.Linear(2, 2)}, "Hugging Face"),
    ],
)
def test_bad_input_is_one_sentence(change, words, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    given = {"model": shared_model("gpt2"), "input_ids": prompt(), "blocks": EQUAL} | change
    with pytest.raises(ww.BadInput, match=words) as caught:
        score_prompt(**given)
    assert "\n" not in str(caught.value)
