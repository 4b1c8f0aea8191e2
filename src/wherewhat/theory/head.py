"""One head given token by token, and the lab's Transformer that computes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.linalg import hadamard
from torch import Tensor, nn

from ..lab import Shape, Transformer
from ..lab.transformer import Block


@dataclass(frozen=True)
class Head:
    """What every token asks for, what it offers, and what it says of every answer once it is attended to.

    Neighbouring dimensions form planes; the first ones turn by `angles`, the others stand still. With `residual` the
    query's own token, as an answer, joins what the head says: x + a instead of a.

    >>> match = Head((), queries=torch.eye(3), keys=torch.eye(3), values=torch.eye(3))     # a token asks for itself
    >>> match.transformer(beta=9.0)(torch.tensor([[0, 1, 2, 1]]))[0, -1].argmax()
    tensor(1)
    """

    angles: tuple[float, ...]
    queries: Float[Tensor, "V D"]
    keys: Float[Tensor, "V D"]
    values: Float[Tensor, "V A"]
    residual: bool = False

    def transformer(self, beta: float = 1.0) -> Transformer:
        """One layer in float64 whose logits are beta * query . key, and whose output is the head's up to a factor.

        Tokens and answers are rows of a Hadamard matrix, one-hot vectors in a basis that LayerNorm leaves alone.
        Answers beyond A, which the output also has room for, get nothing.
        """
        vocabulary, answers = self.values.shape
        first = 0 if self.residual else vocabulary  # of the answers: the tokens themselves, or unseen by the stream
        width = 1 << (max(first + answers, vocabulary, self.queries.shape[1])).bit_length()
        codes = torch.tensor(hadamard(width)[1:], dtype=torch.float64)
        tokens, spoken = codes[:vocabulary], codes[first : first + answers]
        model = Transformer(Shape(vocabulary, layers=1, width=width, hidden=1, angles=self.angles)).double().eval()
        block = model.blocks[0]
        assert isinstance(block, Block)
        said = (self.queries * beta * width**0.5, self.keys, self.values.double() @ spoken)
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
            for norm in (model.norm, block.norm):
                norm.weight.fill_((1 + norm.eps) ** 0.5)  # undoes what eps takes off a variance of 1
            model.embedding.weight.copy_(tokens)
            for row, table in enumerate(said):
                block.inward.weight[row * width :][: table.shape[1]] = table.double().T @ tokens / width
            nn.init.eye_(block.attention_out.weight)
            model.unembedding.weight[:answers] = spoken / width
        return model
