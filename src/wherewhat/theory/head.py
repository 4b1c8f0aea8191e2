"""One head defined by the query, key and value of every token, and a Transformer of the lab that computes it."""

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
    """The query and key of every token, and its value as logits over the answers.

    Neighbouring dimensions form planes; the first ones rotate by `angles`, the others are non-rotary. With `residual`
    the query's own token is added to the output of the head: x + a instead of a.

    >>> match = Head((), queries=torch.eye(3), keys=torch.eye(3), values=torch.eye(3))     # a token attends to itself
    >>> match.transformer(beta=9.0)(torch.tensor([[0, 1, 2, 1]]))[0, -1].argmax()
    tensor(1)
    """

    angles: tuple[float, ...]
    queries: Float[Tensor, "V D"]
    keys: Float[Tensor, "V D"]
    values: Float[Tensor, "V A"]
    residual: bool = False

    def transformer(self, beta: float = 1.0) -> Transformer:
        """A one-layer model in float64 with attention logits beta * query . key, and the head's output up to a factor.

        Tokens and answers are rows of a Hadamard matrix: one-hot vectors in a basis that LayerNorm does not change.
        Output logits beyond the A answers are 0.
        """
        vocabulary, answers = self.values.shape
        first = (
            0 if self.residual else vocabulary
        )  # code of an answer: those of the tokens, or others that the stream does not contain
        width = 1 << (max(first + answers, vocabulary, self.queries.shape[1])).bit_length()
        codes = torch.tensor(hadamard(width)[1:], dtype=torch.float64)
        tokens, outputs = codes[:vocabulary], codes[first : first + answers]
        model = Transformer(Shape(vocabulary, layers=1, width=width, hidden=1, angles=self.angles)).double().eval()
        block = model.blocks[0]
        assert isinstance(block, Block)
        tables = (self.queries * beta * width**0.5, self.keys, self.values.double() @ outputs)
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
            for norm in (model.norm, block.norm):
                norm.weight.fill_((1 + norm.eps) ** 0.5)  # compensates for eps at a variance of 1
            model.embedding.weight.copy_(tokens)
            for row, table in enumerate(tables):
                block.inward.weight[row * width :][: table.shape[1]] = table.double().T @ tokens / width
            nn.init.eye_(block.attention_out.weight)
            model.unembedding.weight[:answers] = outputs / width
        return model
