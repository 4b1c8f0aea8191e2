"""The compiled sums over pairs give the numbers of the plain ones; leaving out negligible pairs changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import wherewhat as ww
from conftest import ENVIRONMENT
from known_layers import alibi, random_layer, trace_of, window
from wherewhat.core import compiled, swaps
from wherewhat.core.scores import block_index
from wherewhat.core.swaps import Weighting, score_blocks

WEIGHTINGS = [Weighting(1e-4), Weighting(1e-2), Weighting(float("inf")), Weighting(1e-4, without_first=True)]
BLOCKS = {1: [(at, at + 1) for at in range(1, 60)], 3: [(at, at + 3) for at in range(1, 58, 3)]}


def everything(trace: ww.Trace, width: int) -> Tensor:
    """All scores of heads at several weightings, and those of frequencies."""
    placement, index = trace.placements(0), block_index(BLOCKS[width], trace.keys)
    tables = ((placement, WEIGHTINGS), (placement.by_frequency(), WEIGHTINGS[:1]))
    return torch.cat([torch.stack(score_blocks(*one)).flatten() for one in ((t, index, w) for t, w in tables)])


@pytest.fixture(autouse=True)
def pairs_may_be_left_out(monkeypatch):
    """Also of the few blocks of these tests."""
    monkeypatch.setattr(swaps, "FEW", 0)


@pytest.mark.parametrize("width", BLOCKS)
@pytest.mark.parametrize("size", [0.2, 2.0, 60.0])
@pytest.mark.parametrize("bias", [None, window(61, 40) + alibi(4, 61)], ids=["open", "windowed"])
def test_compiled_and_plain_sums_are_equal(monkeypatch, width, size, bias):
    """For weak, gentle and steep logits; pairs outside the window are skipped in both."""
    pytest.importorskip("numba")
    trace = trace_of(random_layer(tokens=61, kv_heads=2, groups=2, planes=3, still=1, size=size, bias=bias))
    assert compiled.compiled(trace.attention[0].queries) is not None
    fast = everything(trace, width)
    monkeypatch.setattr(compiled, "_kernels", lambda: None)
    assert_close(fast, everything(trace, width), atol=1e-6, rtol=0, equal_nan=True)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weightings_in_one_walk_are_those_of_one_walk_each(weighting):
    layer = random_layer(tokens=61, kv_heads=2, groups=2, size=4.0)
    placement, index = layer.placement(), block_index(BLOCKS[3], 60)
    together = torch.stack(score_blocks(placement, index, WEIGHTINGS))[:, WEIGHTINGS.index(weighting)]
    assert_close(together, torch.stack(score_blocks(placement, index, [weighting]))[:, 0], atol=1e-7, rtol=0)


@pytest.mark.parametrize("size", [1.0, 8.0])
def test_pairs_that_are_left_out_change_nothing(monkeypatch, size):
    """In float64, against all pairs and against explicit swaps: the bound on the change is 1e-8."""
    layer = random_layer(tokens=61, kv_heads=2, groups=2, planes=3, size=size)
    placement, index, blocks = layer.placement(), block_index(BLOCKS[3], 60), BLOCKS[3]
    pairs = swaps._weigh_pairs(placement, index, WEIGHTINGS[:1])
    assert pairs.prune.any()
    assert (pairs.first[pairs.prune] > 0).any()
    pruned = torch.stack(score_blocks(placement, index, WEIGHTINGS[:1]))[:2, 0]
    truth = torch.stack(layer.scores(blocks, 1e-4)[:2])
    assert_close(pruned.double(), truth, atol=2e-6, rtol=0)
    monkeypatch.setattr(swaps, "WORTHWHILE", 0.0)
    assert_close(pruned, torch.stack(score_blocks(placement, index, WEIGHTINGS[:1]))[:2, 0], atol=1e-7, rtol=0)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(("heads", "size"), [(2, 4.0), (2, 1.0), (1, 4.0)])
def test_heads_shared_among_threads_have_the_same_scores(monkeypatch, heads, size, width):
    """Also with one head, whose products must not be split among threads."""
    pytest.importorskip("numba")
    trace = trace_of(random_layer(tokens=61, kv_heads=heads, groups=heads, planes=3, size=size))
    monkeypatch.setattr(compiled, "SMALL", 0)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found.append(everything(trace, width))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], one) for one in found)


PRINTED = """
import sys
from test_pair_sums import everything, random_layer, trace_of
for size in sys.argv[1:]:
    trace = trace_of(random_layer(tokens=61, kv_heads=2, groups=2, planes=3, size=float(size)))
    print(size, [everything(trace, width).tolist() for width in (1, 3)])
"""


@pytest.mark.slow
def test_a_process_that_compiles_gets_the_numbers_of_one_that_finds_the_code_on_disk(tmp_path):
    """Whichever function a process calls first: functions that shared code by name once differed in the last digit."""
    pytest.importorskip("numba")
    found = []
    for folder, sizes in (("a", "0.2 2 60"), ("a", "0.2 2 60"), ("a", "60 2 0.2"), ("b", "60 2 0.2")):
        process = subprocess.run(
            [sys.executable, "-c", PRINTED, *sizes.split()], cwd=Path(__file__).parent, capture_output=True, text=True,
            env=ENVIRONMENT | {"NUMBA_CACHE_DIR": str(tmp_path / folder)}, check=True,
        )  # fmt: skip
        found.append(sorted(process.stdout.splitlines()))
    assert len(found[0]) == 3
    assert all(one == found[0] for one in found)


def test_the_compiled_exponential_is_exact_to_float32():
    pytest.importorskip("numba")
    from wherewhat.core import kernels

    x = np.concatenate([np.linspace(-86.9, 20, 4001), [0.0, -0.0, 1e-8, 12.0]]).astype(np.float32)
    found = np.array([kernels._exp(one) for one in x])
    assert_close(torch.tensor(found).double(), torch.tensor(x).double().exp(), rtol=1.5e-7, atol=0)
    assert [kernels._exp(np.float32(one)) for one in (-88, -np.inf, np.nan)] == [0, 0, 0]
