"""Where the attention of every head goes: on the blocks, on the answer, on every token of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, UInt16
from torch import Tensor
from torch.nn.functional import pad

from ...core.trace import Trace

# The columns of attention in the table of heads, which have intervals over prompts, and their names in a cell.
SHARES = {name: name for name in ("on_blocks", "on_query", "on_first", "elsewhere", "answer_token")}
SHARES |= {"answer": "answer_block"}
# What is stored for display: the attention of the last query on every token, for the first prompts; and for the first
# prompt, of each of its last queries, the keys with the most attention. Shares are stored as whole numbers of 1/65535.
SHOWN_PROMPTS, MOST_QUERIES, TOP_KEYS, SCALE = 8, 1024, 8, 65535
# A sink is a token before the blocks on which at least SINK_HEADS of all heads put at least DRAWN of their attention;
# the latter is the threshold of Gu et al., 2025, arXiv 2410.10781.
DRAWN, SINK_HEADS = 0.3, 0.1
STRIP = 2**23  # elements of the attention of a strip of queries


def attention_shares(
    rows: Float[Tensor, "L H T"], blocks: Sequence[tuple[int, int]], target: int | None, answer_at: int | None
) -> dict[str, Float[Tensor, "L H"]]:
    """How each head divides the attention of the last query, and how much of it is on the answer.

    `on_blocks`, `on_query` (the query's own token), `on_first` (the first token of the prompt) and `elsewhere` add up
    to 1, except that a first token inside a block counts twice, and that learned sinks of a model take the rest.
    `answer` is the attention on the block that holds the answer, `answer_token` on the answer inside it;
    `answer_chance` is `on_blocks` divided by the number of blocks: what evenly spread attention would give the block.
    """
    inside = torch.zeros(rows.shape[-1], dtype=torch.bool)
    for start, stop in blocks:
        inside[start:stop] = True
    others = ~inside
    others[[0, -1]] = False
    absent = rows.new_full(rows.shape[:-1], torch.nan)
    on_blocks = rows[..., inside].sum(-1)
    return {
        "on_blocks": on_blocks,
        "on_query": rows[..., -1],
        "on_first": rows[..., 0],
        "elsewhere": rows[..., others].sum(-1),
        "answer_block": absent if target is None else rows[..., slice(*blocks[target])].sum(-1),
        "answer_token": absent.clone() if answer_at is None else rows[..., answer_at],
        "answer_chance": absent.clone() if target is None else on_blocks / len(blocks),
    }


def drawn_heads(rows: Float[Tensor, "L H T"]) -> Float[Tensor, " T"]:
    """The share of all heads that put at least DRAWN of their attention on each token."""
    heads = rows.flatten(0, 1)
    return (heads[~heads.isnan().any(-1)] >= DRAWN).float().mean(0)


def sinks_before(drawn: Float[Tensor, " T"], blocks: Sequence[tuple[int, int]]) -> Bool[Tensor, " T"]:
    """Which tokens are sinks: before the blocks, and attended to by enough heads. Tokens after the blocks are close to
    the query, and may be attended to for that reason."""
    before = torch.arange(len(drawn)) < min(start for start, _ in blocks)
    return before & (drawn >= SINK_HEADS)


def fixed_point(shares: Float[Tensor, "*axes"]) -> UInt16[Tensor, "*axes"]:
    """Shares as multiples of 1/65535, which are at most 7.7e-6 away; 0 for heads that a layer does not have."""
    return (shares.nan_to_num() * SCALE).round().clamp(0, SCALE).to(torch.uint16)


def from_fixed_point(stored: UInt16[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    return stored.float() / SCALE


def strongest_keys(trace: Trace) -> dict[str, UInt16[Tensor, "L H Q K"]]:
    """For every captured query the TOP_KEYS keys with the most attention, the largest first, and the attention."""
    if len(trace.positions) < 2 or trace.positions[-1] > SCALE:
        return {}
    top = min(TOP_KEYS, trace.positions[-1] + 1)

    def of_layer(number: int) -> Tensor:
        layer = trace.attention[number]
        strip = max(1, STRIP // (layer.queries.shape[1] * layer.keys.shape[2]))
        parts = []
        for at in range(0, len(trace.positions), strip):
            found = layer.attention(slice(at, at + strip), trace.positions[at : at + strip]).topk(top)
            parts.append(torch.stack([found.values, found.indices.float()], -1).cpu())
        return torch.cat(parts, 2)

    values, keys = stacked_layers(trace, of_layer).unbind(-1)
    return {"strongest_attention": fixed_point(values), "strongest_keys": keys.nan_to_num().to(torch.uint16)}


def stacked_layers(trace: Trace, of_layer: Callable[[int], Tensor]) -> Float[Tensor, "L H *rest"]:
    """The values of every layer for a single prompt; NaN for heads that a layer does not have."""
    layers = [of_layer(number)[0].cpu() for number in range(len(trace.attention))]
    heads = max(map(len, layers))
    return torch.stack(
        [pad(layer, (*(0, 0) * (layer.dim() - 1), 0, heads - len(layer)), value=torch.nan) for layer in layers]
    )
