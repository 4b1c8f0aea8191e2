"""Matrices that depend on distance alone: the kernel of a rotation, the part of any logits that is such a matrix, and
products with one of any length, which need its first column and row and never the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.sparse import eye_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator, eigsh
from torch import Tensor


def kernel(angles: Float[Tensor, " F"], length: int) -> Float[Tensor, " N"]:
    """C = mean over planes of cos(angle (i - j)), by distance i - j from 0 to length - 1.

    As a matrix it is positive semidefinite with ones on its diagonal, so the Hadamard product with it contracts.

    >>> kernel(torch.tensor([0.0, 1.0]), 3)
    tensor([1.0000, 0.7702, 0.2919], dtype=torch.float64)
    """
    return (torch.arange(length, dtype=torch.float64)[:, None] * angles.double().cpu()).cos().mean(-1)


def kernel_eigenvalues(angles: Float[Tensor, " F"], length: int) -> Float[Tensor, " two_F"]:
    """The eigenvalues of that matrix that are not 0, largest first: it is a product of 2 F waves, at any length.

    >>> [round(value, 6) for value in kernel_eigenvalues(torch.tensor([0.0, torch.pi]), 100)[:3].tolist()]
    [50.0, 50.0, 0.0]
    """
    phases = torch.arange(length, dtype=torch.float64)[:, None] * angles.double().cpu()
    waves = torch.cat([phases.cos(), phases.sin()], 1)
    return torch.linalg.eigvalsh(waves.T @ waves / len(angles)).flip(0).clamp(min=0)


def square(column: Float[Tensor, " N"], row: Float[Tensor, " N"] | None = None) -> Float[Tensor, "N N"]:
    """The matrix itself: `column` by distance i - j >= 0, `row` by j - i >= 0, the same unless given.

    >>> square(torch.tensor([2.0, 1.0, 0.0]))
    tensor([[2., 1., 0.],
            [1., 2., 1.],
            [0., 1., 2.]])
    """
    return torch.from_numpy(toeplitz(column.numpy(), None if row is None else row.numpy()))


def everything(logits: Float[Tensor, "*lead N N"]) -> Bool[Tensor, "N N"]:
    """Every key is seen by every query."""
    return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)


def toeplitz_part(
    logits: Float[Tensor, "*lead N N"], seen: Bool[Tensor, "N N"] | None = None
) -> Float[Tensor, "*lead N N"]:
    """The nearest matrix that depends on distance alone: the mean along each diagonal, over what is `seen`.

    What is not seen is 0.

    >>> toeplitz_part(torch.tensor([[1.0, 5.0], [7.0, 3.0]]))
    tensor([[2., 5.],
            [7., 2.]])
    """
    seen = everything(logits) if seen is None else seen
    at = _diagonals(seen)
    means = _by_diagonal(logits.where(seen, 0)) / torch.bincount(at[seen], minlength=int(at.max()) + 1).clamp(min=1)
    return means[..., at].where(seen, 0)


def toeplitz_share(
    logits: Float[Tensor, "*lead N N"], seen: Bool[Tensor, "N N"] | None = None
) -> Float[Tensor, "*lead"]:
    """The Toeplitz part's share of the variance of what is `seen`; the remainder has the rest."""
    seen = everything(logits) if seen is None else seen
    logits = logits.double().where(seen, 0)
    centred = (logits - logits.sum((-1, -2), keepdim=True) / seen.sum()).where(seen, 0)
    return toeplitz_part(centred, seen).square().sum((-1, -2)) / centred.square().sum((-1, -2))


def distance_share(
    logits: Float[Tensor, "*lead N N"], seen: Bool[Tensor, "N N"] | None = None
) -> Float[Tensor, "*lead"]:
    """Of what the softmax sees of the logits, the share of variance that distance alone explains.

    A constant added to all logits of a query changes no attention: each query has one of its own beside the function
    of distance, both fitted by least squares, and the share is of the variance within queries.
    """
    seen = everything(logits) if seen is None else seen
    counts = seen.sum(-1, keepdim=True).clamp(min=1)
    logits = logits.double().where(seen, 0)
    centred = (logits - logits.sum(-1, keepdim=True) / counts).where(seen, 0)
    at = _diagonals(seen)
    which = torch.zeros(len(at), int(at.max()) + 1, dtype=torch.float64, device=at.device)  # query x distance
    which.scatter_(1, at, seen.double())
    used = which.any(0)
    which, sums = which[:, used], _by_diagonal(centred)[..., used]
    normal = torch.diag(which.sum(0)) - which.T @ (which / counts)
    fit = sums @ torch.linalg.pinv(normal, hermitian=True)
    return (fit * sums).sum(-1) / centred.square().sum((-1, -2))


