"""A head of dimension D is a sum of D / 2 two-dimensional heads, one per angle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import wherewhat as ww
from known_layers import alibi, known_layers, random_layer, spans, trace_of, window
from wherewhat.core.frequency import frequency_logits, mean_frequency, pair_use, softmax_mean_frequency
from wherewhat.core.swaps import PairScores, Weighting, score_blocks
from wherewhat.lab import Shape, Transformer
from wherewhat.studies.multihop.published import published


@given(known_layers())
def test_the_logits_of_the_frequencies_add_up_to_the_heads(layer):
    shares = frequency_logits(trace_of(layer).placements(0))
    bare = replace(layer, softcap=None, bias=None)
    assert_close(shares.sum(-2).double(), bare.logits(), atol=1e-4, rtol=1e-5)
    for frequency in range(shares.shape[-2]):
        alone = replace(bare.alone(frequency), bias=None)
        assert_close(shares[..., frequency, :].double(), alone.logits(), atol=1e-4, rtol=1e-5)


@given(known_layers(longest=9), st.data(), st.sampled_from([1e-2, float("inf")]))
def test_each_frequency_scores_as_a_separate_head(layer, data, tau):
    trace = trace_of(layer)
    blocks = data.draw(spans(trace.keys))
    pairs = len(blocks) * (len(blocks) - 1) // 2
    result = ww.score_frequencies(trace, blocks, tau)
    for frequency in range(len(trace.frequency_ids)):
        alone = layer.alone(frequency)
        positional, symbolic, skipped = alone.scores(blocks, tau)
        seen, tolerance = skipped < pairs, alone.rounding(tau)
        assert_close(result.positional[:, 0, :, frequency][seen].double(), positional[seen], atol=tolerance, rtol=0)
        assert_close(result.symbolic[:, 0, :, frequency][seen].double(), symbolic[seen], atol=tolerance, rtol=0)
        assert torch.equal(result.skipped[:, 0, :, frequency], skipped.float())


def test_a_frequency_in_float64_scores_as_with_explicit_swaps():
    layer = random_layer(planes=1, size=4.0, kv_heads=2)
    blocks = [(at, at + 1) for at in range(8)]
    result = score_blocks(layer.alone(0).placement(), torch.arange(8)[:, None], [Weighting(1e-4)])
    result = PairScores(*(part[0] for part in result))
    positional, symbolic, _ = layer.scores(blocks, tau=1e-4)
    assert_close(result.positional.double(), positional, atol=2e-6, rtol=0)
    assert_close(result.symbolic.double(), symbolic, atol=2e-6, rtol=0)


@pytest.mark.parametrize("size", [0.2, 2.0, 20.0])
@pytest.mark.parametrize("width", [1, 4])
def test_frequencies_at_far_positions_score_as_with_explicit_swaps(size, width):
    """Weak, gentle and steep logits, at positions where float32 rounds phases to a thousandth of a radian."""
    layer = random_layer(tokens=20_001, planes=2, size=size)
    blocks = [(at, at + width) for at in (100, 5_003, 9_998, 15_101, 19_777, 19_990)]
    result = ww.score_frequencies(trace_of(layer), blocks, tau=float("inf"))
    for frequency in range(2):
        alone = layer.alone(frequency)
        positional, symbolic, _ = alone.scores(blocks, tau=float("inf"))
        tolerance = alone.rounding(tau=float("inf"))
        assert_close(result.positional[:, 0, :, frequency].double(), positional, atol=tolerance, rtol=0)
        assert_close(result.symbolic[:, 0, :, frequency].double(), symbolic, atol=tolerance, rtol=0)


def test_non_rotary_dimensions_are_symbolic_and_come_last():
    result = ww.score_frequencies(trace_of(random_layer(planes=2, still=3, kv_heads=2)))
    assert result.symbolic.shape == (1, 1, 2, 3)
    assert_close(result.symbolic[..., -1], torch.ones(1, 1, 2))


def test_a_slow_frequency_is_more_symbolic_than_a_fast_one():
    layer = random_layer(planes=2, tokens=12, size=2.0, kv_heads=8)
    layer = replace(layer, angles=torch.tensor([1.0, 1e-4]).double())
    symbolic = ww.score_frequencies(trace_of(layer)).symbolic
    assert (symbolic[..., 1] > 0.999).all()
    assert (symbolic[..., 0] < symbolic[..., 1]).all()


def test_the_frequency_axis_of_a_mixed_trace_has_nan_where_a_layer_has_nothing():
    rope, nope = random_layer(0, planes=2, kv_heads=1), random_layer(1, planes=0, still=6, kv_heads=3)
    partial = random_layer(2, planes=1, still=2, kv_heads=2)
    trace = trace_of(rope, nope, partial)
    assert trace.frequency_ids == [1, 2, 0]
    assert trace.layers == [0, 1, 2]
    fast, slow, nan = *rope.angles.tolist(), torch.nan
    expected = torch.tensor([[fast, slow, nan], [nan, nan, 0.0], [fast, nan, 0.0]])
    assert_close(trace.angles, expected, equal_nan=True)
    empty_head = expected.isnan()[:, None] | (torch.arange(3)[:, None] >= torch.tensor([1, 3, 2])[:, None, None])
    for values in (ww.score_frequencies(trace).positional, *ww.frequency_use(trace)):
        assert values.shape == (1, 3, 3, 3)
        assert torch.equal(values.isnan()[0], empty_head)
    alone = ww.score_frequencies(trace_of(nope)).symbolic
    assert torch.equal(ww.score_frequencies(trace).symbolic[:, 1, :, 2], alone[:, 0, :, 0])


def test_measured_float64_angles_can_be_mixed_with_stated_ones():
    stated = random_layer(0).captured()
    measured = replace(stated, rotation=replace(stated.rotation, angles=stated.rotation.angles.double()))
    trace = replace(trace_of(random_layer(0)), attention=(stated, measured))
    assert torch.equal(trace.angles[0], trace.angles[1])
    result = ww.score_frequencies(trace)
    assert torch.equal(result.positional[:, 0], result.positional[:, 1])


@given(known_layers())
def test_frequency_use_is_the_norm_and_the_maximum_over_visible_keys(layer):
    use = ww.frequency_use(trace_of(layer))
    for frequency in range(use.norm.shape[-1]):
        logits = replace(layer.alone(frequency), bias=None).logits()[..., :-1]
        unseen = ~layer.seen()
        norm, maximum = logits.masked_fill(unseen, 0).norm(dim=-1), logits.masked_fill(unseen, -torch.inf).amax(-1)
        assert_close(use.norm[:, 0, :, frequency].double(), norm, atol=1e-4, rtol=1e-5)
        assert_close(use.maximum[:, 0, :, frequency].double(), maximum, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bias", [alibi(2, 9), window(9, 4)])
def test_a_single_frequency_keeps_windows_but_drops_slopes(bias):
    layer = random_layer(kv_heads=2, bias=bias, softcap=1.0, sinks=torch.ones(2).double())
    alone = trace_of(layer).placements(0).by_frequency()
    assert alone.softcap is None
    assert alone.sink is None
    row = alone.log_attention().exp()
    assert_close(row.sum(-1), torch.ones(1, 2, 2))
    assert torch.equal(row.eq(0), bias.isinf()[:, :, None].expand_as(row))


@pytest.mark.parametrize(
    ("maximum", "frequency"),
    [
        ([1.0, 0.0, 0.0], 1),
        ([0.0, 0.0, 7.0], 3),
        ([1.0, 1.0, 1.0], 2),
        ([-5.0, 1.0, -9.0], 2),
        ([3.0, 0.0, 1.0], 2),  # 1.5 rounds to the even neighbour
        ([9.0, 0.0, 1.0], 1),  # 1.2
    ],
)
def test_the_mean_frequency_weighs_ids_with_the_positive_maximum(maximum, frequency):
    assert mean_frequency(torch.tensor(maximum)).item() == frequency


def test_the_mean_frequency_has_one_value_per_head():
    maximum = torch.rand(2, 3, 4, 8)
    ids = torch.arange(1, 9)
    expected = ((maximum * ids).sum(-1) / maximum.sum(-1)).round()
    assert torch.equal(mean_frequency(maximum), expected)


def test_the_published_use_gives_the_published_table_of_mean_frequency_ids():
    use, table = published("frequency-use"), published("mean-frequency")
    for task in ("number", "letter"):
        curves = use[use["task"] == task].pivot(index="layer", columns="frequency", values="use")
        means = softmax_mean_frequency(torch.tensor(curves.to_numpy()))
        assert means.round().int().tolist() == table.loc[table["task"] == task, "mean_id"].tolist()


def test_pair_use_is_the_largest_product_of_all_causal_pairs():
    model = Transformer(Shape(11, layers=2, heads=2, width=16, hidden=8), seed=3)
    tokens = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(0))
    trace = model.trace(tokens, range(5))
    found = pair_use(trace)
    for layer, head, plane in [(0, 0, 0), (1, 1, 3), (1, 0, 2)]:
        queries = trace.attention[layer].queries[1, head, :, 2 * plane : 2 * plane + 2]
        keys = trace.attention[layer].keys[1, head, :, 2 * plane : 2 * plane + 2]
        wanted = max(float(queries[i] @ keys[j]) for i in range(5) for j in range(i + 1))
        assert float(found[1, layer, head, plane]) == pytest.approx(wanted, rel=1e-5)
