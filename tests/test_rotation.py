"""Position rotates each plane of a head by its own angle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

from known_layers import known_layers, random_layer
from wherewhat.core.rotation import Rotation

LAYOUTS = [
    Rotation.half_split(torch.tensor([1.0, 0.3, 0.01]), head_dim=6),
    Rotation.interleaved(torch.tensor([1.0, 0.3, 0.01]), head_dim=6),
    Rotation.half_split(torch.tensor([1.0, 0.3]), head_dim=7),
    Rotation.interleaved(torch.tensor([1.0, -0.3]), head_dim=7, start=3),
    Rotation.none(head_dim=4),
]


@pytest.mark.parametrize("rotation", LAYOUTS, ids=repr)
def test_rotating_forth_and_back_changes_nothing(rotation):
    vectors = torch.randn(2, 50, rotation.head_dim)
    positions = torch.arange(50) * 37
    assert_close(rotation.rotate(rotation.rotate(vectors, positions), positions, back=True), vectors)


@pytest.mark.parametrize("rotation", LAYOUTS, ids=repr)
def test_rotations_add_up(rotation):
    vectors = torch.randn(2, 50, rotation.head_dim)
    positions, shift = torch.arange(50), torch.full((50,), 13)
    twice = rotation.rotate(rotation.rotate(vectors, positions), shift)
    # Phases reach 63 radians, and float32 rounds them to 63 * 6e-8.
    assert_close(twice, rotation.rotate(vectors, positions + shift), atol=3e-5, rtol=0)


@pytest.mark.parametrize("rotation", LAYOUTS, ids=repr)
def test_a_rotation_keeps_norms_and_non_rotary_dimensions(rotation):
    vectors = torch.randn(20, rotation.head_dim)
    turned = rotation.rotate(vectors, torch.arange(20))
    assert_close(turned.norm(dim=-1), vectors.norm(dim=-1))
    assert torch.equal(turned[:, rotation.non_rotary], vectors[:, rotation.non_rotary])


def test_the_layouts_differ_only_in_the_order_of_dimensions():
    angles = torch.tensor([1.0, 0.3, 0.01])
    half, interleaved = Rotation.half_split(angles, 6), Rotation.interleaved(angles, 6)
    vectors = torch.randn(8, 6)
    order = torch.tensor([0, 3, 1, 4, 2, 5])
    positions = torch.arange(8)
    assert_close(half.rotate(vectors, positions)[:, order], interleaved.rotate(vectors[:, order], positions))


@given(known_layers())
def test_turn_is_the_rotation_matrix_of_each_position(layer):
    turned = layer.rotation().rotate(layer.contents.float(), torch.arange(layer.tokens))
    assert_close(turned, layer.captured().keys, atol=1e-5, rtol=1e-5)


@given(known_layers(biased=False))
def test_couple_and_wave_give_the_logit_of_any_content_at_any_place(layer):
    captured, positions = layer.captured(), torch.arange(layer.tokens)
    rotation = captured.rotation
    coupling = rotation.couple(captured.queries[:, :, -1], captured.keys, positions)
    logits = torch.einsum("bhafx,pfx->bhap", coupling, rotation.wave(positions)) * captured.scaling
    by_hand = replace(layer, softcap=None)
    assert_close(logits[:, :, :-1, :-1].double(), by_hand.table(), atol=1e-4, rtol=1e-5)


def test_far_positions_are_rotated_with_float32_phases_as_in_models():
    """A model multiplies position and angle in float32; at 100,000 the exact product would be another phase."""
    rotation = Rotation.half_split(torch.tensor([0.7]), head_dim=2)
    position = torch.tensor([100_003])
    phase = position.float() * torch.tensor(0.7)
    assert_close(rotation.rotate(torch.tensor([[1.0, 0.0]]), position), torch.stack([phase.cos(), phase.sin()], dim=-1))


def test_the_frequency_axis_ends_with_the_non_rotary_dimensions():
    rotation = Rotation.half_split(torch.tensor([1.0, 0.3]), head_dim=7)
    assert rotation.head_dim == 7
    assert rotation.frequencies == 3
    assert_close(rotation.all_angles(), torch.tensor([1.0, 0.3, 0.0]))
    assert list(rotation.non_rotary) == [4, 5, 6]
    assert random_layer(planes=2).rotation().frequencies == 2


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
@pytest.mark.parametrize(("start", "head_dim"), [(0, 16), (4, 24)])
def test_compiled_couplings_are_those_of_plain_torch(monkeypatch, layout, start, head_dim):
    """To float32 precision, for grouped keys and with dimensions that do not rotate, on one thread and on two."""
    pytest.importorskip("numba")
    turning = Rotation(1000.0 ** -(torch.arange(8) / 8), head_dim, start, layout)
    draw = torch.Generator().manual_seed(0)
    keys, queries = torch.randn(2, 3, 40, head_dim, generator=draw), torch.randn(2, 6, head_dim, generator=draw)
    places = torch.arange(5, 45)
    found = turning.couple(queries, keys, places)
    monkeypatch.setattr("wherewhat.core.compiled.SMALL", 0)
    assert torch.equal(turning.couple(queries, keys, places), found)
    monkeypatch.setattr("wherewhat.core.rotation.compiled", lambda _: None)
    torch.testing.assert_close(turning.couple(queries, keys, places), found, rtol=0, atol=3e-6)
    exact = turning.couple(queries.double(), keys.double(), places)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
