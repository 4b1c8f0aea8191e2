"""The published procedure by brute force, without any code of wherewhat.

For every layer and every pair of blocks: exchange the hidden states that enter the layer, run it again, read the last
row of the model's own eager attention. Scores follow the definition, one swap at a time.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import torch
from torch import Tensor, nn


def attention_modules(model: nn.Module, ids: Tensor) -> list[nn.Module]:
    """The modules that return a (B, H, T, T) attention matrix, in the order in which they run."""
    seen: list[nn.Module] = []

    def look(module, _, output):
        parts = output[1:] if isinstance(output, tuple) else ()
        shows = any(isinstance(o, Tensor) and o.dim() == 4 and o.shape[-2] == ids.shape[1] for o in parts)
        if shows and not any(part in seen for part in module.modules()):
            seen.append(module)

    handles = [module.register_forward_hook(look) for module in model.modules()]
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return seen


def layer_around(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The layer (element of the list of layers) that contains this attention module."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(part is attention for part in layer.modules()):
                    return layer
    raise LookupError("attention outside any list of layers")


def last_rows(
    model: nn.Module, ids: Tensor, attention: nn.Module, swaps: Tensor | None = None, inside: bool = False
) -> Tensor:
    """The model's own last attention row (S, H, T) of one module, after each swap of hidden states before its layer.

    `swaps` (S, T) holds for every swap the order in which the hidden states enter the layer. `inside` exchanges what
    enters the attention module instead, for layers that attend to more than the hidden states that enter them.
    """
    rows: list[Tensor] = []

    def exchange(_, args, kwargs):
        states = args[0] if args else kwargs["hidden_states"]
        states = torch.stack([state[order] for state, order in zip(states, swaps, strict=True)])
        return ((states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": states})

    def read(_, __, output):
        rows.append(next(o for o in output[1:] if isinstance(o, Tensor) and o.dim() == 4)[:, :, -1])

    with ExitStack() as stack, torch.no_grad():
        stack.callback(attention.register_forward_hook(read).remove)
        if swaps is not None:
            layer = attention if inside else layer_around(model, attention)
            stack.callback(layer.register_forward_pre_hook(exchange, with_kwargs=True).remove)
            ids = ids.expand(len(swaps), -1)
        model(input_ids=ids, use_cache=False)
    return rows[0]


def scores(
    model: nn.Module,
    ids: Tensor,
    blocks: list[tuple[int, int]],
    taus: list[float],
    inside: bool = False,
    shares: dict[nn.Module, Tensor] | None = None,
) -> dict[float, Tensor]:
    """For each tau the scores (2, L, H), positional first, of one prompt (1, T). The model must be set to eager.

    `shares` (H) of a module: what its sinks leave to the keys, where its own rows do not say so.
    """
    assert model.config._attn_implementation == "eager"
    pairs = list(itertools.combinations(range(len(blocks)), 2))
    orders = torch.arange(ids.shape[1]).repeat(len(pairs), 1)
    for order, (i, j) in zip(orders, pairs, strict=True):
        (a, b), (c, d) = blocks[i], blocks[j]
        order[a:b], order[c:d] = torch.arange(c, d), torch.arange(a, b)

    def block_means(rows: Tensor) -> Tensor:
        return torch.stack([rows[..., start:stop].mean(-1) for start, stop in blocks], dim=-1)

    results: dict[float, list[Tensor]] = {tau: [] for tau in taus}
    for attention in attention_modules(model, ids):
        before = block_means(last_rows(model, ids, attention)[0].double())
        if shares and attention in shares:
            before = before * shares[attention].double()[:, None]
        after = block_means(last_rows(model, ids, attention, orders, inside).double())
        positional, symbolic, gaps = [], [], []
        for swapped, (i, j) in zip(after, pairs, strict=True):
            v, w = before[:, [i, j]], swapped[:, [i, j]]
            positional.append(torch.cosine_similarity(w, v, dim=-1, eps=0))
            symbolic.append(torch.cosine_similarity(w, v.flip(-1), dim=-1, eps=0))
            gaps.append((v[:, 0] - v[:, 1]).abs())
        cosines = torch.stack([torch.stack(positional), torch.stack(symbolic)])  # 2 P H
        alive = ~cosines.isnan().any(0)
        for tau in taus:
            weight = (torch.stack(gaps) / tau).masked_fill(~alive, -torch.inf).softmax(0)
            results[tau].append((cosines.nan_to_num() * weight).sum(1))
    return {tau: torch.stack(parts, dim=1) for tau, parts in results.items()}
