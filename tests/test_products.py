"""Products by oneDNN, which long measurements use, are as precise as those of float32."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import products  # noqa: E402


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def test_fast_products_have_the_precision_of_float32() -> None:
    products.fast_products()
    draw = torch.Generator().manual_seed(1)
    left, right = torch.randn(64, 300, generator=draw), torch.randn(300, 80, generator=draw)
    exact = left.double() @ right.double()
    rounded = left.bfloat16().double() @ right.bfloat16().double()
    error, of_bfloat16 = ((one - exact).abs().max() for one in ((left @ right).double(), rounded))
    assert error < 2e-5
    assert of_bfloat16 > 1e-2  # what the same check would find


def test_products_that_are_rounded_to_bfloat16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    monkeypatch.setattr(products, "_largest_error", lambda: 2.0**-9)
    assert not products.fast_products()
    assert torch.backends.mkldnn.matmul.fp32_precision == before
