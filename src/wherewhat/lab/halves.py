"""The gradient of a batch in two halves, each in a thread of its own.

On two cores this is faster than splitting every matrix product between them: neither core waits for the other, and the
work between the products runs in parallel, too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch
from torch import Tensor

from .transformer import Transformer

Loss = Callable[[Transformer, slice], Tensor]  # of some rows of the batch


class Halves:
    """A model and its twin, which has the same weights, in the same memory, and gradients of its own."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.twin = model, deepcopy(model)
        for own, shared in zip(self.twin.parameters(), model.parameters(), strict=True):
            own.data = shared.data
        self._pool = ThreadPoolExecutor(1, "wherewhat-half")

    def gradients(self, loss_of: Loss, batch: int) -> float:
        """The sum of the losses of both halves, whose gradient is added to that of the model; on one thread, the loss
        of the whole batch."""
        threads = torch.get_num_threads()
        if threads == 1 or batch == 1:
            return _backward(loss_of(self.model, slice(0, batch)))

        def half(model: Transformer, rows: slice) -> float:
            torch.set_num_threads(max(1, threads // 2))  # of the thread that calls
            return _backward(loss_of(model, rows))

        waiting = self._pool.submit(half, self.twin, slice(batch // 2, batch))
        try:
            losses = half(self.model, slice(0, batch // 2)), waiting.result()
        finally:
            torch.set_num_threads(threads)
        for own, other in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            assert own.grad is not None
            assert other.grad is not None
            own.grad.add_(other.grad)
            other.grad = None
        return sum(losses)


def _backward(loss: Tensor) -> float:
    loss.backward()
    return float(loss.detach())
