"""Products of float32 matrices by oneDNN instead of MKL, for long measurements on processors where MKL is slow.

On an AMD processor with AVX-512, oneDNN multiplies at twice the speed of MKL. torch offers it only where products may
be rounded to bfloat16; whether they are depends on the processor, so it is measured.
"""

from __future__ import annotations

import torch

ROUNDING = 2.0**-20  # largest error, relative to the sum of absolute terms; bfloat16 would have 2**-9


# Sums of products of a training step and of a forward pass: batch, rows, terms, columns.
SHAPES = ((1, 960, 64, 192), (64, 120, 8, 120), (64, 120, 120, 8), (1, 192, 960, 64), (1, 1024, 576, 1536))


def fast_products() -> bool:
    """Let oneDNN multiply, if it keeps the precision of float32 here; returns whether it does."""
    before, precise = torch.backends.mkldnn.matmul.fp32_precision, False
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        precise = _largest_error() < ROUNDING
    finally:
        if not precise:
            torch.backends.mkldnn.matmul.fp32_precision = before
    return precise


def _largest_error() -> float:
    draw = torch.Generator().manual_seed(0)
    errors = []
    for batch, rows, terms, columns in SHAPES:
        left, right = (
            torch.randn(batch, rows, terms, generator=draw),
            torch.randn(batch, terms, columns, generator=draw),
        )
        added = torch.randn(columns, generator=draw)
        found = torch.addmm(added, left[0], right[0])[None] if batch == 1 else left @ right
        exact = left.double() @ right.double() + (added.double() if batch == 1 else 0)
        size = left.double().abs() @ right.double().abs() + added.double().abs()
        errors.append(((found.double() - exact).abs() / size).max())
    return float(torch.stack(errors).max())