def _diagonals(square: Tensor) -> Tensor:
    """Which diagonal each cell is on: i - j + N - 1."""
    each = torch.arange(square.shape[-1], device=square.device)
    return each[:, None] - each + len(each) - 1


def _by_diagonal(values: Float[Tensor, "*lead N N"]) -> Float[Tensor, "*lead X"]:
    """The sum along each of the 2 N - 1 diagonals."""
    at = _diagonals(values)
    sums = values.new_zeros(*values.shape[:-2], 2 * len(at) - 1)
    return sums.index_add_(-1, at.flatten(), values.flatten(-2))


class HadamardToeplitz(LinearOperator):
    """(left right^T) o C for Toeplitz C, such as the logits of queries and keys times a kernel, as products alone.

    Each of the D terms is a Toeplitz product between two diagonal ones, and a Toeplitz matrix is a corner of a
    circulant one, which a Fourier transform makes diagonal: D N log N, and no N x N matrix. Without `left` and `right`
    it is C itself.

    >>> HadamardToeplitz(torch.tensor([2.0, 1.0, 0.0])) @ np.array([1.0, 0.0, 0.0])
    array([2., 1., 0.])
    """

    def __init__(
        self,
        column: Float[Tensor, " N"],
        row: Float[Tensor, " N"] | None = None,
        left: Float[Tensor, "N D"] | None = None,
        right: Float[Tensor, "N D"] | None = None,
    ) -> None:
        size = len(column)
        super().__init__(np.float64, (size, size))
        self.reach = 1 << (2 * size - 2).bit_length()
        self.symbol = np.fft.rfft(_circulant(column, column if row is None else row, self.reach))[:, None]
        self.left, self.right = (
            np.ones((size, 1)) if each is None else each.double().numpy() for each in (left, right)
        )

    def _matvec(self, x: NDArray) -> NDArray:
        return self._product(x, self.left, self.right, self.symbol)

    def _rmatvec(self, x: NDArray) -> NDArray:
        return self._product(x, self.right, self.left, self.symbol.conj())

    def _product(self, of: NDArray, outer: NDArray, inner: NDArray, symbol: NDArray) -> NDArray:
        waves = symbol * np.fft.rfft(inner * of.reshape(-1, 1), self.reach, axis=0)
        return (outer * np.fft.irfft(waves, self.reach, axis=0)[: len(outer)]).sum(1)


def _circulant(column: Tensor, row: Tensor, reach: int) -> NDArray:
    around = np.zeros(reach)
    around[: len(column)] = column.double().numpy()
    around[reach - len(row) + 1 :] = row.double().numpy()[:0:-1]
    return around


def extreme_eigenvalues(of: LinearOperator) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a symmetric operator by Lanczos' method, to about 1e-5 of the norm."""
    high = _largest(of)
    return high - _largest(high * aslinearoperator(eye_array(of.shape[0])) - of), high


def norm(of: LinearOperator) -> float:
    """The largest singular value of an operator."""
    return _largest(of.H @ of) ** 0.5


def _largest(of: LinearOperator) -> float:
    # Eigenvectors of a symmetric Toeplitz matrix are even or odd: an even start would find no odd ones.
    start = np.random.default_rng(0).normal(size=of.shape[0])
    loose: Any = 1e-4  # of the residual: the value is far closer
    return float(eigsh(of, k=1, which="LA", return_eigenvectors=False, v0=start, tol=loose)[0])


def density(column: Float[Tensor, " N"]) -> Float[Tensor, " N_and_1"]:
    """Where the eigenvalues of a symmetric Toeplitz matrix lie: its symbol at the frequencies w = 0, pi / N, ..., pi.

    sum over d of (1 - |d| / N) t_d cos(d w), by one Fourier transform. Each value is what the matrix makes of one
    wave, a Rayleigh quotient: all lie between the extreme eigenvalues, and they fill that range as N grows.

    >>> density(torch.tensor([1.0, 0.0, 0.0]))
    tensor([1., 1., 1., 1.], dtype=torch.float64)
    """
    size = len(column)
    tapered = column.double() * (1 - torch.arange(size) / size)
    return torch.from_numpy(np.fft.rfft(_circulant(tapered, tapered, 2 * size)).real)
