"""Everything that a profile measures on one prompt, as one cell: a frozen description and a pure function of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ...core.placement import Placement
from ...core.scores import Scores, block_index, entropy, exclusion, frequency_use, score, score_frequencies
from ...core.swaps import block_attention
from ...core.trace import Trace
from ...errors import BadInput
from ...tracing import capture
from ...tracing.fingerprint import dtype_name
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from .prompt_level import score_prompt

VERSION = 3
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
    tau: float
    table: bool = False
    level: str = "keys"
    swaps: int | None = None
    seed: int | None = None
    version: int = VERSION


@dataclass(frozen=True)
class SignatureCell:
    """Repeated random tokens, on which previous-token and induction heads are recognised."""

    weights: str
    dtype: str
    ids: tuple[int, ...]
    period: int
    version: int = VERSION


def measure_keys(model: PreTrainedModel, cell: PromptCell, _: Within = ignore_progress) -> dict[str, Tensor]:
    """All numbers of one prompt at level keys, from a single forward pass."""
    trace = capture(model, torch.tensor([cell.ids], device=entry_device(model)))
    blocks, tau = cell.blocks, cell.tau
    heads, blind = score(trace, blocks, tau), without_first(trace, blocks, tau)
    alone, use, bounds = score_frequencies(trace, blocks, tau), frequency_use(trace), exclusion(trace)
    index = block_index(blocks, trace.keys)
    result = seen_in(trace, cell) | {
        "positional": heads.positional[0],
        "symbolic": heads.symbolic[0],
        "positional_without_first": blind[0],
        "symbolic_without_first": blind[1],
        "skipped": heads.skipped[0],
        "entropy": entropy(trace)[0],
        "variance": bounds.variance[0],
        "exclusion_bound": bounds.bound[0],
        "frequency_positional": alone.positional[0],
        "frequency_symbolic": alone.symbolic[0],
        "use_norm": use.norm[0],
        "use_max": use.maximum[0],
        "block_attention": _stacked_layers(trace, lambda layer: block_attention(trace.placements(layer), index)),
        "angles": trace.angles,
        "frequency_ids": torch.tensor(trace.frequency_ids),
    }
    for name, other in other_taus(tau).items():
        result[f"tau {name}"] = _stacked(score(trace, blocks, other))
    for name, spans in other_blocks(blocks).items():
        result[f"blocks {name}"] = _stacked(score(trace, spans, tau))
    if cell.table:
        result["log_mass"] = _stacked_layers(
            trace, lambda layer: merged_log_mass(trace.placements(layer), index)
        ).half()
    return result


def measure_whole(model: PreTrainedModel, cell: PromptCell, within: Within = ignore_progress) -> dict[str, Tensor]:
    """All numbers of one prompt at level prompt, from one run of the whole model per swap; there are no frequencies."""
    assert cell.swaps is not None
    assert cell.seed is not None
    ids = torch.tensor([cell.ids], device=entry_device(model))
    trace = capture(model, ids, level="prompt")
    scores = score_prompt(
        model, ids, cell.blocks, tau=cell.tau, swaps=cell.swaps, seed=cell.seed,
        progress=lambda _, done, total: within(done, total),
    )  # fmt: skip
    shape = scores.positional.shape
    absent = torch.full(shape, torch.nan)
    seen = seen_in(trace, cell)
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


def without_first(trace: Trace, blocks: Sequence[Span], tau: float) -> Float[Tensor, "2 L H"]:
    """Both scores with key 0 removed from the softmax and the blocks; NaN if fewer than two blocks remain."""
    if sum(start > 0 for start, _ in blocks) < 2:
        return torch.full((2, len(trace.attention), max(x.queries.shape[1] for x in trace.attention)), torch.nan)
    scores = score(trace, blocks, tau, without_first=True)
    return torch.stack([scores.positional[0], scores.symbolic[0]])


def seen_in(trace: Trace, cell: PromptCell) -> dict[str, Tensor]:
    """What one forward pass gives at either level: where attention goes, the answer, and the self-check."""
    rows = _stacked_layers(trace, trace.attention_rows)
    assert trace.output is not None
    chances = trace.output[0].softmax(-1)
    if cell.answer is not None and not 0 <= cell.answer < len(chances):
        raise BadInput(f"answer {cell.answer} is not a token id: the model has {len(chances)} tokens")
    answered = [-1.0, -1.0] if cell.answer is None else [chances[cell.answer], float(chances.argmax() == cell.answer)]
    return {
        "sink": rows[..., 0],
        "key_attention": rows.flatten(0, 1).nanmean(0),
        "answer": torch.tensor(answered),
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


def joined(blocks: Sequence[Span], number: int) -> list[Span]:
    """Every `number` adjacent blocks joined into one, from the first on.

    >>> joined([(1, 3), (3, 5), (6, 8), (8, 10)], 2)
    [(1, 5), (6, 10)]
    """
    spans: list[Span] = []
    run: list[Span] = []
    for block in blocks:
        run = [*run, block] if run and run[-1][1] == block[0] else [block]
        if len(run) == number:
            spans.append((run[0][0], block[1]))
            run = []
    return spans


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

    rows = []
    for some in blocks.split(8 * merged):
        elements = logits[..., 0].numel() * some.numel() * len(blocks)
        log_mass = placement.block_log_mass(some, blocks, logits.new_empty(elements))
        rows.append(mean(mean(log_mass, -1), -2) if merged > 1 else log_mass)
    return torch.cat(rows, -2) - normaliser[..., None, None]


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
    """Mean attention on the previous token, and on the token that followed the query's last occurrence."""
    tokens = len(cell.ids)
    queries = list(range(tokens - cell.period // 2, tokens))
    trace = capture(model, torch.tensor([cell.ids], device=entry_device(model)), queries=queries, level="prompt")
    previous, induction = [], []
    for query in queries:
        rows = _stacked_layers(trace, trace.at(query).attention_rows)
        previous.append(rows[..., query - 1])
        induction.append(rows[..., query - cell.period + 1])
    return {"previous_token": torch.stack(previous).mean(0), "induction": torch.stack(induction).mean(0)}


def _stacked(scores: Scores) -> Float[Tensor, "3 L H"]:
    return torch.stack([scores.positional[0], scores.symbolic[0], scores.skipped[0]])


def _stacked_layers(trace: Trace, of_layer: Callable[[int], Tensor]) -> Float[Tensor, "L H *rest"]:
    """The values of every layer for a single prompt; NaN for heads that a layer does not have."""
    layers = [of_layer(number)[0].cpu() for number in range(len(trace.attention))]
    heads = max(map(len, layers))
    return torch.stack(
        [pad(layer, (*(0, 0) * (layer.dim() - 1), 0, heads - len(layer)), value=torch.nan) for layer in layers]
    )
