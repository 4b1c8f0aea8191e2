"""Statistics that several studies share: correlation, bootstrap samples, intervals."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import beta, binomtest, sem
from scipy.stats import t as student
from torch import Tensor

# Fewer prompts than this leave bootstrap intervals that are too narrow.
ENOUGH_PROMPTS = 4
RESAMPLES = 1000
EXCLUDES = -0.5  # the axes exclude each other if they correlate with this or less


def pearson(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> tuple[float, float]:
    """Correlation and its two-sided p-value (Student's t); NaN where there is nothing to correlate.

    Sums are exact: those of numpy depend in the last digit on where an array lies in memory, and results on disk are
    the same to the byte in every process.

    >>> r, p = pearson(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, 1.0, 0.0]))
    >>> round(r, 2), round(p, 2)
    (-0.93, 0.24)
    """
    if len(x) < 3 or x.min() == x.max() or y.min() == y.max():
        return math.nan, math.nan
    number = len(x)
    a, b = ([one - math.fsum(values) / number for one in values] for values in (x.tolist(), y.tolist()))
    products = (math.fsum(map(operator.mul, *pair)) for pair in ((a, b), (a, a), (b, b)))
    together, of_a, of_b = products
    r = max(-1.0, min(1.0, together / math.sqrt(of_a * of_b)))
    half = number / 2 - 1
    return r, float(2 * beta.sf(abs(r), half, half, loc=-1, scale=2))


@lru_cache(maxsize=4)
def resamples(number: int, seed: int) -> Float[Tensor, "R n"]:
    """Bootstrap samples of `number` items, as the weight of each item in each sample; NaN if there is only one."""
    if number < 2:
        return torch.full((1, number), torch.nan, dtype=torch.float64)
    drawn = np.random.default_rng(seed).integers(number, size=(RESAMPLES, number))
    once = torch.full(drawn.shape, 1 / number, dtype=torch.float64)
    return torch.zeros_like(once).scatter_add_(1, torch.from_numpy(drawn), once)


def interval(draws: Float[Tensor, "R ..."]) -> tuple[Tensor, Tensor]:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws.numpy(), [0.025, 0.975], axis=0)  # torch would sort all of them, several times slower
    return torch.as_tensor(low), torch.as_tensor(high)


def wilson(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> low, high = wilson(9, 10)
    >>> round(low, 2), round(high, 2)
    (0.6, 0.98)
    """
    low, high = binomtest(right, total).proportion_ci(method="wilson")
    return float(low), float(high)


def mean_interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """The mean and its 95 % interval by Student's t: NaN if a value is missing; the interval is NaN for one value.

    >>> mean_interval([1.0, 2.0, 3.0])[0]
    2.0
    """
    known = np.asarray(values, dtype=float)
    mean = float(known.mean())
    if len(known) < 2:
        return mean, math.nan, math.nan
    error = sem(known)
    if error == 0:  # scipy has no interval of width 0
        return mean, mean, mean
    low, high = student.interval(0.95, len(known) - 1, loc=mean, scale=error)
    return mean, float(low), float(high)
