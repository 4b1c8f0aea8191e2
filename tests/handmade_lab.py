"""One-layer models of the lab whose weights are set by hand, so that what their head does is known."""

from __future__ import annotations

import torch
from scipy.linalg import hadamard

from wherewhat.lab import Shape, Transformer
from wherewhat.tasks import Letter, Number

WIDTH = 256


def _codes(vocabulary: int) -> torch.Tensor:
    """Orthogonal rows of mean 0 and variance 1: LayerNorm leaves them as they are."""
    return torch.tensor(hadamard(WIDTH)[1 : vocabulary + 1], dtype=torch.float32)


def _model(shape: Shape, queries: torch.Tensor, keys: torch.Tensor, readable: torch.Tensor) -> Transformer:
    """Tokens looked up as these queries and keys; values are the codes of the readable tokens."""
    model = Transformer(shape)
    codes = _codes(shape.vocabulary)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
        model.embedding.weight.copy_(codes)
        for norm in (model.norm, model.blocks[0].norm):
            norm.weight.fill_(1)
        inward = model.blocks[0].inward.weight
        inward[:WIDTH] = queries.T @ codes / WIDTH
        inward[WIDTH : 2 * WIDTH] = keys.T @ codes / WIDTH
        inward[2 * WIDTH : 3 * WIDTH] = (codes * readable[:, None]).T @ codes / WIDTH
        model.blocks[0].attention_out.weight.copy_(10 * torch.eye(WIDTH))
        model.unembedding.weight.copy_(codes)
    return model.eval()


def index_head(task: Number) -> Transformer:
    """From an integer m at p the head looks at p - m, whatever stands there."""
    shape = Shape(task.vocabulary, layers=1, heads=1, width=WIDTH, hidden=4)
    angles = torch.tensor(shape.frequencies())
    steps = torch.arange(task.vocabulary).clamp(max=task.longest) * (torch.arange(task.vocabulary) <= task.longest)
    key = torch.stack([torch.ones(len(angles)), torch.zeros(len(angles))], -1).flatten() * 8
    turned = torch.stack([(-steps[:, None] * angles).cos(), (-steps[:, None] * angles).sin()], -1).flatten(1) * 8
    letters = torch.arange(task.vocabulary) > task.longest
    return _model(shape, turned, key.expand(task.vocabulary, -1), letters.float())


def retrieval_head(task: Letter) -> Transformer:
    """From (x, y) the head looks at the token that starts with y, wherever it stands."""
    shape = Shape(task.vocabulary, layers=1, heads=1, width=WIDTH, hidden=4, still_from=0)
    first = torch.tensor([0, *(ord(name[0]) - 64 for name in task.symbols[1:])])
    second = torch.tensor([0, *(ord(name[1]) - 64 if name[1].isalpha() else 0 for name in task.symbols[1:])])
    letters = torch.eye(32, WIDTH) * 20
    return _model(shape, letters[second], letters[first], torch.ones(task.vocabulary))
