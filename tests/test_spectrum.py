"""Shares, Toeplitz parts and singular values against regressions, dense matrices, closed forms and the model's own
attention."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

import tiny
import wherewhat as ww
from wherewhat.core.rotation import Rotation
from wherewhat.core.spectrum import Contents, SingularValues, singular_values, two_way, with_base
from wherewhat.core.toeplitz import (
    distance_share,
    square,
    toeplitz_part,
    toeplitz_share,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


ANGLES = 10_000.0 ** -(torch.arange(24, dtype=torch.float64) / 24)


def explained(values: np.ndarray, *factors: np.ndarray) -> float:
    """The sum of squares that dummies of these factors explain, by regression."""
    dummies = np.concatenate([np.eye(factor.max() + 1)[factor] for factor in factors], 1)
    fitted = dummies @ np.linalg.lstsq(dummies, values, rcond=None)[0]
    return float((fitted**2).sum())


@pytest.mark.parametrize("hidden", [(), (2, 5)])
def test_shares_are_those_of_a_regression(hidden):
    table = torch.randn(3, 6, 7) + torch.arange(7) / 3
    seen = torch.ones(3, 7, dtype=torch.bool)
    seen[:, list(hidden)] = False
    shares = two_way(table.where(seen[:, None], -torch.inf), seen).shares()
    for at in range(3):
        values = table[at][:, seen[at]].double().numpy()
        content, position = (index.flatten() for index in np.indices(values.shape))
        centred = values.flatten() - values.mean()
        parts = [explained(centred, factor) for factor in (content, position)]
        expected = [*parts, (centred**2).sum() - sum(parts)] / (centred**2).sum()
        assert [share[at].item() for share in shares] == pytest.approx(expected, abs=1e-9)


def test_the_parts_add_up_to_the_table():
    table = torch.randn(4, 6, 7)
    made = two_way(table)
    whole = made.mean[:, None, None] + made.content[..., None] + made.position[:, None] + made.interaction
    assert (whole - table).abs().max() < 1e-12
    assert made.interaction.sum(-1).abs().max() < 1e-12
    assert made.interaction.sum(-2).abs().max() < 1e-12


def test_a_head_without_positions_is_all_content_and_alibi_couples_nothing():
    ids = torch.randint(10, 40, (1, 24))
    slopes = {"bloom": 2.0 ** -torch.tensor([2, 4, 6, 8]), "smollm3": torch.zeros(4)}  # published, for four heads
    for family, slope in slopes.items():
        trace = ww.capture(tiny.tiny_model(family, 0), ids)
        still = [layer for layer, at in enumerate(trace.attention) if not at.rotation.rotating]
        assert still
        for layer in still:
            made = two_way(trace.placements(layer).table())
            assert made.interaction.abs().max() < 1e-5
            assert (made.position[0].diff(dim=-1) - slope[:, None]).abs().max() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_the_toeplitz_part_is_the_mean_along_each_diagonal(causal):
    logits = torch.randn(2, 9, 9, dtype=torch.float64)
    seen = torch.ones(9, 9, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    part = toeplitz_part(logits, seen)
    for offset in range(-8, 9):
        along = part.diagonal(offset, -2, -1)
        expected = 0 if causal and offset > 0 else logits.diagonal(offset, -2, -1).mean(-1, keepdim=True)
        assert (along - expected).abs().max() < 1e-12


@pytest.mark.parametrize("reach", [20, 5])
def test_shares_of_distance_are_those_of_a_regression(reach):
    logits = torch.randn(2, 12, 12).double()
    logits += square(torch.arange(12.0).double().sqrt()) + 3 * torch.randn(12, 1)
    distance = torch.arange(12)[:, None] - torch.arange(12)
    seen = (distance >= 0) & (distance < reach)
    query, apart = torch.where(seen)[0].numpy(), distance[seen].numpy()
    found = distance_share(logits, seen), toeplitz_share(logits, seen)
    for at in range(2):
        values = logits[at][seen].numpy()
        by_query = explained(values, query)
        expected = (explained(values, query, apart) - by_query) / ((values**2).sum() - by_query)
        assert found[0][at].item() == pytest.approx(expected, abs=1e-9)
        centred = values - values.mean()
        assert found[1][at].item() == pytest.approx(explained(centred, apart) / (centred**2).sum(), abs=1e-9)


def test_a_bias_by_key_position_is_a_bias_by_distance_to_the_softmax():
    """Bloom adds slope * j, ALiBi says slope * (j - i): the same attention, and only one of them is Toeplitz."""
    logits = torch.arange(10.0).expand(10, 10).double()
    seen = torch.ones(10, 10, dtype=torch.bool).tril()
    assert distance_share(logits, seen).item() == pytest.approx(1)
    assert toeplitz_share(logits, seen).item() < 0.9


@pytest.mark.parametrize("tokens", [5, 16, 40])
def test_singular_values_are_those_of_the_whole_matrix(tokens):
    queries, keys = torch.randn(2, 3, tokens, 16, dtype=torch.float64).unbind()
    bias = square(-torch.arange(tokens, dtype=torch.float64)).expand(3, tokens, tokens)
    for added, matrix in ((None, queries @ keys.mT), (bias, queries @ keys.mT + bias)):
        found = singular_values(queries, keys, added)
        expected = np.linalg.svd(matrix.numpy(), compute_uv=False)[:, : min(tokens, 16)]
        assert found.values.numpy() == pytest.approx(expected, rel=1e-9)
        assert found.condition.numpy() == pytest.approx(expected[:, 0] / expected[:, -1], rel=1e-9)


def test_effective_rank_counts_equal_singular_values():
    assert SingularValues(torch.tensor([2.0, 2, 2, 0, 0])).effective_rank.item() == pytest.approx(3)
    assert SingularValues(torch.tensor([5.0, 0, 0])).effective_rank.item() == pytest.approx(1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_singular_values_of_a_trace_are_those_of_its_logits(family):
    """Against a dense decomposition of queries keys^T; a bias is added if it does not mask anything."""
    trace = ww.capture(tiny.tiny_model(family, 0), torch.randint(10, 40, (2, 20)), queries=range(1, 20))
    bias = torch.randn(1, trace.attention[0].queries.shape[1], 19, 20)
    biased = replace(trace, attention=tuple(replace(layer, bias=bias) for layer in trace.attention))
    for seen, added in ((trace, 0.0), (biased, bias[..., 1:])):
        found = ww.singular_values(seen)
        for layer, one in zip(trace.attention, found, strict=True):
            keys = layer.keys.repeat_interleave(layer.queries.shape[1] // layer.keys.shape[1], dim=1)
            logits = (layer.queries @ keys.mT * layer.scaling)[..., 1:].double() + added
            expected = np.linalg.svd(logits.numpy(), compute_uv=False)[..., : min(19, layer.queries.shape[3])]
            assert one.values.numpy() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ww.BadInput, match="a trace, or queries and keys"):
        ww.singular_values(torch.randn(4, 4))


@pytest.mark.weights
def test_contents_rotated_again_give_the_attention_of_hugging_face(stories15m):
    ids = torch.randint(3, 3000, (1, 40))
    trace = ww.capture(stories15m, ids, queries=range(1, 40))
    theirs = deepcopy(stories15m)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        expected = theirs(ids, output_attentions=True).attentions
    unseen = torch.ones(39, 39, dtype=torch.bool).triu(1)
    for layer, rows in zip(trace.attention, expected, strict=True):
        queries, keys = Contents.of(layer).rotated()
        found = (queries @ keys.mT).masked_fill(unseen, -torch.inf).softmax(-1)
        without_first = rows[..., 1:, 1:] / rows[..., 1:, 1:].sum(-1, keepdim=True)
        assert (found - without_first).abs().max() < 1e-4


@pytest.mark.weights
def test_logits_are_the_real_part_of_gram_matrices_one_per_frequency(stories15m):
    """L = Re sum_k A_k o E_k with A_k = q_k k_k^H, and the logits without position are Re sum_k A_k."""
    trace = ww.capture(stories15m, torch.randint(3, 3000, (1, 30)), queries=range(1, 30))
    contents = Contents.of(trace.attention[2])
    rotation, distance = contents.rotation, torch.arange(29)[:, None] - torch.arange(29)
    planes = [torch.complex(x[..., rotation.first], x[..., rotation.second]) for x in (contents.queries, contents.keys)]
    grams = torch.einsum("bhnf,bhmf->bhfnm", planes[0], planes[1].conj())
    waves = torch.polar(torch.ones(()).double(), rotation.angles.double()[:, None, None] * distance)
    queries, keys = contents.rotated()
    assert ((grams * waves).sum(2).real - queries @ keys.mT).abs().max() < 1e-4
    assert (grams.sum(2).real - contents.queries @ contents.keys.mT).abs().max() < 1e-9


def test_another_base_rotates_like_a_model_with_that_base():
    llama = Rotation.half_split(1e4 ** -(torch.arange(4) / 4), head_dim=10)
    assert torch.allclose(with_base(llama, 500.0).angles, 500.0 ** -(torch.arange(4) / 4))
    assert torch.equal(with_base(llama, 1e4).angles, llama.angles)
    mixed = Rotation.interleaved(torch.tensor([0.0, 0.01, -1.0]), head_dim=6)
    assert torch.allclose(with_base(mixed, 100.0).angles, torch.tensor([0, 0.1, -1]))


def test_queries_of_all_positions_are_needed():
    trace = ww.capture(tiny.tiny_model("llama", 0), torch.randint(10, 40, (1, 12)))
    with pytest.raises(ww.BadInput, match=r"range\(1, tokens\)"):
        ww.singular_values(trace)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_matrix_of_distances_is_that_of_scipy(size):
    column, row = torch.randn(2, size, dtype=torch.float64)
    row[0] = column[0]
    assert torch.equal(square(column, row), torch.from_numpy(toeplitz(column.numpy(), row.numpy())))
    assert torch.equal(square(column), torch.from_numpy(toeplitz(column.numpy())))
