"""Toeplitz matrices, which depend on distance alone: the kernel of a rotation, and the Toeplitz part of any logits."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def kernel(angles: Float[Tensor, " F"], length: int) -> Float[Tensor, " N"]:
    """The kernel C = mean over planes of cos(angle (i - j)), for distances i - j from 0 to length - 1.

    As a matrix it is positive semidefinite with ones on its diagonal, so the Hadamard product with it is a contraction.

    >>> kernel(torch.tensor([0.0, 1.0]), 3)
    tensor([1.0000, 0.7702, 0.2919], dtype=torch.float64)
    """
    return (torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * angles.cpu().double()).cos().mean(-1)


def kernel_eigenvalues(angles: Float[Tensor, " F"], length: int) -> Float[Tensor, " two_F"]:
    """The nonzero eigenvalues of the kernel matrix, largest first. It has rank at most 2 F, whatever its length.

    >>> [round(value, 6) for value in kernel_eigenvalues(torch.tensor([0.0, torch.pi]), 100)[:3].tolist()]
    [50.0, 50.0, 0.0]
    """
    phases = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * angles.cpu().double()
    waves = torch.cat([phases.cos(), phases.sin()], 1)
    return torch.linalg.eigvalsh(waves.T @ waves / len(angles)).flip(0).clamp(min=0)


def square(column: Float[Tensor, " N"], row: Float[Tensor, " N"] | None = None) -> Float[Tensor, "N N"]:
    """The Toeplitz matrix with this first column and first row; `row` is `column` unless given.

    >>> square(torch.tensor([2.0, 1.0, 0.0]))
    tensor([[2., 1., 0.],
            [1., 2., 1.],
            [0., 1., 2.]])
    """
    row = column if row is None else row
    by_distance = torch.cat([row.flip(0)[:-1], column])  # j - i from N - 1 to 1, then i - j from 0 to N - 1
    at = torch.arange(len(column), device=column.device)
    return by_distance[at[:, None] - at + len(column) - 1]


def everything(logits: Float[Tensor, "*lead N N"]) -> Bool[Tensor, "N N"]:
    """A mask in which every query sees every key."""
    return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)


def toeplitz_part(
    logits: Float[Tensor, "*lead N N"], seen: Bool[Tensor, "N N"] | None = None
) -> Float[Tensor, "*lead N N"]:
    """The nearest Toeplitz matrix: the mean along each diagonal, over the entries that are `seen`. All others are 0.

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
    """The Toeplitz part's share of the variance of the entries that are `seen`."""
    seen = everything(logits) if seen is None else seen
    logits = logits.double().where(seen, 0)
    centred = (logits - logits.sum((-1, -2), keepdim=True) / seen.sum()).where(seen, 0)
    return toeplitz_part(centred, seen).square().sum((-1, -2)) / centred.square().sum((-1, -2))


def distance_share(
    logits: Float[Tensor, "*lead N N"], seen: Bool[Tensor, "N N"] | None = None
) -> Float[Tensor, "*lead"]:
    """The share of the variance within queries that is explained by distance alone.

    A constant added to all logits of a query does not change its attention. The logits are therefore fitted, by least
    squares, with one constant per query plus one function of distance.
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
    """The diagonal that each entry is on: i - j + N - 1."""
    each = torch.arange(square.shape[-1], device=square.device)
    return each[:, None] - each + len(each) - 1


def _by_diagonal(values: Float[Tensor, "*lead N N"]) -> Float[Tensor, "*lead X"]:
    """The sum along each of the 2 N - 1 diagonals."""
    at = _diagonals(values)
    sums = values.new_zeros(*values.shape[:-2], 2 * len(at) - 1)
    return sums.index_add_(-1, at.flatten(), values.flatten(-2))
