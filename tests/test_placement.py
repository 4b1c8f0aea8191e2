"""The placement table holds the logit of every content at every position."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

import wherewhat as ww
from known_layers import alibi, known_layers, random_layer, trace_of, window
from wherewhat.core.trace import Trace


@given(known_layers())
def test_the_table_is_the_logit_of_each_content_put_at_each_place(layer):
    trace, table = trace_of(layer), layer.table()
    for head in range(table.shape[1]):
        assert_close(trace.placement(0, head).double(), table[:, head], atol=1e-4, rtol=1e-5)


@given(known_layers())
def test_the_diagonal_is_the_real_logits(layer):
    trace = trace_of(layer)
    for head in range(layer.query.shape[1]):
        diagonal = trace.placement(0, head).diagonal(dim1=-2, dim2=-1)
        assert_close(diagonal.double(), layer.logits()[:, head, :-1], atol=1e-4, rtol=1e-5)
    assert_close(trace.placements(0).logits().double(), layer.logits(), atol=1e-4, rtol=1e-5)


@given(known_layers())
def test_attention_rows_are_the_softmax_of_the_logits(layer):
    rows = trace_of(layer).attention_rows(0)
    assert_close(rows.double(), layer.log_attention().exp(), atol=1e-5, rtol=1e-4)
    total = rows.sum(-1)
    assert (total < 1).all() if layer.sinks is not None else torch.allclose(total, torch.ones_like(total))


def test_layers_and_heads_count_from_the_end_too():
    trace = trace_of(random_layer(0, kv_heads=2), random_layer(1, kv_heads=2))
    assert torch.equal(trace.placement(-1, -2), trace.placement(1, 0))


def test_the_same_pass_seen_from_an_earlier_query():
    whole = random_layer(tokens=10, kv_heads=2, groups=2, sinks=torch.tensor([0.5, 1, 0, 2]).double())
    turns = whole.matrices()
    queries = torch.randn(1, 4, 2, 4, dtype=torch.float64)
    turned = torch.stack([queries[:, :, 0] @ turns[5].T, queries[:, :, 1] @ turns[9].T], dim=2)
    layer = replace(whole.captured(), queries=turned.float())
    trace = Trace((layer,), positions=(5, 9), query=9)
    for row, position in enumerate((5, 9)):
        alone = replace(whole, query=queries[:, :, row], contents=whole.contents[:, :, : position + 1])
        seen = trace.at(position)
        assert seen.keys == position
        assert_close(seen.placement(0, 3).double(), alone.table()[:, 3], atol=1e-5, rtol=1e-5)
        assert_close(ww.score(seen).positional, ww.score(trace_of(alone)).positional)


def test_a_window_and_a_slope_belong_to_their_query():
    whole = random_layer(tokens=8, kv_heads=2)
    rows = torch.stack([torch.nn.functional.pad(alibi(2, 5), (0, 3), value=-torch.inf), window(8, 2) + alibi(2, 8)], 2)
    queries = whole.captured().queries.expand(-1, -1, 2, -1)
    trace = Trace((replace(whole.captured(), queries=queries, bias=rows.float()),), positions=(4, 7), query=7)
    assert trace.attention_rows(0)[..., :5].eq(0).all()
    assert trace.at(4).attention_rows(0).gt(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_captures_are_measured_in_float32(dtype):
    layer = random_layer(tokens=12, kv_heads=2, groups=2, size=2.0)
    trace = trace_of(layer, dtype=dtype)
    assert trace.placement(0, 0).dtype == torch.float32
    rounded = replace(
        trace.attention[0], queries=trace.attention[0].queries.float(), keys=trace.attention[0].keys.float()
    )
    same = replace(trace, attention=(rounded,))
    for measure in (ww.score, ww.score_frequencies):
        half, full = measure(trace), measure(same)
        assert half.positional.dtype == half.symbolic.dtype == torch.float32
        assert torch.equal(half.positional, full.positional)
        assert torch.equal(half.symbolic, full.symbolic)
    assert torch.equal(ww.exclusion(trace).bound, ww.exclusion(same).bound)
    assert torch.equal(ww.entropy(trace), ww.entropy(same))
