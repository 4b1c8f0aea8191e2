"""Products of float32 matrices by oneDNN instead of MKL, for long measurements on processors where MKL is slow.

On an AMD processor with AVX-512, oneDNN multiplies at twice the speed of MKL. torch offers it only where products may
be rounded to bfloat16; whether they are depends on the processor, so it is measured.
"""

from __future__ import annotations

import torch

ROUNDING = 2.0**-20  # largest error, relative to the sum of absolute terms; bfloat16 would have 2**-9


def fast_products() -> bool:
    """Let oneDNN multiply, if it keeps the precision of float32 here; returns whether it does."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    if _largest_error() < ROUNDING:
        return True
    torch.backends.mkldnn.matmul.fp32_precision = before
    return False


def _largest_error() -> float:
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(4, 256, 256, generator=draw) for _ in range(2))
    errors = []
    for one, two in ((left, right), (left[0], right[0])):  # bmm and mm
        exact = one.double() @ two.double()
        terms = one.double().abs() @ two.double().abs()
        errors.append(((one @ two).double() - exact).abs().div(terms).max())
    return float(torch.stack(errors).max())
