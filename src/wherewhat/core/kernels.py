"""Sums over pairs of blocks, and the couplings behind them, compiled by numba: one pass over memory instead of many.

Numba keeps the code on disk. The innermost loops run over what is contiguous in memory, so that the compiler turns them
into vector instructions.
Helpers are inlined: otherwise all functions of a process share one copy of a helper, and which one it is, and how it
rounds, depends on what was compiled or loaded first.
"""

from typing import no_type_check

import numpy as np
from numba import njit

# What may be rounded differently; infinities and NaN keep their meaning.
ROUNDING = {"reassoc", "contract", "arcp", "nsz"}
ONE, ZERO = np.float32(1), np.float32(0)
PADDED = 24  # nodes of `harmonics`, and some more
LANES = 16  # rows of pairs are padded to a multiple of this, which fills vectors
# e^x = 2^n e^r: log2(e); ln 2 as the sum of a short number, whose multiples are exact, and a rest; the series of e^r.
PER_DOUBLING, LN2, LN2_REST = np.float32(1 / np.log(2)), np.float32(0.693359375), np.float32(np.log(2) - 0.693359375)
SERIES = tuple(map(np.float32, (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)))
SMALLEST = np.float32(-87)  # e^x is a normal float32


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def sum_mass_pairs(here, there, own, rise, fall, row, column, sums, low, high):
    width, _, rows, columns = here.shape
    mass_here, mass_there = np.empty(columns, np.float32), np.empty(columns, np.float32)
    stay, move, alive = np.empty(columns, np.float32), np.empty(columns, np.float32), np.empty(columns, np.float32)
    for x in range(low, high):
        for i in range(rows):
            start = max(0, row + i + 1 - column)
            p, q = mass_here[: columns - start], mass_there[: columns - start]
            p[:], q[:] = 0, 0
            for t in range(width):
                a, b = here[t, x, i, start:], there[t, x, i, start:]
                for j in range(len(p)):
                    p[j] += _exp(a[j])
                    q[j] += _exp(b[j])
            _cosines(p, q, own[x, column + start :], own[x, row + i], stay, move, alive)
            _add(stay, move, alive[: len(p)], rise, fall, row + i, column + start, len(p), sums, x)


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def sum_log_pairs(here, there, own, rise, fall, row, column, sums, low, high):
    width, _, rows, columns = here.shape
    top, alive = np.empty(columns, np.float32), np.empty(columns, np.float32)
    stay, move = np.empty(columns, np.float32), np.empty(columns, np.float32)
    mass_here, mass_there = np.empty(columns, np.float32), np.empty(columns, np.float32)
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
                of_theirs, of_mine = (ONE, less) if ratio > 0 else (less, ONE)
                alive[j] = ONE if top[j] > -np.inf and ratio == ratio else ZERO
                p, q = mass_here[j], mass_there[j]
                scale = ONE / np.sqrt((p * p + q * q) * (ONE + less * less)) if alive[j] > 0 else ZERO
                stay[j] = scale * (of_theirs * p + of_mine * q) if alive[j] > 0 else ZERO
                move[j] = scale * (of_mine * p + of_theirs * q) if alive[j] > 0 else ZERO
            _add(stay, move, alive[: len(theirs)], rise, fall, row + i, column + start, len(theirs), sums, x)


@njit(nogil=True, forceinline=True, fastmath={"contract"}, error_model="numpy")
@no_type_check
def _exp(x):
    """e^x to float32 precision; 0 where that is too small for a float32, and for NaN."""
    n = np.floor(x * PER_DOUBLING + np.float32(0.5)) if x > SMALLEST else ZERO
    r = x - n * LN2 - n * LN2_REST
    series = SERIES[0]
    series = series * r + SERIES[1]
    series = series * r + SERIES[2]
    series = series * r + SERIES[3]
    series = series * r + SERIES[4]
    series = series * r + SERIES[5]
    series = (series * r + ONE) * r + ONE
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)  # 2^n, by its exponent bits
    return series * power if x > SMALLEST else ZERO


