"""Shares, Toeplitz parts and spectra against regressions, dense matrices, closed forms and the model's attention."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

import tiny
import wherewhat as ww
from wherewhat.core.rotation import Rotation
from wherewhat.core.spectrum import Contents, Spectrum, spectrum, two_way, with_base
from wherewhat.core.toeplitz import (
    HadamardToeplitz,
    density,
    distance_share,
    extreme_eigenvalues,
    kernel,
    norm,
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
        still = [layer for layer, at in enumerate(trace.attention) if not at.rotation.turning]
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
        found = spectrum(queries, keys, added)
        expected = np.linalg.svd(matrix.numpy(), compute_uv=False)[:, : min(tokens, 16)]
        assert found.values.numpy() == pytest.approx(expected, rel=1e-9)
        assert found.condition.numpy() == pytest.approx(expected[:, 0] / expected[:, -1], rel=1e-9)


def test_effective_rank_counts_equal_singular_values():
    assert Spectrum(torch.tensor([2.0, 2, 2, 0, 0])).effective_rank.item() == pytest.approx(3)
    assert Spectrum(torch.tensor([5.0, 0, 0])).effective_rank.item() == pytest.approx(1)


def test_contents_turned_again_give_the_attention_of_hugging_face(stories15m):
    ids = torch.randint(3, 3000, (1, 40))
    trace = ww.capture(stories15m, ids, queries=range(1, 40))
    theirs = deepcopy(stories15m)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        expected = theirs(ids, output_attentions=True).attentions
    unseen = torch.ones(39, 39, dtype=torch.bool).triu(1)
    for layer, rows in zip(trace.attention, expected, strict=True):
        queries, keys = Contents.of(layer).turned()
        found = (queries @ keys.mT).masked_fill(unseen, -torch.inf).softmax(-1)
        without_first = rows[..., 1:, 1:] / rows[..., 1:, 1:].sum(-1, keepdim=True)
        assert (found - without_first).abs().max() < 1e-4


def test_logits_are_the_real_part_of_gram_matrices_one_a_frequency(stories15m):
    """L = Re sum_k A_k o E_k with A_k = q_k k_k^H, and the logits without position are Re sum_k A_k."""
    trace = ww.capture(stories15m, torch.randint(3, 3000, (1, 30)), queries=range(1, 30))
    contents = Contents.of(trace.attention[2])
    rotation, distance = contents.rotation, torch.arange(29)[:, None] - torch.arange(29)
    planes = [torch.complex(x[..., rotation.first], x[..., rotation.second]) for x in (contents.queries, contents.keys)]
    grams = torch.einsum("bhnf,bhmf->bhfnm", planes[0], planes[1].conj())
    waves = torch.polar(torch.ones(()).double(), rotation.angles.double()[:, None, None] * distance)
    queries, keys = contents.turned()
    assert ((grams * waves).sum(2).real - queries @ keys.mT).abs().max() < 1e-4
    assert (grams.sum(2).real - contents.queries @ contents.keys.mT).abs().max() < 1e-9


def test_another_base_turns_like_a_model_with_that_base():
    llama = Rotation.half_split(1e4 ** -(torch.arange(4) / 4), head_dim=10)
    assert torch.allclose(with_base(llama, 500.0).angles, 500.0 ** -(torch.arange(4) / 4))
    assert torch.equal(with_base(llama, 1e4).angles, llama.angles)
    mixed = Rotation.interleaved(torch.tensor([0.0, 0.01, -1.0]), head_dim=6)
    assert torch.allclose(with_base(mixed, 100.0).angles, torch.tensor([0, 0.1, -1]))


def test_queries_of_all_positions_are_needed(stories15m):
    trace = ww.capture(stories15m, torch.randint(3, 3000, (1, 12)))
    with pytest.raises(ww.BadInput, match=r"range\(1, tokens\)"):
        Contents.of(trace.attention[0])


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_products_by_fourier_transforms_are_those_of_the_matrix(size):
    draw = np.random.default_rng(size)
    column, row, left, right = (
        torch.from_numpy(draw.normal(size=shape)) for shape in [size, size, (size, 3), (size, 3)]
    )
    row[0] = column[0]
    matrix = (left @ right.T).numpy() * toeplitz(column, row)
    operator = HadamardToeplitz(column, row, left, right)
    vector = draw.normal(size=size)
    assert operator @ vector == pytest.approx(matrix @ vector, abs=1e-10)
    assert operator.H @ vector == pytest.approx(matrix.T @ vector, abs=1e-10)
    if size > 2:
        assert norm(operator) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-4)


def test_extreme_eigenvalues_of_sixteen_thousand_tokens():
    """The kernel of F angles is a product of N x 2F waves, so a 2F x 2F matrix knows its eigenvalues."""
    tokens = 2**14
    phases = torch.arange(tokens, dtype=torch.float64)[:, None] * ANGLES
    waves = torch.cat([phases.cos(), phases.sin()], 1) / len(ANGLES) ** 0.5
    low, high = extreme_eigenvalues(HadamardToeplitz(kernel(ANGLES, tokens)))
    assert high == pytest.approx(torch.linalg.eigvalsh(waves.T @ waves)[-1].item(), rel=1e-6)
    assert low == pytest.approx(0, abs=1e-5 * high)


def test_eigenvalues_fill_the_range_of_a_known_symbol():
    """The matrix rho^|i - j| has the symbol (1 - rho^2) / (1 - 2 rho cos w + rho^2), Poisson's kernel."""
    rho, tokens = 0.6, 2048
    column = rho ** torch.arange(tokens, dtype=torch.float64)
    symbol = (1 - rho**2) / (1 - 2 * rho * torch.linspace(0, torch.pi, tokens + 1, dtype=torch.float64).cos() + rho**2)
    assert (density(column) - symbol).abs().max() < 0.01
    low, high = extreme_eigenvalues(HadamardToeplitz(column))
    assert (low, high) == pytest.approx((symbol.min().item(), symbol.max().item()), rel=1e-3)


def test_the_density_lies_between_the_extreme_eigenvalues():
    for _ in range(20):
        column = torch.randn(17, dtype=torch.float64)
        eigenvalues = torch.linalg.eigvalsh(square(column))
        found = density(column)
        assert eigenvalues[0] - 1e-9 <= found.min() <= found.max() <= eigenvalues[-1] + 1e-9
