"""The basic functions of the multi-hop paper as maps of token sequences, and the hop maps composed of them.

Each map gives the token at every position after one application, and where it is defined. Index: a number m becomes
the token m places to its left if that is a letter, everything else stays. Retrieval: a pair xy becomes the token that
starts with y; it is defined where some token up to that position does, and all that do are the same token. Reflexive:
everything stays.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..tasks import Letter, Number
from .constructions import letters_of

Mapped = tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]


def index_map(task: Number, tokens: Int[Tensor, "B T"]) -> Mapped:
    """
    >>> task = Number(targets=3, pretargets=2, letters=3)
    >>> task.decode(index_map(task, task.encode("c b a 1 4 1")[None])[0][0])
    'c b a a c 1'
    """
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    steps = torch.where(tokens <= task.longest, tokens, 0)
    at = places - steps
    found = tokens.gather(1, at.clamp(min=0))
    return torch.where(found > task.longest, found, tokens), at >= 0


def retrieval_map(task: Letter, tokens: Int[Tensor, "B T"]) -> Mapped:
    """
    >>> task = Letter(targets=3, pretargets=2)
    >>> mapped, defined = retrieval_map(task, task.encode("C2 B1 A3 FA EC DE")[None])
    >>> task.decode(mapped[0]), defined[0].tolist()
    ('C2 B1 A3 A3 C2 EC', [True, True, True, True, True, True])
    """
    left, right = (letters[tokens] for letters in letters_of(task))
    match = (left[:, None, :] == right[:, :, None]).tril()  # query, key
    held = tokens[:, None].expand(match.shape)
    most, least = held.masked_fill(~match, -1).amax(-1), held.masked_fill(~match, task.vocabulary).amin(-1)
    defined = most == least
    return torch.where(defined, most, tokens), defined


def hop_map(task: Number | Letter, tokens: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """f_NUM or f_LET: Index or Retrieval applied once for each of the most hops, read at the last position.

    What is reached early stays: applied to a letter or to a pair of a letter and a digit, both maps are Reflexive.
    """
    for _ in range(task.most_hops):
        tokens = (index_map(task, tokens) if isinstance(task, Number) else retrieval_map(task, tokens))[0]
    return tokens[:, -1]
