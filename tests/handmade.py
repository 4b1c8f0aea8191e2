"""A small GPT-J with four handmade heads: one attends by position, one by symbol, one by both, one uniformly.

Each head's logit is known in closed form, so its scores follow from the definition without any model; a real
forward pass through a real GPT-J must then give the same numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GPTJConfig, GPTJForCausalLM

HEADS = ("positional", "symbolic", "mixed", "uniform")
SYMBOLS, TOKENS = 24, 25
WIDTH, HEAD_DIM, TURNING = 32, 8, 4  # each head: two planes with angles 1 and 0.01, four non-rotary dimensions
SHARPNESS = 9.0


@dataclass(frozen=True)
class Handmade:
    """The model, and the appeal of every symbol to the symbolic heads."""

    model: GPTJForCausalLM
    appeal: Float[Tensor, " symbols"]

    def table(self, symbols: Int[Tensor, " T"]) -> Float[Tensor, "H T T"]:
        """The closed form: the logit of content a at position b, for a query at the last position.

        where: a cosine of the distance that peaks at the token before the query; what: the symbol's appeal;
        mixed: half of each; uniform: nothing.
        """
        places = torch.arange(len(symbols), dtype=torch.float64)
        where = SHARPNESS * torch.cos(places - (len(symbols) - 2)).expand(len(symbols), -1)
        what = SHARPNESS * self.appeal.double()[symbols][:, None].expand(-1, len(symbols))
        return torch.stack([where, what, (where + what) / 2, torch.zeros_like(where)])

    def theory(self, symbols: Int[Tensor, " T"], tau: float = 1e-4) -> Float[Tensor, "H 2"]:
        """Both scores of every head by definition, with explicit swaps in float64."""
        table = self.table(symbols)
        attention = table.diagonal(dim1=-2, dim2=-1).softmax(-1)
        gaps, cosines = [], []
        for i, j in itertools.combinations(range(len(symbols) - 1), 2):
            before = attention[:, [i, j]]
            after = torch.stack([table[:, j, i], table[:, i, j]], -1)
            after = (after - after.amax(-1, keepdim=True)).exp()
            gaps.append((before[:, 0] - before[:, 1]).abs() / tau)
            cosines.append(torch.stack([torch.cosine_similarity(after, v, dim=-1) for v in (before, before.flip(-1))]))
        weights = torch.stack(gaps).softmax(0)  # pairs H
        return (torch.stack(cosines) * weights[:, None]).sum(0).T


def build(seed: int = 0) -> Handmade:
    """One layer, four heads. Coordinate 0 of the layer's input is 1 for every token, the others encode the symbol."""
    config = GPTJConfig(
        vocab_size=SYMBOLS, n_positions=128, n_embd=WIDTH, n_layer=1, n_head=len(HEADS), rotary_dim=TURNING,
        layer_norm_epsilon=1e-12, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    # Rows with equal numbers of +1 and -1: the layer norm leaves them unchanged.
    codes = _hadamard(WIDTH)[1 : SYMBOLS + 1]
    appeal = torch.cos(2 * torch.pi * torch.rand(SYMBOLS, generator=generator))  # spread like the cosine of a distance
    reads_appeal = codes.T @ appeal / WIDTH  # the codes are orthogonal, and their coordinate 0 is 1
    model = GPTJForCausalLM(config).eval()
    body: Any = model.transformer  # its parts are plain modules to a type checker
    layer = body.h[0]
    with torch.no_grad():
        body.wte.weight.copy_(codes)
        layer.ln_1.weight[0], layer.ln_1.bias[0] = 0, 1
        for weight in (layer.attn.q_proj.weight, layer.attn.k_proj.weight):
            weight.zero_()
        gain = SHARPNESS * HEAD_DIM**0.5
        for head, (where, what) in enumerate([(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.0, 0.0)]):
            first = head * HEAD_DIM
            query, key = layer.attn.q_proj.weight[first:], layer.attn.k_proj.weight[first:]
            key[0, 0] = 1.0  # the same key everywhere on the plane of angle 1 ...
            query[0, 0], query[1, 0] = where * gain * _COS, -where * gain * _SIN  # ... and a query one step behind it
            key[TURNING] = reads_appeal  # the symbol's appeal on a non-rotary dimension
            query[TURNING, 0] = what * gain
    return Handmade(model, codes @ reads_appeal)


def prompts(count: int, seed: int = 0) -> Int[Tensor, "B T"]:
    """Random symbols."""
    return torch.randint(SYMBOLS, (count, TOKENS), generator=torch.Generator().manual_seed(seed))


_COS, _SIN = torch.tensor(1.0).cos().item(), torch.tensor(1.0).sin().item()


def _hadamard(size: int) -> Float[Tensor, "size size"]:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
