"""Scoring compared with an efficient version of the published procedure: one Transformer block is rerun per swap, with
many swaps per call, and only the last row of every attention matrix is kept."""

from __future__ import annotations

import itertools
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from transformers import GPTJConfig, GPTJForCausalLM

import wherewhat as ww

SWAPS_PER_CALL = 64


def paper_model(seed: int = 0) -> GPTJForCausalLM:
    """The GPT-J of the multi-hop tasks: 12 layers of one head, width 128; random, with sharp attention."""
    config = GPTJConfig(
        vocab_size=137, n_positions=256, n_embd=128, n_layer=12, n_head=1, rotary_dim=128,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = GPTJForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.attn.q_proj.weight.mul_(8)
            layer.attn.k_proj.weight.mul_(8)
    return model


@torch.no_grad()
def published_procedure(model: GPTJForCausalLM, ids: Tensor, tau: float = 1e-4) -> Tensor:
    """The scores (2, L, H) of one prompt (1, T) by swapping the hidden states that enter each block."""
    entering: list[tuple[tuple, dict]] = []
    rows: list[Tensor] = []
    handles = []
    for block in model.transformer.h:
        handles.append(
            block.register_forward_pre_hook(lambda _, args, kw: entering.append((args, kw)), with_kwargs=True)
        )
        handles.append(block.attn.register_forward_hook(lambda _, __, out: rows.append(out[1][:, :, -1])))
    model(input_ids=ids, use_cache=False)
    for handle in handles[::2]:
        handle.remove()
    real = list(rows)
    keys = ids.shape[1] - 1
    pairs = torch.tensor(list(itertools.combinations(range(keys), 2)))
    orders = torch.arange(keys + 1).repeat(len(pairs), 1)
    orders.scatter_(1, pairs, pairs.flip(1))
    scores = []
    for block, (args, kwargs), row in zip(model.transformer.h, entering, real, strict=True):
        states = args[0] if args else kwargs.pop("hidden_states")
        after = []
        for some in orders.split(SWAPS_PER_CALL):
            rows.clear()
            block(states[0, some], *args[1:], **kwargs)
            after.append(rows[0])
        v = row[0][:, pairs]  # H P 2
        w = torch.cat(after).transpose(0, 1).gather(2, pairs.expand(v.shape[0], -1, -1))
        weight = ((v[..., 0] - v[..., 1]).abs() / tau).softmax(-1)
        cosines = torch.stack([torch.cosine_similarity(w, u, dim=-1) for u in (v, v.flip(-1))])
        scores.append((cosines * weight).sum(-1))
    for handle in handles[1::2]:
        handle.remove()
    return torch.stack(scores, 1)


def agreement(tokens: int, prompts: int) -> dict[str, float]:
    """The largest difference of a score from the published procedure, over all prompts."""
    model = paper_model()
    ids = torch.randint(0, 137, (prompts, tokens), generator=torch.Generator().manual_seed(1))
    scores = ww.score(ww.capture(model, ids))
    mine = torch.stack([scores.positional, scores.symbolic], 1)
    theirs = torch.stack([published_procedure(model, one[None]) for one in ids])
    off = (mine - theirs).abs().flatten(1).amax(1)
    return {"tokens": tokens, "prompts": prompts, "largest difference": float(off.max()), "median": float(off.median())}


def compare(tokens: int, batch: int) -> dict[str, float]:
    """Seconds per prompt of both ways, their ratio, and how well they agree."""
    model = paper_model()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 137, (batch, tokens), generator=generator)
    ww.score(ww.capture(model, ids))  # runs the self-check, once per model, and warms caches

    def ours() -> Tensor:
        scores = ww.score(ww.capture(model, ids))
        return torch.stack([scores.positional[0], scores.symbolic[0]])

    published, taken = [], []
    for _ in range(1 if tokens > 100 else 5):  # alternately, so that both meet the same load on the machine
        start = perf_counter()
        theirs = published_procedure(model, ids[:1])
        published.append(perf_counter() - start)
        for _ in range(3):
            start = perf_counter()
            mine = ours()
            taken.append((perf_counter() - start) / batch)
    return {
        "tokens": tokens,
        "prompts per batch": batch,
        "published s": median(published),
        "wherewhat s": median(taken),
        "ratio": median(published) / median(taken),
        "largest difference": float((mine - theirs).abs().max()),
    }