@njit(nogil=True, forceinline=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _add(stay, move, alive, rise, fall, i, start, pairs, sums, x):
    """Add the pairs of block i with the blocks from `start` on, for every weighting; the number of pairs tells how many
    are skipped."""
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
        sums[3, view, x] += pairs - count


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def couple(keys, queries, cos, sin, start, step, out, low, high):
    """`Rotation.couple`: keys (K, N, D), queries (K, G, D), cos and sin (N, F) into out (K, G, N, 2F or more).

    Dimension start + step f is the first one of plane f: step 1 if its second one is F further on, 2 if it is the next.
    """
    planes, group = cos.shape[1], queries.shape[1]
    second = start + (planes if step == 1 else 1)
    x, y = np.empty(planes, np.float32), np.empty(planes, np.float32)
    u, v = np.empty((group, planes), np.float32), np.empty((group, planes), np.float32)
    for k in range(low, high):
        for g in range(group):
            for f in range(planes):
                u[g, f], v[g, f] = queries[k, g, start + step * f], queries[k, g, second + step * f]
        for n in range(keys.shape[1]):
            for f in range(planes):
                a, b = keys[k, n, start + step * f], keys[k, n, second + step * f]
                x[f], y[f] = a * cos[n, f] + b * sin[n, f], b * cos[n, f] - a * sin[n, f]
            for g in range(group):
                for f in range(planes):
                    out[k, g, n, 2 * f] = x[f] * u[g, f] + y[f] * v[g, f]
                    out[k, g, n, 2 * f + 1] = x[f] * v[g, f] - y[f] * u[g, f]


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def sum_weak_pairs(own, chosen, content, turn, blocks, circle, weights, rise, fall, sums, low, high):
    """All pairs of the chosen weak frequencies, from values at the nodes and interpolation weights.

    `own`, `weights`, `rise` and `fall` are padded, and a row of pairs starts at a multiple of LANES; the
    additional pairs are not counted.
    """
    count, nodes, padded = len(blocks), weights.shape[1], weights.shape[2]
    value = np.zeros((nodes, padded), np.float32)
    here, there = np.empty((4, padded), np.float32), np.empty((4, padded), np.float32)
    stay, move, alive = np.empty(padded, np.float32), np.empty(padded, np.float32), np.empty(padded, np.float32)
    for n in range(low, high):
        x = chosen[n]
        weight = weights[x % len(weights)]
        _node_values(value, content[x], turn[x % len(turn)], blocks, circle)
        for first in range(0, count - 1, 4):
            start = (first + 1) // LANES * LANES
            long = padded - start
            _four_rows(here[0, :long], here[1, :long], here[2, :long], here[3, :long], value, weight, first, start)
            _four_rows(there[0, :long], there[1, :long], there[2, :long], there[3, :long], weight, value, first, start)
            counted = alive[:long]
            for i in range(first, min(first + 4, count - 1)):
                _cosines(here[i - first, :long], there[i - first], own[n, 0, start:], own[n, 0, i], stay, move, counted)
                counted[: i + 1 - start], counted[count - start :] = 0, 0
                _add(stay, move, counted, rise, fall, i, start, count - 1 - i, sums, x)


@njit(nogil=True, forceinline=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _node_values(value, content, turn, blocks, circle):
    """The mass of the contents of each block with its first token at each node."""
    total = np.empty(PADDED, np.float32)
    for m in range(len(blocks)):
        total[:] = 0
        for t in range(blocks.shape[1]):
            re, im = content[blocks[m, t], 0], content[blocks[m, t], 1]
            along, across = re * turn[t, 0] + im * turn[t, 1], im * turn[t, 0] - re * turn[t, 1]
            for q in range(PADDED):  # a number of nodes that fills vectors
                total[q] += _exp(along * circle[0, q] + across * circle[1, q])
        for q in range(len(value)):
            value[q, m] = total[q]


@njit(nogil=True, forceinline=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _four_rows(a, b, c, d, factors, rows, i, start):
    """The sum of all rows, from `start` on, times their factors in columns i to i + 3; three rows in one pass."""
    a[:], b[:], c[:], d[:] = 0, 0, 0, 0
    for q in range(0, len(rows), 3):
        a0, a1, a2 = factors[q, i], factors[q + 1, i], factors[q + 2, i]
        b0, b1, b2 = factors[q, i + 1], factors[q + 1, i + 1], factors[q + 2, i + 1]
        c0, c1, c2 = factors[q, i + 2], factors[q + 1, i + 2], factors[q + 2, i + 2]
        d0, d1, d2 = factors[q, i + 3], factors[q + 1, i + 3], factors[q + 2, i + 3]
        r0, r1, r2 = rows[q, start:], rows[q + 1, start:], rows[q + 2, start:]
        for j in range(len(a)):
            a[j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j]
            b[j] += b0 * r0[j] + b1 * r1[j] + b2 * r2[j]
            c[j] += c0 * r0[j] + c1 * r1[j] + c2 * r2[j]
            d[j] += d0 * r0[j] + d1 * r1[j] + d2 * r2[j]


@njit(nogil=True, forceinline=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def _cosines(here, there, theirs, mine, stay, move, alive):
    """The cosines of a block with later ones, from S[i, j], S[j, i] and the attention on each; 0 without any mass."""
    for j in range(len(here)):
        norm = (here[j] * here[j] + there[j] * there[j]) * (mine * mine + theirs[j] * theirs[j])
        alive[j] = ONE if norm > 0 else ZERO
        scale = alive[j] / np.sqrt(norm if norm > 0 else ONE)
        stay[j] = scale * (theirs[j] * here[j] + mine * there[j])
        move[j] = scale * (mine * here[j] + theirs[j] * there[j])
