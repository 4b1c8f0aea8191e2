"""Sums over pairs of blocks, compiled by numba: one pass over memory instead of many. Numba keeps the code on disk.

The innermost loops run over what is contiguous in memory, so that the compiler turns them into vector instructions.
"""

from typing import no_type_check

import numpy as np
from numba import njit

# What may be rounded differently; infinities and NaN keep their meaning.
ROUNDING = {"reassoc", "contract", "arcp", "nsz"}
ONE, ZERO = np.float32(1), np.float32(0)


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def sum_pairs(here, there, own, rise, fall, row, column, sums, low, high):
    _, rows, columns = here.shape
    stay, move, alive = np.empty(columns, np.float32), np.empty(columns, np.float32), np.empty(columns, np.float32)
    for x in range(low, high):
        for i in range(rows):
            start = max(0, row + i + 1 - column)
            a, b, theirs, mine = here[x, i, start:], there[x, i, start:], own[x, column + start :], own[x, row + i]
            for j in range(len(a)):
                norm = (a[j] * a[j] + b[j] * b[j]) * (mine * mine + theirs[j] * theirs[j])
                alive[j] = ONE if norm > 0 else ZERO
                scale = alive[j] / np.sqrt(norm if norm > 0 else ONE)
                stay[j] = scale * (theirs[j] * a[j] + mine * b[j])
                move[j] = scale * (mine * a[j] + theirs[j] * b[j])
            _add(stay, move, alive[: len(a)], rise, fall, row + i, column + start, sums, x)


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def sum_log_pairs(here, there, own, rise, fall, row, column, sums, low, high):
    width, _, rows, columns = here.shape
    top, alive = np.empty(columns, np.float32), np.empty(columns, np.float32)
    stay, move = np.empty(columns, np.float32), np.empty(columns, np.float32)
    mass_here, mass_there = np.empty(columns), np.empty(columns)
    for x in range(low, high):
        for i in range(rows):
            start = max(0, row + i + 1 - column)
            theirs, mine = own[x, column + start :], own[x, row + i]
            top[:], mass_here[:], mass_there[:] = -np.inf, 0, 0
            for t in range(width):
                a, b = here[t, x, i, start:], there[t, x, i, start:]
                for j in range(len(a)):
                    larger = a[j] if a[j] > b[j] else b[j]
                    top[j] = larger if larger > top[j] else top[j]
            for t in range(width):
                a, b = here[t, x, i, start:], there[t, x, i, start:]
                for j in range(len(a)):
                    mass_here[j] += _exp(a[j] - top[j])
                    mass_there[j] += _exp(b[j] - top[j])
            for j in range(len(theirs)):
                ratio = theirs[j] - mine
                less = _exp(-abs(ratio))
                of_theirs, of_mine = (1.0, less) if ratio > 0 else (less, 1.0)
                alive[j] = ONE if top[j] > -np.inf and ratio == ratio else ZERO
                p, q = mass_here[j], mass_there[j]
                scale = 1 / np.sqrt((p * p + q * q) * (1 + less * less)) if alive[j] > 0 else 0.0
                stay[j] = scale * (of_theirs * p + of_mine * q) if alive[j] > 0 else 0.0
                move[j] = scale * (of_mine * p + of_theirs * q) if alive[j] > 0 else 0.0
            _add(stay, move, alive[: len(theirs)], rise, fall, row + i, column + start, sums, x)


@njit(nogil=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _exp(x):
    """e^x for x <= 0 to 1e-8, and e^-30 for anything smaller: the series of e^(x/64), to the power of 64."""
    y = np.float64(x if x > -30 else np.float32(-30)) / 64
    series = 1 + y * (1 / 9)
    series = 1 + y * (1 / 8) * series
    series = 1 + y * (1 / 7) * series
    series = 1 + y * (1 / 6) * series
    series = 1 + y * (1 / 5) * series
    series = 1 + y * (1 / 4) * series
    series = 1 + y * (1 / 3) * series
    series = 1 + y * (1 / 2) * series
    series = 1 + y * series
    for _ in range(6):
        series *= series
    return series


@njit(nogil=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _add(stay, move, alive, rise, fall, i, start, sums, x):
    """Add the pairs of block i with the blocks from `start` on, for every weighting."""
    for view in range(rise.shape[0]):
        above, below, mine_above, mine_below = (
            rise[view, x, start:],
            fall[view, x, start:],
            rise[view, x, i],
            fall[view, x, i],
        )
        positional, symbolic, total, count = ZERO, ZERO, ZERO, ZERO
        for j in range(len(alive)):
            falling, rising = mine_above * below[j], mine_below * above[j]
            weight = (falling if falling > rising else rising) * alive[j]
            positional += weight * stay[j]
            symbolic += weight * move[j]
            total += weight
            count += alive[j]
        sums[0, view, x] += positional
        sums[1, view, x] += symbolic
        sums[2, view, x] += total
        sums[3, view, x] += len(alive) - count


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def node_values(values, content, turn, blocks, circle, low, high):
    count, width = blocks.shape
    nodes = circle.shape[1]
    total = np.empty(nodes)
    for x in range(low, high):
        row = x % len(turn)
        for m in range(count):
            total[:] = 0
            for t in range(width):
                re, im = np.float64(content[x, blocks[m, t], 0]), np.float64(content[x, blocks[m, t], 1])
                cos, sin = np.float64(turn[row, t, 0]), np.float64(turn[row, t, 1])
                along, across = re * cos + im * sin, im * cos - re * sin
                for q in range(nodes):
                    total[q] += _exp_weak(along * circle[0, q] + across * circle[1, q])
            for q in range(nodes):
                values[x, m, q] = total[q]


@njit(nogil=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _exp_weak(x):
    """e^x for |x| <= 2 to 1e-9: the series of e^(x/8), to the power of 8."""
    y = x / 8
    series = 1 + y * (1 / 7)
    series = 1 + y * (1 / 6) * series
    series = 1 + y * (1 / 5) * series
    series = 1 + y * (1 / 4) * series
    series = 1 + y * (1 / 3) * series
    series = 1 + y * (1 / 2) * series
    series = 1 + y * series
    series *= series
    series *= series
    return series * series
