"""What a fused block computes between its matrix products, compiled by numba. Numba keeps the code on disk.

The innermost loops run over what is contiguous in memory, so that the compiler turns them into vector instructions.
Each sequence of the batch is computed by one thread, so that no number depends on how many threads there are.
"""

from typing import no_type_check

import numpy as np
from numba import njit

ROUNDING = {"reassoc", "contract", "arcp", "nsz"}  # what may be rounded differently; infinities keep their meaning
HALF, ONE = np.float32(0.5), np.float32(1)
SLOPE, CUBIC = np.float32(np.sqrt(2 / np.pi)), np.float32(0.044715)
# tanh to a few units in the last place of float32: odd over even polynomial, as in Eigen.
FLAT = np.float32(7.90531110763549805)
ODD = tuple(map(np.float32, (
    4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08, -8.60467152213735e-11,
    2.00018790482477e-13, -2.76076847742355e-16,
)))  # fmt: skip
EVEN = tuple(map(np.float32, (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)))


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def gelu(made, bias, activity, low, high):
    """GELU (the approximation with tanh) of the last columns of `made`, which its derivative replaces."""
    width = len(bias)
    for b in range(low, high):
        for i in range(made.shape[1]):
            hidden, out = made[b, i, made.shape[2] - width :], activity[b, i]
            for d in range(width):
                x = hidden[d] + bias[d]
                square = x * x
                y = SLOPE * x * (ONE + CUBIC * square)
                y = min(max(y, -FLAT), FLAT)
                z = y * y
                odd = ODD[0] + z * (ODD[1] + z * (ODD[2] + z * (ODD[3] + z * (ODD[4] + z * (ODD[5] + z * ODD[6])))))
                tanh = y * odd / (EVEN[0] + z * (EVEN[1] + z * (EVEN[2] + z * EVEN[3])))
                gate = HALF * (ONE + tanh)
                out[d] = x * gate
                hidden[d] = gate + HALF * x * (ONE - tanh * tanh) * SLOPE * (ONE + np.float32(3) * CUBIC * square)


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def attend(made, factors, attention, attended, low, high):
    """Causal attention from scaled queries, keys and values, the first columns of `made`; `factors` are dropout's."""
    _, heads, tokens, _ = attention.shape
    width = attended.shape[2]
    size = width // heads
    for b in range(low, high):
        for h in range(heads):
            at = h * size
            for i in range(tokens):
                query, row = made[b, i, at : at + size], attention[b, h, i]
                top = np.float32(-np.inf)
                for j in range(i + 1):
                    key, logit = made[b, j, width + at : width + at + size], np.float32(0)
                    for d in range(size):
                        logit += query[d] * key[d]
                    row[j] = logit
                    top = max(top, logit)
                total = np.float32(0)
                for j in range(i + 1):
                    row[j] = np.exp(row[j] - top)
                    total += row[j]
                out, scale = attended[b, i, at : at + size], ONE / total
                out[:] = 0
                for j in range(tokens):
                    row[j] = row[j] * scale if j <= i else np.float32(0)
                for j in range(i + 1):
                    value = made[b, j, 2 * width + at : 2 * width + at + size]
                    weight = row[j] * factors[b, h, i, j]
                    for d in range(size):
                        out[d] += weight * value[d]


@njit(nogil=True, cache=True, fastmath=ROUNDING, error_model="numpy")
@no_type_check
def attend_backward(given, made, factors, attention, of_made, low, high):
    """The gradients of queries, keys and values, written to the first columns of `of_made`."""
    _, heads, tokens, _ = attention.shape
    width = given.shape[2]
    size = width // heads
    of_row = np.empty(tokens, np.float32)
    for b in range(low, high):
        of_made[b, :, : 3 * width] = 0
        for h in range(heads):
            q = h * size
            k, v = width + q, 2 * width + q
            for i in range(tokens):
                row, of_out = attention[b, h, i], given[b, i, q : q + size]
                query, of_query = made[b, i, q : q + size], of_made[b, i, q : q + size]
                mean = np.float32(0)
                for j in range(i + 1):
                    value, of_value = made[b, j, v : v + size], of_made[b, j, v : v + size]
                    factor, product = factors[b, h, i, j], np.float32(0)
                    weight = row[j] * factor
                    for d in range(size):
                        product += of_out[d] * value[d]
                        of_value[d] += weight * of_out[d]
                    of_row[j] = product * factor
                    mean += of_row[j] * row[j]
                for j in range(i + 1):
                    of_logit = row[j] * (of_row[j] - mean)
                    key, of_key = made[b, j, k : k + size], of_made[b, j, k : k + size]
                    for d in range(size):
                        of_query[d] += of_logit * key[d]
                        of_key[d] += of_logit * query[d]
