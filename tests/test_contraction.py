"""How a Hadamard product with a rotation's kernel changes a spectrum: the inequalities under their conditions, on
random matrices and on those of a real model, and a counterexample for each condition that is dropped."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import wherewhat as ww
from wherewhat.core.rotation import Rotation
from wherewhat.core.spectrum import Contents, majorised
from wherewhat.core.spectrum import singular_values as head_values
from wherewhat.core.toeplitz import kernel, square

SLACK = 1e-9
eigenvalues, singular_values = torch.linalg.eigvalsh, torch.linalg.svdvals
sizes, seeds = st.integers(2, 24), st.integers(0, 2**32)
speeds = st.lists(st.floats(0, torch.pi), min_size=1, max_size=8)


def correlation(angles: list[float], size: int) -> Tensor:
    return square(kernel(torch.tensor(angles, dtype=torch.float64), size))


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def condition(matrix: Tensor) -> Tensor:
    values = singular_values(matrix)
    return values[..., 0] / values[..., -1]


def norm(matrix: Tensor) -> Tensor:
    return singular_values(matrix)[..., 0]


@given(speeds, sizes)
def test_the_kernel_is_a_correlation_matrix(angles, size):
    made = correlation(angles, size)
    assert (made.diagonal() == 1).all()
    assert eigenvalues(made)[0] > -SLACK * size
    phases = [
        [sum(torch.cos(torch.tensor(a * (i - j))).item() for a in angles) for j in range(size)] for i in range(size)
    ]
    assert torch.allclose(made, torch.tensor(phases).double() / len(angles), atol=1e-5)


@given(seeds, sizes, st.integers(1, 24), speeds)
def test_schur_eigenvalues_of_a_positive_matrix_stay_in_their_range(seed, size, rank, angles):
    factor = drawn(seed, size, rank)
    gram = factor @ factor.T
    before, after = eigenvalues(gram), eigenvalues(gram * correlation(angles, size))
    assert before[0] - SLACK * before[-1] <= after[0]
    assert after[-1] <= before[-1] * (1 + SLACK)


@given(seeds, sizes, speeds)
def test_the_condition_of_a_positive_definite_matrix_does_not_grow(seed, size, angles):
    factor = drawn(seed, size, size + 4)
    gram = factor @ factor.T
    assert condition(gram * correlation(angles, size)) <= condition(gram) * (1 + SLACK)


@given(seeds, sizes, speeds)
def test_eigenvalues_of_a_symmetric_matrix_are_majorised(seed, size, angles):
    half = drawn(seed, size, size)
    symmetric = half + half.T
    product = symmetric * correlation(angles, size)
    assert product.trace() == pytest.approx(symmetric.trace().item())
    assert majorised(eigenvalues(product), eigenvalues(symmetric))


@given(seeds, sizes, speeds)
def test_the_norm_and_all_singular_values_of_any_matrix_are_bounded(seed, size, angles):
    matrix = drawn(seed, size, size)
    before, after = singular_values(matrix), singular_values(matrix * correlation(angles, size))
    assert after[0] <= before[0] * (1 + SLACK)
    assert majorised(after, before)


@given(seeds, sizes, st.floats(-torch.pi, torch.pi))
def test_a_single_complex_frequency_contracts_nothing_and_its_real_part_does(seed, size, angle):
    """A o E = D A D^H for a diagonal D of phases: the same singular values, and eigenvalues too."""
    matrix = drawn(seed, size, size)
    places = torch.arange(size, dtype=torch.float64)
    rotated = matrix * torch.polar(torch.ones_like(matrix), angle * (places[:, None] - places))
    assert torch.allclose(singular_values(rotated), singular_values(matrix), rtol=1e-9)
    symmetric = matrix + matrix.T
    rotated = symmetric * torch.polar(torch.ones_like(matrix), angle * (places[:, None] - places))
    assert torch.allclose(eigenvalues(rotated), eigenvalues(symmetric), atol=1e-9)
    assert majorised(singular_values(matrix * correlation([abs(angle)], size)), singular_values(matrix))


def test_the_real_part_of_a_frequency_halves_the_norm_of_a_constant_matrix():
    same = torch.ones(64, 64, dtype=torch.float64)
    assert norm(same * correlation([torch.pi / 4], 64)).item() == pytest.approx(32)


@pytest.fixture(scope="module")
def learnt(stories15m) -> list[Contents]:
    """Every layer of a real model on 40 tokens, which are fewer than the 48 dimensions of its heads."""
    ids = torch.randint(3, 3000, (2, 41), generator=torch.Generator().manual_seed(0))
    return [Contents.of(layer) for layer in ww.capture(stories15m, ids, queries=range(1, 41)).attention]


@pytest.mark.weights
def test_all_inequalities_hold_on_learnt_matrices(learnt):
    for contents in learnt:
        kernel_of_model = correlation(contents.rotation.angles.tolist(), 40)
        keys = contents.keys @ contents.keys.mT
        before, after = eigenvalues(keys), eigenvalues(keys * kernel_of_model)
        assert (before[..., 0] > 0).all()
        assert (after[..., 0] >= before[..., 0] * (1 - 1e-6)).all()
        assert (after[..., -1] <= before[..., -1] * (1 + SLACK)).all()
        assert (condition(keys * kernel_of_model) <= condition(keys)).all()
        logits = contents.queries @ contents.keys.mT
        symmetric = logits + logits.mT
        assert majorised(eigenvalues(symmetric * kernel_of_model), eigenvalues(symmetric)).all()
        assert majorised(singular_values(logits * kernel_of_model), singular_values(logits)).all()
        assert (norm(logits * kernel_of_model) <= norm(logits)).all()


@pytest.mark.weights
def test_a_single_learnt_frequency_contracts_nothing(learnt):
    for contents in learnt:
        rotation, places = contents.rotation, torch.arange(40, dtype=torch.float64)
        queries, keys = (
            torch.complex(x[..., rotation.first], x[..., rotation.second]) for x in (contents.queries, contents.keys)
        )
        for plane in (0, rotation.planes // 2):
            gram = queries[..., plane, None] * keys[..., None, :, plane].conj()
            phases = rotation.angles[plane].double() * (places[:, None] - places)
            rotated = gram * torch.polar(torch.ones_like(phases), phases)
            assert torch.allclose(norm(rotated), norm(gram), rtol=1e-9)
            assert (singular_values(rotated.real)[..., 1] > 1e-3 * norm(rotated.real)).any()  # rank 2, not 1


@pytest.mark.weights
def test_none_of_these_bounds_holds_for_all_real_heads(learnt):
    """Each frequency has its own Gram matrix, so the norm grows in some heads, and majorisation fails."""
    before = torch.cat([head_values(each.queries, each.keys).values.flatten(0, 1) for each in learnt])
    after = torch.cat([head_values(*each.rotated()).values.flatten(0, 1) for each in learnt])
    assert (after[:, 0] > 1.5 * before[:, 0]).any()
    assert (after[:, 0] < before[:, 0]).any()
    assert not majorised(after, before).all()


def test_rotation_can_double_the_norm_and_ruin_the_condition():
    """One plane, and contents that rotate backwards: the identity becomes the matrix of ones."""
    rotation, places = Rotation.interleaved(torch.tensor([torch.pi / 2]), 2), torch.arange(2)
    contents = rotation.rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double(), places, back=True)
    without = contents @ contents.T
    rotated = rotation.rotate(contents, places)
    assert torch.allclose(without, torch.eye(2).double(), atol=1e-6)
    assert torch.allclose(rotated @ rotated.T, torch.ones(2, 2).double(), atol=1e-6)
    assert head_values(rotated, rotated).norm.item() == pytest.approx(2 * head_values(contents, contents).norm.item())
    assert head_values(rotated, rotated).condition > 1e6


def test_no_condition_can_be_dropped():
    half = correlation([torch.pi / 3], 2)  # 1 and 1/2
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]]).double()
    assert condition(indefinite) == pytest.approx(3)
    assert condition(indefinite * half) > 1e9  # kappa needs a positive definite matrix
    nilpotent = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]).double()
    assert torch.linalg.eigvals(nilpotent).abs().max() < 1e-6
    assert torch.linalg.eigvals(nilpotent * half).abs().max() > 0.8  # majorised eigenvalues need a Hermitian one
    sign = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()
    assert norm(sign * sign) > 1.4 * norm(sign)  # the norm needs a positive semidefinite kernel
    bare = torch.eye(2).double()
    assert norm(bare * (2 * half)) == pytest.approx(2)  # with ones on its diagonal


def test_logits_of_more_tokens_than_dimensions_are_singular():
    """Rotated or not, queries keys^T has rank at most D: over all N singular values, kappa is infinite."""
    contents = Contents(drawn(0, 1, 1, 30, 8), drawn(1, 1, 1, 30, 8), Rotation.interleaved(torch.rand(4), 8))
    for queries, keys in ((contents.queries, contents.keys), contents.rotated()):
        values = singular_values(queries @ keys.mT)[0, 0]
        assert values[8:].max() < 1e-9 * values[0]
        assert values[7] > 1e-3 * values[0]
