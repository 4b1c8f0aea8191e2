"""Everything that a profile measures on one prompt, as one cell: a frozen description and a pure function of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from ...core.exclusion import Exclusion
from ...core.placement import Placement
from ...core.scores import ENTROPY, EXCLUSION, USE, block_index, swap_measure
from ...core.swaps import Weighting, block_attention
from ...core.trace import Trace
from ...core.walk import Measure, every_layer
from ...errors import BadInput
from ...prompts.prompt import joined
from ...tracing import capture
from ...tracing.fingerprint import dtype_name
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from .attention import (
    MOST_QUERIES,
    attention_shares,
    drawn_heads,
    fixed_point,
    stacked_layers,
    strongest_keys,
)
from .prompt_level import score_prompt

VERSION = 4
TAUS = (1e-4, 1e-3, 1e-2, math.inf)
CHECKS = ("attention", "logits", "keys", "swap", "prefix")
# Most blocks in a stored table, and in a finer cut of the blocks.
TABLE_BLOCKS, FINEST_BLOCKS = 64, 512

Span = tuple[int, int]
Within = Callable[[int, int], None]  # progress within a prompt: done, total


def ignore_progress(done: int, total: int) -> None:
    """The default of `within`."""


@dataclass(frozen=True)
class PromptCell:
    """One prompt measured on one model: everything that its numbers depend on."""

    weights: str
    dtype: str
    ids: tuple[int, ...]
    blocks: tuple[Span, ...]
    answer: int | None
    target: int | None
    answer_at: int | None
    tau: float
    table: bool = False
    shown: bool = False  # store its attention on every token
    every_query: bool = False  # store the strongest keys of its queries
    level: str = "keys"
    swaps: int | None = None
    seed: int | None = None
    version: int = VERSION


@dataclass(frozen=True)
class SignatureCell:
    """Repeated random tokens, on which previous-token, current-token and induction heads are recognised."""

    weights: str
    dtype: str
    ids: tuple[int, ...]
    period: int
    version: int = VERSION


def measure_keys(model: PreTrainedModel, cell: PromptCell, _: Within = ignore_progress) -> dict[str, Tensor]:
    """All numbers of one prompt at level keys, from a single forward pass."""
    return measure_trace(capture_cell(model, cell), cell)


def measure_trace(trace: Trace, cell: PromptCell, thorough: bool = True) -> dict[str, Tensor]:
    """All numbers of a forward pass, in one walk over its placement tables; if `thorough`, also with other temperatures
    and other blocks."""
    blocks, tau = cell.blocks, cell.tau
    taus, cuts = (other_taus(tau), other_blocks(blocks)) if thorough else ({}, {})
    after_first = [block for block in blocks if block[0] > 0]
    index = block_index(blocks, trace.keys)
    weightings = [Weighting(value) for value in (tau, *taus.values())]
    if blind := len(after_first) == len(blocks):  # key 0 belongs to no block, so the same swaps serve this weighting
        weightings.append(Weighting(tau, without_first=True))
    measures = {
        "scores": swap_measure(trace, blocks, weightings),
        "frequencies": swap_measure(trace, blocks, [Weighting(tau)], frequencies=True),
        "use": USE,
        "exclusion": EXCLUSION,
        "entropy": ENTROPY,
        "attention": Measure(lambda tables: (tables.attention(), block_attention(tables, index))),
    }
    measures |= {name: swap_measure(trace, spans, [Weighting(tau)]) for name, spans in cuts.items()}
    if not blind and len(after_first) >= 2:
        measures["without first"] = swap_measure(trace, after_first, [Weighting(tau, without_first=True)])
    if cell.table:
        measures["table"] = Measure(lambda tables: (merged_log_mass(tables, index),))
    found = {
        name: [tensor[0] for tensor in tensors]
        for name, tensors in zip(measures, every_layer(trace, *measures.values()), strict=True)
    }
    heads = torch.stack(found["scores"]).unflatten(0, (-1, 3))  # V 3 L H
    without_first = heads[-1] if blind else found.get("without first", torch.full_like(heads[0], torch.nan))
    rows, on_blocks = found["attention"]
    bounds = Exclusion(*found["exclusion"])
    result = seen_in(trace, cell, rows) | {
        "positional": heads[0, 0],
        "symbolic": heads[0, 1],
        "positional_without_first": without_first[0],
        "symbolic_without_first": without_first[1],
        "skipped": heads[0, 2],
        "entropy": found["entropy"][0],
        "variance": bounds.variance,
        "exclusion_bound": bounds.bound,
        "frequency_positional": found["frequencies"][0],
        "frequency_symbolic": found["frequencies"][1],
        "use_norm": found["use"][0],
        "use_max": found["use"][1],
        "block_attention": on_blocks,
        "angles": trace.angles,
        "frequency_ids": torch.tensor(trace.frequency_ids),
    }
    result |= {f"tau {name}": scores for name, scores in zip(taus, heads[1:], strict=False)}
    result |= {f"blocks {name}": torch.stack(found[name]) for name in cuts}
    return result | ({"log_mass": found["table"][0].half()} if cell.table else {})


def measure_whole(model: PreTrainedModel, cell: PromptCell, within: Within = ignore_progress) -> dict[str, Tensor]:
    """All numbers of one prompt at level prompt, from one run of the whole model per swap; there are no frequencies."""
    assert cell.swaps is not None
    assert cell.seed is not None
    ids = torch.tensor([cell.ids], device=entry_device(model))
    trace = capture_cell(model, cell, "prompt")
    scores = score_prompt(
        model, ids, cell.blocks, tau=cell.tau, swaps=cell.swaps, seed=cell.seed,
        progress=lambda _, done, total: within(done, total),
    )  # fmt: skip
    shape = scores.positional.shape
    absent = torch.full(shape, torch.nan)
    seen = seen_in(trace, cell, stacked_layers(trace, trace.attention_rows))
    seen["check"][CHECKS.index("prefix")] = scores.check["prefix"] if scores.cached else torch.nan
    return seen | {
        "positional": scores.positional,
        "positional_low": scores.positional_low,
        "positional_high": scores.positional_high,
        "symbolic": scores.symbolic,
        "symbolic_low": scores.symbolic_low,
        "symbolic_high": scores.symbolic_high,
        "positional_without_first": absent,
        "symbolic_without_first": absent.clone(),
        "skipped": scores.skipped,
        "unseen": scores.unseen,
        "swaps": torch.tensor([scores.swaps, scores.possible]).float(),
        "entropy": scores.entropy,
        "variance": absent.clone(),
        "exclusion_bound": absent.clone(),
        "block_attention": scores.attention,
        "angles": torch.empty(shape[0], 0),
        "frequency_ids": torch.empty(0, dtype=torch.long),
        **{name: torch.empty(*shape, 0) for name in ("frequency_positional", "frequency_symbolic")},
        **{name: torch.empty(*shape, 0) for name in ("use_norm", "use_max")},
    }


def capture_cell(model: PreTrainedModel, cell: PromptCell, level: str = "keys") -> Trace:
    """The forward pass of a cell: of its last query, or of all queries that are stored."""
    tokens = len(cell.ids)
    queries = range(max(1, tokens - MOST_QUERIES), tokens) if cell.every_query else (-1,)
    return capture(model, torch.tensor([cell.ids], device=entry_device(model)), queries, level=level)


def seen_in(trace: Trace, cell: PromptCell, rows: Float[Tensor, "L H T"]) -> dict[str, Tensor]:
    """What one forward pass gives at either level: where attention goes, the answer, and the self-check."""
    assert trace.output is not None
    chances = trace.output[0].softmax(-1)
    if cell.answer is not None and not 0 <= cell.answer < len(chances):
        raise BadInput(f"answer {cell.answer} is not a token id: the model has {len(chances)} tokens")
    correct = None if cell.answer is None else [float(chances[cell.answer]), float(chances.argmax() == cell.answer)]
    seen = attention_shares(rows, cell.blocks, cell.target, cell.answer_at) | strongest_keys(trace)
    return seen | {
        "sink": rows[..., 0],
        "key_attention": rows.flatten(0, 1).nanmean(0),
        "drawn_heads": drawn_heads(rows),
        "token_attention": fixed_point(rows) if cell.shown else torch.empty(0, dtype=torch.uint16),
        "answer": torch.tensor(correct or [-1.0, -1.0]),
        "layers": torch.tensor(trace.layers),
        "kv_groups": torch.tensor([layer.queries.shape[1] // layer.keys.shape[1] for layer in trace.attention]),
        "check": torch.tensor([trace.check.get(name, torch.nan) for name in CHECKS]),
    }


def other_taus(tau: float) -> dict[str, float]:
    """The other temperatures at which a profile is compared."""
    return {f"{other:g}": other for other in TAUS if other != tau}


def other_blocks(blocks: Sequence[Span]) -> dict[str, tuple[Span, ...]]:
    """The same blocks cut finer, into halves and single tokens, and coarser, two and four neighbours joined.

    Halves of an odd number of tokens omit the middle token; blocks without a neighbour are omitted.

    >>> other_blocks([(1, 4), (4, 7), (7, 10), (10, 13)])["two as one"]
    ((1, 7), (7, 13))
    """
    width = blocks[0][1] - blocks[0][0]
    finer = {
        "half": [(at, at + width // 2) for start, stop in blocks for at in (start, stop - width // 2)],
        "one token": [(at, at + 1) for start, stop in blocks for at in range(start, stop)],
    }
    coarser = {"two as one": joined(blocks, 2), "four as one": joined(blocks, 4)}
    cuts = {name: spans for name, spans in finer.items() if name == "one token" or width >= 4} if width > 1 else {}
    return {name: tuple(spans) for name, spans in (cuts | coarser).items() if 2 <= len(spans) <= FINEST_BLOCKS}


def merged_log_mass(placement: Placement, blocks: Int[Tensor, "M W"]) -> Float[Tensor, "*lead G G"]:
    """log S divided by the head's real normaliser: how much attention the content of each block (rows) would receive at
    the positions of each block (columns), so that the diagonal holds the real attention on the blocks.

    Neighbours are merged until at most TABLE_BLOCKS remain; an entry is then the logarithm of the mean of S over the
    merged contents and positions, so that it remains the mass of one block.
    """
    blocks, merged = blocks.to(placement.content.device), blocks_merged(len(blocks))
    logits = placement.logits()
    normaliser = (logits - placement.log_attention())[..., -1]  # at the query's own key, which is never masked

    def mean(log_mass: Tensor, axis: int) -> Tensor:
        parts = log_mass.split(merged, axis)
        return torch.stack([part.logsumexp(axis) - math.log(part.shape[axis]) for part in parts], axis)

    tables, everything = placement.flat().by_block(blocks), torch.arange(len(blocks), device=blocks.device)
    rows = []
    for some in everything.split(8 * merged):
        log_mass = tables.between(some, everything).logsumexp(0)
        rows.append(mean(mean(log_mass, -1), -2) if merged > 1 else log_mass)
    return torch.cat(rows, -2).unflatten(0, placement.lead) - normaliser[..., None, None]


def blocks_merged(blocks: int) -> int:
    """How many neighbouring blocks one row of the stored table stands for."""
    return -(-blocks // TABLE_BLOCKS)


def signature_cell(model: PreTrainedModel, weights: str, seed: int, period: int = 48) -> SignatureCell:
    """A sequence of random tokens, repeated once, as long as the context allows."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    period = max(4, min(period, (stated_context(model) or 512) // 2 - 2))
    draw = torch.Generator().manual_seed(seed)
    once = torch.randint(min(10, vocabulary // 2), vocabulary, (period,), generator=draw).tolist()
    return SignatureCell(weights, dtype_name(model), (once[-1], *once, *once), period)


def measure_signature(model: PreTrainedModel, cell: SignatureCell) -> dict[str, Tensor]:
    """Mean attention on the previous token, on the query itself, and on the token that followed its last occurrence."""
    tokens = len(cell.ids)
    queries = list(range(tokens - cell.period // 2, tokens))
    trace = capture(model, torch.tensor([cell.ids], device=entry_device(model)), queries=queries, level="prompt")
    behind = {"previous_token": 1, "induction": cell.period - 1, "current_token": 0}  # tokens from the query back
    rows = stacked_layers(trace, lambda layer: trace.attention[layer].attention(slice(None), queries))  # L H Q T
    at = torch.tensor(queries)[:, None]
    return {
        name: rows.gather(-1, (at - distance).expand(*rows.shape[:-1], 1)).squeeze(-1).mean(-1)
        for name, distance in behind.items()
    }
