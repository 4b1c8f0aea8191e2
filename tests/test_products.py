"""Products by oneDNN, which long measurements use, are as precise as those of float32."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import products


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def test_fast_products_have_the_precision_of_float32() -> None:
    products.fast_products()
    draw = torch.Generator().manual_seed(1)
    left, right = torch.randn(64, 300, generator=draw), torch.randn(300, 80, generator=draw)
    exact, terms = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    rounded = left.bfloat16().double() @ right.bfloat16().double()
    error, of_bfloat16 = (((one - exact).abs() / terms).max() for one in ((left @ right).double(), rounded))
    bound = 300 * 2.0**-24  # of a sum of 300 products in float32, in any order
    assert error < bound < of_bfloat16


def test_products_that_are_rounded_to_bfloat16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    monkeypatch.setattr(products, "_largest_error", lambda: 2.0**-9)
    assert not products.fast_products()
    assert torch.backends.mkldnn.matmul.fp32_precision == before
