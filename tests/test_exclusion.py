"""A head whose logits vary cannot be both positional and symbolic."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

import wherewhat as ww
from known_layers import KnownLayer, alibi, known_layers, random_layer, trace_of
from wherewhat.core.exclusion import deviations


def from_table(layer: KnownLayer) -> Tensor:
    """Variance and both deviations (3, B, H) from the explicit table, over the visible keys of each head."""
    table, seen = layer.table(), layer.seen()
    results = torch.zeros(3, *table.shape[:2], dtype=torch.float64)
    for prompt, head in itertools.product(*map(range, table.shape[:2])):
        places = seen.expand(*table.shape[:2], -1)[prompt, head].nonzero().flatten()
        part = table[prompt, head][places][:, places]
        diagonal = part.diagonal()
        results[0, prompt, head] = diagonal.var(correction=0)
        results[1, prompt, head] = (part - diagonal[None, :]).square().mean()
        results[2, prompt, head] = (part - diagonal[:, None]).square().mean()
    return results


def over_permutations(layer: KnownLayer) -> Tensor:
    """The same three numbers as in the theorem: the average over all N! orders of the contents."""
    keys = layer.tokens - 1
    logits = layer.logits()[..., :-1]
    positional, symbolic = [], []
    for order in itertools.permutations(range(keys)):
        moved = layer.logits(layer.contents[:, :, [*order, keys]])[..., :-1]
        positional.append((moved - logits).square().mean(-1))
        symbolic.append((moved - logits[..., list(order)]).square().mean(-1))
    return torch.stack([logits.var(-1, correction=0), torch.stack(positional).mean(0), torch.stack(symbolic).mean(0)])


@given(known_layers(sizes=[0.01, 1.0, 30.0, 1e3]))
def test_variance_is_at_most_the_two_deviations(layer):
    result = ww.exclusion(trace_of(layer))
    assert (result.variance <= result.bound * (1 + 1e-6)).all()
    assert torch.equal(result.bound, result.positional_deviation + result.symbolic_deviation)


@given(known_layers())
def test_deviations_are_those_of_the_explicit_table(layer):
    result = torch.stack(ww.exclusion(trace_of(layer)))[:, :, 0].double()
    truth = from_table(layer)
    assert_close(result, truth, rtol=1e-4, atol=1e-6 * (1 + truth.max().item()))


@pytest.mark.parametrize("tokens", [3, 5, 7])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("bias", [False, True])
def test_deviations_are_the_average_over_all_permutations(tokens, softcap, bias):
    layer = random_layer(
        tokens=tokens, kv_heads=2, still=1, size=2.0, softcap=softcap, bias=alibi(2, tokens) if bias else None
    )
    result = torch.stack(ww.exclusion(trace_of(layer)))[:, :, 0].double()
    assert_close(result, over_permutations(layer), rtol=1e-4, atol=1e-6)
    assert_close(from_table(layer), over_permutations(layer))


@given(known_layers(biased=False))
def test_a_nope_head_has_no_symbolic_deviation(layer):
    result = ww.exclusion(trace_of(replace(layer, angles=layer.angles[:0])))
    assert (result.symbolic_deviation <= 1e-9 * (1 + result.variance)).all()
    assert (result.positional_deviation >= result.variance * (1 - 1e-5)).all()


@given(known_layers())
def test_a_head_of_equal_contents_has_no_positional_deviation(layer):
    equal = replace(layer, contents=layer.contents[:, :, :1].expand_as(layer.contents))
    result = ww.exclusion(trace_of(equal))
    # Keys are float32, so their contents are equal only up to rounding.
    assert (result.positional_deviation <= 1e-9 * (1 + equal.logits()[..., :-1][equal.seen()].square().max())).all()


def test_the_bound_is_met_when_every_placement_lies_halfway():
    """Content and place contribute equally to the logit: M[a, b] is the mean of M[a, a] and M[b, b]."""
    layer = random_layer(planes=0, still=1, tokens=6)
    ramp = torch.arange(6, dtype=torch.float64)
    layer = replace(layer, query=torch.ones(1, 1, 1).double(), contents=ramp[None, None, :, None], scaling=1.0)
    result = ww.exclusion(trace_of(replace(layer, bias=ramp[None, None])))
    assert_close(result.variance, result.bound)
    assert_close(result.variance, torch.full((1, 1, 1), 8.0))


def test_deviations_of_a_table_vanish_on_its_diagonal():
    by_place, by_content = deviations(torch.randn(3, 5, 5))
    assert by_place.diagonal(dim1=-2, dim2=-1).eq(0).all()
    assert by_content.diagonal(dim1=-2, dim2=-1).eq(0).all()
