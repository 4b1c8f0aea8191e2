"""Attention that stays in place when contents are swapped is positional; attention that follows them is symbolic."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import wherewhat as ww
from known_layers import KnownLayer, alibi, known_layers, random_layer, spans, trace_of, window
from wherewhat.core import exclusion
from wherewhat.core import swaps as scores
from wherewhat.core.scores import block_index
from wherewhat.core.swaps import PairScores, Weighting, score_blocks

TAUS = [1e-4, 1e-2, float("inf")]


def axes(result) -> torch.Tensor:
    return torch.stack([result.positional, result.symbolic, result.skipped])


@given(known_layers(biased=False), st.sampled_from(TAUS))
def test_a_nope_head_is_symbolic(layer, tau):
    layer = replace(layer, angles=layer.angles[:0])
    result = ww.score(trace_of(layer), tau=tau)
    assert_close(result.symbolic, torch.ones_like(result.symbolic), atol=1e-5, rtol=0)


@given(known_layers(), st.sampled_from(TAUS))
def test_a_head_whose_contents_are_all_equal_is_positional(layer, tau):
    layer = replace(layer, contents=layer.contents[:, :, :1].expand_as(layer.contents))
    result = ww.score(trace_of(layer), tau=tau)
    assert_close(result.positional, torch.ones_like(result.positional), atol=1e-5, rtol=0)


def test_a_slope_over_equal_contents_is_positional_and_not_symbolic():
    layer = random_layer(planes=0, still=4, kv_heads=2, size=0.0, bias=8 * alibi(2, 9))
    result = ww.score(trace_of(layer))
    assert result.positional.eq(1).all()
    assert result.symbolic.lt(0.05).all()


def test_a_head_that_seeks_one_content_is_symbolic_and_not_positional():
    layer = random_layer(planes=0, still=4)
    contents = torch.zeros_like(layer.contents)
    contents[:, :, 3] = 20 * layer.query / layer.query.norm()
    result = ww.score(trace_of(replace(layer, contents=contents)))
    assert result.symbolic.eq(1).all()
    assert result.positional.lt(1e-3).all()


@pytest.mark.parametrize("tau", TAUS)
def test_a_uniform_head_scores_one_on_both_axes(tau):
    result = ww.score(trace_of(random_layer(kv_heads=2, size=0.0)), tau=tau)
    assert result.positional.eq(1).all()
    assert result.symbolic.eq(1).all()


@given(known_layers(sizes=[1e-3, 30.0, 1e3]), st.data(), st.sampled_from([1e-12, *TAUS]))
def test_scores_lie_between_zero_and_one_whatever_the_logits(layer, data, tau):
    trace = trace_of(layer)
    blocks = data.draw(st.none() | spans(trace.keys))
    for measure in (ww.score, ww.score_frequencies):
        result = measure(trace, blocks=blocks, tau=tau)
        pairs = (count := len(blocks or range(trace.keys))) * (count - 1) // 2
        for score in (result.positional, result.symbolic):
            measured = score[result.skipped < pairs]
            assert ((measured >= 0) & (measured <= 1)).all()
            assert score[result.skipped == pairs].isnan().all()
        both = (result.positional + result.symbolic)[result.skipped < pairs]
        assert (both >= 1 - 1e-5).all()  # two positive vectors and a mirrored one are never far from each other


@pytest.mark.slow
@settings(max_examples=100)
@given(known_layers(), st.data(), st.sampled_from(TAUS))
def test_scores_equal_those_of_explicit_swaps(layer, data, tau):
    """In float64, where a weight of e^(|d_i - d_j| / tau) is exact for every tau."""
    blocks = data.draw(spans(layer.tokens - 1))
    index = block_index(blocks, layer.tokens - 1)
    result = PairScores(*(part[0] for part in score_blocks(layer.placement(), index, [Weighting(tau)])))
    positional, symbolic, skipped = layer.scores(blocks, tau)
    seen = skipped < len(blocks) * (len(blocks) - 1) // 2
    assert_close(result.positional[seen].double(), positional[seen], atol=2e-6, rtol=0)
    assert_close(result.symbolic[seen].double(), symbolic[seen], atol=2e-6, rtol=0)
    assert torch.equal(result.skipped, skipped)


@pytest.mark.slow
@settings(max_examples=100)
@given(known_layers(), st.data(), st.sampled_from(TAUS), st.booleans())
def test_a_captured_layer_scores_as_with_explicit_swaps(layer, data, tau, without_first):
    """From float32 queries and keys to the score, through rotation, coupling and grouping."""
    blocks = data.draw(spans(layer.tokens - 1))
    kept = [block for block in blocks if block[0] > 0 or not without_first]
    if len(kept) < 2:
        return
    result = ww.score(trace_of(layer), blocks=blocks, tau=tau, without_first=without_first)
    truth = layer.without_first() if without_first else layer
    positional, symbolic, skipped = truth.scores(kept, tau)
    seen = skipped < len(kept) * (len(kept) - 1) // 2
    tolerance = truth.rounding(tau)
    assert_close(result.positional[:, 0][seen].double(), positional[seen], atol=tolerance, rtol=0)
    assert_close(result.symbolic[:, 0][seen].double(), symbolic[seen], atol=tolerance, rtol=0)
    assert torch.equal(result.skipped[:, 0], skipped.float())


def test_without_first_removes_key_zero_from_the_softmax_too():
    """A sink with nearly all attention shrinks the gaps between the others; without it they have their full weight."""
    layer = random_layer(planes=2, still=2)
    contents = layer.contents.clone()
    contents[:, :, 0, 4:] = 10 * layer.query[:, :, 4:]
    layer = replace(layer, contents=contents)
    trace, blocks = trace_of(layer), [(at, at + 1) for at in range(1, 8)]
    result = ww.score(trace, tau=1e-2, without_first=True)
    positional, symbolic, _ = layer.without_first().scores(blocks, tau=1e-2)
    assert_close(result.positional[:, 0].double(), positional, atol=1e-4, rtol=0)
    assert_close(result.symbolic[:, 0].double(), symbolic, atol=1e-4, rtol=0)
    assert (ww.score(trace, blocks=blocks, tau=1e-2).positional[:, 0] - result.positional[:, 0]).abs() > 0.01


@pytest.mark.parametrize("width", range(1, 9))
def test_pairs_outside_the_window_are_skipped_and_counted(width):
    layer = random_layer(tokens=9, kv_heads=2, bias=window(9, width))
    hidden = 8 - width
    result = ww.score(trace_of(layer))
    assert result.skipped.eq(hidden * (hidden - 1) / 2).all()
    assert torch.equal(result.skipped[:, 0], layer.scores([(at, at + 1) for at in range(8)], 1e-4)[2].float())
    assert result.positional.isfinite().all()


def test_a_head_that_sees_none_of_the_blocks_has_no_score():
    result = ww.score(trace_of(random_layer(tokens=9, bias=window(9, 2))), blocks=[(0, 2), (2, 4), (4, 6)])
    assert result.positional.isnan().all()
    assert result.symbolic.isnan().all()
    assert result.skipped.eq(3).all()


@given(known_layers(), st.data())
def test_the_order_of_the_blocks_does_not_matter(layer, data):
    trace = trace_of(layer)
    blocks = data.draw(spans(trace.keys))
    assert_close(axes(ww.score(trace, blocks)), axes(ww.score(trace, sorted(blocks))), equal_nan=True)


@given(known_layers(sizes=[0.5, 40.0]), st.randoms(use_true_random=False))
def test_permuting_heads_permutes_their_scores(layer, random):
    heads, kv_heads = layer.query.shape[1], layer.contents.shape[1]
    order = random.sample(range(kv_heads), kv_heads)
    groups = torch.arange(heads).unflatten(0, (kv_heads, -1))[order].flatten()
    bias = layer.bias
    renamed = replace(
        layer,
        query=layer.query[:, groups],
        contents=layer.contents[:, order],
        sinks=None if layer.sinks is None else layer.sinks[groups],
        bias=bias if bias is None or bias.shape[1] == 1 else bias[:, groups],
    )
    assert torch.equal(axes(ww.score(trace_of(renamed))), axes(ww.score(trace_of(layer)))[..., groups])


def prompt(layer: KnownLayer, index: int) -> KnownLayer:
    return replace(layer, query=layer.query[[index]], contents=layer.contents[[index]])


@pytest.mark.parametrize("bias", [None, window(9, 5), alibi(4, 9), window(9, 5) + alibi(4, 9)])
@pytest.mark.parametrize("size", [1.0, 50.0])
def test_prompts_of_a_batch_are_independent(bias, size):
    """Heads of small and of large logits, with a bias of each shape that broadcasts."""
    layer = random_layer(
        tokens=9, batch=3, kv_heads=2, groups=2, still=1, size=size, bias=bias, sinks=torch.arange(4.0).double()
    )
    layer = replace(layer, query=layer.query * torch.tensor([0.01, 1.0, 5.0]).double()[:, None, None])
    together = trace_of(layer)
    blocks = [(0, 2), (3, 5), (6, 8)]
    for measure in (lambda trace: axes(ww.score(trace, blocks)), lambda trace: axes(ww.score_frequencies(trace))):
        alone = torch.cat([measure(trace_of(prompt(layer, index))) for index in range(3)], dim=1)
        assert_close(measure(together), alone, atol=1e-5, rtol=0)
    alone = torch.cat([torch.stack(ww.exclusion(trace_of(prompt(layer, index)))) for index in range(3)], dim=1)
    assert_close(torch.stack(ww.exclusion(together)), alone)
    assert_close(ww.entropy(together), torch.cat([ww.entropy(trace_of(prompt(layer, index))) for index in range(3)]))


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 20, 300])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("size", [1.0, 60.0])
@pytest.mark.parametrize("bias", [None, window(16, 9) + alibi(4, 16)], ids=["open", "windowed"])
def test_pieces_and_tiles_do_not_change_the_scores(monkeypatch, piece, width, size, bias):
    layer = random_layer(tokens=16, batch=2, kv_heads=2, groups=2, still=1, size=size, bias=bias, softcap=20.0)
    trace, blocks = trace_of(layer), [(at, at + width) for at in range(0, 16 - width, width)]

    def everything() -> list[torch.Tensor]:
        whole, alone = ww.score(trace, blocks, tau=1e-2), ww.score_frequencies(trace, blocks, tau=1e-2)
        return [axes(whole), axes(alone), *ww.exclusion(trace)]

    at_once = everything()
    monkeypatch.setattr(scores, "PIECE", piece)
    monkeypatch.setattr(exclusion, "PIECE", piece)
    for in_pieces, expected in zip(everything(), at_once, strict=True):
        assert_close(in_pieces, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_a_small_tau_selects_the_widest_gap():
    layer = random_layer(size=3.0)
    rows = layer.log_attention()[0, 0, :-1]
    widest = sorted([int(rows.argmax()), int(rows.argmin())])
    positional, symbolic, _ = layer.scores([(at, at + 1) for at in widest], tau=1.0)
    result = ww.score(trace_of(layer), tau=1e-9)
    assert_close(result.positional[0].double(), positional, atol=1e-5, rtol=0)
    assert_close(result.symbolic[0].double(), symbolic, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tau", [1e-40, 1e-300, sys.float_info.min])
def test_any_positive_tau_is_accepted(tau):
    trace = trace_of(random_layer(size=3.0))
    assert_close(ww.score(trace, tau=tau).positional, ww.score(trace, tau=1e-9).positional)


def test_layers_with_fewer_heads_are_padded_with_nan():
    few, many = random_layer(0, kv_heads=1), random_layer(1, kv_heads=3)
    result = ww.score(trace_of(few, many))
    assert result.positional.shape == (1, 2, 3)
    assert result.positional[0, 0].isnan().tolist() == [False, True, True]
    assert torch.equal(result.positional[:, 1:], ww.score(trace_of(many)).positional)
    assert ww.exclusion(trace_of(few, many)).variance[0, 0].isnan().tolist() == [False, True, True]
    assert ww.entropy(trace_of(few, many))[0, 0].isnan().tolist() == [False, True, True]


def test_the_entropy_of_a_uniform_head_is_one():
    assert_close(ww.entropy(trace_of(random_layer(kv_heads=2, size=0.0))), torch.ones(1, 1, 2))


def test_the_entropy_of_a_head_with_one_key_is_zero():
    layer = random_layer(planes=0, still=4)
    contents = torch.zeros_like(layer.contents)
    contents[:, :, 2] = 1e3 * layer.query
    assert_close(ww.entropy(trace_of(replace(layer, contents=contents))), torch.zeros(1, 1, 1))


@given(known_layers())
def test_entropy_is_that_of_the_attention_before_the_query(layer):
    row = layer.logits()[..., :-1].softmax(-1)
    truth = -torch.special.xlogy(row, row).sum(-1) / torch.tensor(layer.tokens - 1.0).log()
    assert_close(ww.entropy(trace_of(layer))[:, 0].double(), truth, atol=1e-5, rtol=1e-4)


LONG = """
import resource, time, torch
torch.set_num_threads(1)
import wherewhat as ww
from wherewhat.core.rotation import Rotation
from wherewhat.core.trace import AttentionLayer, Trace
tokens = 32768 + 1
rotation = Rotation.half_split(10_000.0 ** -(torch.arange(32) / 32), head_dim=64)
layer = AttentionLayer(0, torch.randn(1, 1, 1, 64), torch.randn(1, 1, tokens, 64), rotation, scaling={scaling})
trace = Trace((layer,), (tokens - 1,), tokens - 1)
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
result = ww.score(trace, blocks=[(at, at + 64) for at in range(0, tokens - 1, 64)])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.perf_counter() - start)
assert 0 <= result.positional.item() <= 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [0.125, 5.0])
def test_a_prompt_of_32768_tokens_needs_little_memory_and_time(scaling):
    """One head, 512 blocks of 64: the table alone would take 4.3 GB."""
    answer = subprocess.run(
        [sys.executable, "-c", LONG.format(scaling=scaling)], capture_output=True, text=True, check=True, timeout=300
    )
    kilobytes, seconds = map(float, answer.stdout.split())
    assert kilobytes < 600_000
    assert seconds < 60
