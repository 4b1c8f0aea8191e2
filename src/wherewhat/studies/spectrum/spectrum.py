"""How position shapes the logits of every head of a model: which heads depend on distance alone, which couple content
with position, and how well conditioned the logits are with the model's rotation, without it, and with other bases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...cells.cells import check_writable, kept, run_cells
from ...cells.executors import LocalOnly
from ...core.rotation import Rotation
from ...core.spectrum import (
    Contents,
    SingularValues,
    finite_bias,
    majorised,
    seen_logits,
    singular_values,
    two_way,
    with_base,
)
from ...core.toeplitz import distance_share, kernel, kernel_eigenvalues, square, toeplitz_share
from ...core.trace import AttentionLayer, Trace
from ...errors import BadInput
from ...lab import Transformer
from ...prompts import Prompt, PromptRequest, make_prompts
from ...prompts.multihop import multihop
from ...results import Progress, Result, Say, check_seed, ignore_progress, ignore_sentence, versions
from ...tracing import capture
from ...tracing.fingerprint import dtype_name, model_hash, weights_hash
from ...tracing.load import AnyModel, Loading, is_lab_model, open_model
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context
from ...words import name_layers

BASES = (100.0, 1e3, 1e4, 1e5, 1e6)
SAMPLES, LAB_SAMPLES = 4, 32  # prompts by default: for language models, and for models of the lab
LONG = (64, 256, 1024, 4096, 16_384, 65_536)  # lengths of the kernels
MEASURES = ("norm", "condition", "effective_rank")
SHARES = ("content", "position", "interaction", "toeplitz", "distance", "kernel_norm", "majorised")
RESOLVED = 1e7  # larger condition numbers are beyond the precision of float32 queries and keys: infinite
LARGEST = 2**24  # logits in memory at a time: 128 MB


@dataclass(frozen=True)
class SpectrumCell:
    """One prompt on one model."""

    weights: str
    dtype: str
    ids: tuple[int, ...]
    bases: tuple[float, ...]
    lengths: tuple[int, ...]
    version: int = 1


@dataclass(frozen=True)
class Spectrum(Result, file="spectrum.json", kind="spectrum"):
    """Three tables: `heads` has one row per head, `spectra` one per head, rotation and number of tokens, `kernels` one
    per rotation and number of tokens. Values are means over prompts, geometric means for norms and condition numbers.

    From the logits of the last query, contents x positions: the shares of variance `content`, `position` and
    `interaction`. From the logits of all queries: the shares explained by distance alone, `toeplitz` of all variance,
    `distance` of the variance within queries, which is what attention depends on. From queries keys^T: `norm`,
    `condition` and `effective_rank`, with the suffix `_unrotated` without rotation; `majorised`, the share of prompts
    on which the sums of the largest singular values shrink; and `kernel_norm`, the fraction of the unrotated norm that
    the Hadamard product with the mean kernel would leave.
    """

    heads: pd.DataFrame
    spectra: pd.DataFrame
    kernels: pd.DataFrame
    about: dict[str, Any]


def spectrum(
    model: AnyModel,
    prompts: Sequence[Prompt] | None = None,
    *,
    folder: str | Path | None = None,
    task: str | None = None,
    pairs: int | None = None,
    samples: int | None = None,
    base: Sequence[float] | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> Spectrum:
    """Share of distance, content and position in the logits of every head, and their singular values.

    `model` is a model, whatever `ww.load` takes, "number", "letter" or the folder of a training run. `prompts` are
    given, or made for `task` as in `ww.profile`: "binding" (the default, with `pairs`), "repeats", a .txt file or a
    .jsonl file; models of the lab read sequences of their own task. `samples` is 4, or 32 for models of the lab.

    The same queries and keys are also rotated with every other `base` (100, 1e3, 1e4, 1e5 and 1e6), and shorter lengths
    are the first tokens of each prompt: the model runs once per prompt. With a `folder`, the result is saved there, and
    an interrupted run resumes.

    >>> found = ww.spectrum("HuggingFaceTB/SmolLM2-135M", pairs=32)                    # doctest: +SKIP
    >>> found.heads.nlargest(5, "distance")                                            # doctest: +SKIP
    """
    bases = BASES if base is None else tuple(base)
    if not all(one > 1 for one in bases):
        raise BadInput(f"a base must be larger than 1, got {list(bases)}")
    if samples is not None and samples < 1:
        raise BadInput(f"samples must be at least 1, got {samples}")
    check_seed(seed)
    if folder is not None:
        check_writable(Path(folder))
    lab = isinstance(model, Transformer) or (isinstance(model, (str, Path)) and is_lab_model(model))
    request = None
    if prompts is None and lab and (task or pairs):
        name = model if isinstance(model, (str, Path)) else "this model"
        raise BadInput(f"{name} reads sequences of its own task: task and pairs do not apply")
    if prompts is None and not lab:
        task = task or "binding"
        fixed = task.endswith(".jsonl")  # the file determines how many prompts there are
        request = PromptRequest(task, pairs=pairs, samples=samples if samples or fixed else SAMPLES)
    if isinstance(model, (str, Path)):
        progress(f"loading {model}", 0, 1)
    opened = open_model(model, tokenizer, **loading)
    settings: dict[str, Any] = {}
    if request is not None:
        prompts, request = make_prompts(request, opened.tokenizer, stated_context(opened.model) or 2048, seed)
        settings = request.settings()
    elif prompts is None:
        settings = {"task": opened.task, "samples": samples or LAB_SAMPLES}
        prompts = multihop(opened.task or "", settings["samples"], seed)
    about = {"model": opened.name, "revision": loading.get("revision"), "seed": seed, "settings": settings}
    found = _spectrum(opened.model, prompts, bases, None if folder is None else Path(folder), about, progress, say)
    if folder is not None:
        found.save(folder)
    return found


def _spectrum(
    model: PreTrainedModel | Transformer,
    prompts: Sequence[Prompt],
    bases: Sequence[float],
    folder: Path | None,
    about: dict[str, Any],
    progress: Progress,
    say: Say,
) -> Spectrum:
    """Measure every prompt as a cell, and make tables of them."""
    if not prompts:
        raise BadInput("a spectrum needs at least one prompt")
    shortest = min(len(prompt.ids) for prompt in prompts) - 1
    if shortest < 4:
        raise BadInput(f"a spectrum needs prompts of at least 5 tokens, got {shortest + 1}")
    lengths = (*(2**power for power in range(3, 20) if 2**power < shortest), shortest)
    weights = model_hash(model) if isinstance(model, PreTrainedModel) else weights_hash(model)
    dtype = dtype_name(model) if isinstance(model, PreTrainedModel) else "float32"
    cells = [SpectrumCell(weights, dtype, prompt.ids, tuple(bases), lengths) for prompt in prompts]
    keep = None if folder is None else folder / "cells"
    if before := kept(keep, cells):
        say(f"{before} of {len(cells)} prompts were measured before")
    results: list[dict[str, Tensor]] = []
    show = LocalOnly(lambda share: progress("prompts", len(results) + share, len(cells)))

    def compute(cell: SpectrumCell) -> dict[str, Tensor]:
        return measure_prompt(model, cell, show)

    for result in run_cells(keep, cells, compute, "prompts"):
        results.append(result)
        progress("prompts", len(results), len(cells))
    variants = ["unrotated", "own", *(f"{base:.10g}" for base in bases)]
    heads, by_length = tables(results, variants, lengths)
    about |= {"prompts": len(prompts), "tokens": shortest + 1, "lengths": list(lengths), "bases": list(bases)}
    about |= {"weights": weights, "dtype": dtype, "versions": versions("transformers")}
    return Spectrum(heads, by_length, kernel_table(results[0], bases), about)


@torch.no_grad()
def measure_prompt(
    model: PreTrainedModel | Transformer, cell: SpectrumCell, within: Callable[[float], None] = lambda share: None
) -> dict[str, Tensor]:
    """Every head on one prompt: shares (X, 7); norm, condition and effective rank by rotation and length (X, V, P, 3);
    and the angles of all planes of every layer (L, F), 0 for those that do not rotate."""
    device = entry_device(model)
    ids = torch.tensor([cell.ids], device=device)
    trace = capture(model, ids, queries=range(1, len(cell.ids)), level="prompt")
    rows: defaultdict[str, list[Tensor]] = defaultdict(list)
    for number, layer in enumerate(trace.attention):
        heads, at_once = layer.queries.shape[1], LARGEST * layer.keys.shape[3] // len(cell.ids)
        rows["layer"].append(torch.full((heads,), layer.index))
        rows["head"].append(torch.arange(heads))
        for part in layer.parts(at_once):
            rows["shares"].append(head_shares(trace, part).cpu())
            rows["spectra"].append(head_spectra(part, cell.bases, cell.lengths, trace.absolute).cpu())
        within((number + 1) / len(trace.attention))
    planes = [plane_angles(layer.rotation) for layer in trace.attention]
    angles = torch.nn.utils.rnn.pad_sequence(planes, batch_first=True, padding_value=torch.nan)
    return {name: torch.cat(values) for name, values in rows.items()} | {
        "angles": angles, "layers": torch.tensor(trace.layers)
    }  # fmt: skip


def plane_angles(rotation: Rotation) -> Tensor:
    """The angle of every pair of dimensions, 0 for those that do not rotate."""
    return torch.cat([rotation.angles.cpu().float(), torch.zeros(len(rotation.non_rotary) // 2)])


def head_shares(trace: Trace, layer: AttentionLayer) -> Tensor:
    """(H, 7), in the order of SHARES; NaN where a share is not defined for the model."""
    logits, seen = seen_logits(layer)
    found = dict.fromkeys(SHARES, torch.full(layer.queries.shape[1:2], torch.nan, dtype=torch.float64))
    found |= {"toeplitz": toeplitz_share(logits, seen)[0], "distance": distance_share(logits, seen)[0]}
    if not trace.absolute:
        placement = trace.placement_of(layer)
        at = torch.arange(1, placement.keys, device=logits.device)
        visible = None if placement.bias is None else placement.bias[..., at].isfinite()
        found |= {
            name: share[0] for name, share in two_way(placement.between(at, at), visible).shares()._asdict().items()
        }
        if layer.rotation.rotating:
            contents = Contents.of(layer)
            still = singular_values(contents.queries, contents.keys)
            rotated = singular_values(*contents.rotated())
            damping = square(kernel(plane_angles(layer.rotation), len(seen))).to(logits)
            damped = torch.linalg.matrix_norm(contents.queries @ contents.keys.mT * damping, 2)
            found |= {
                "kernel_norm": (damped / still.norm)[0],
                "majorised": majorised(rotated.values, still.values)[0].double(),
            }
    return torch.stack([found[name].cpu() for name in SHARES], 1)


def head_spectra(layer: AttentionLayer, bases: Sequence[float], lengths: Sequence[int], absolute: bool) -> Tensor:
    """(H, V, P, 3): V is no rotation, the model's own and the other bases; P the lengths.

    The model's own includes its bias, if that does not mask any key.
    """
    contents, bias = Contents.of(layer), finite_bias(layer)

    def numbers(found: SingularValues) -> Tensor:
        condition = found.condition.where(found.condition < RESOLVED, torch.inf)
        return torch.stack([found.norm, condition, found.effective_rank], -1)[0]

    found = torch.full((layer.queries.shape[1], 2 + len(bases), len(lengths), 3), torch.nan, dtype=torch.float64)
    for at, length in enumerate(lengths):
        some = contents.first(length)
        part = None if bias is None else bias[..., :length, :length]
        found[:, 1, at] = numbers(singular_values(*some.rotated(), part))
        if not absolute:
            found[:, 0, at] = numbers(singular_values(some.queries, some.keys))
        for variant, base in enumerate(bases if layer.rotation.rotating else (), 2):
            found[:, variant, at] = numbers(singular_values(*some.rotated(base)))
    return found


def tables(
    results: Sequence[dict[str, Tensor]], variants: Sequence[str], lengths: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per head, and one row per head, rotation and length: means over prompts."""
    stacked = torch.stack([result["spectra"] for result in results])
    mean = torch.cat([stacked[..., :2].log().mean(0).exp(), stacked[..., 2:].mean(0)], -1)
    which = {name: results[0][name].numpy() for name in ("layer", "head")}
    shares = torch.stack([result["shares"] for result in results]).mean(0)
    heads = which | {name: shares[:, at].numpy() for at, name in enumerate(SHARES)}
    for (variant, word), (at, name) in product(enumerate(("_unrotated", "")), enumerate(MEASURES)):
        heads[name + word] = mean[:, variant, -1, at].numpy()
    rows = [
        pd.DataFrame(
            which | {"rotation": variant, "tokens": length} | dict(zip(MEASURES, mean[:, v, p].T.numpy(), strict=True))
        )
        for (v, variant), (p, length) in product(enumerate(variants), enumerate(lengths))
    ]
    return pd.DataFrame(heads), pd.concat(rows, ignore_index=True).dropna(subset=["norm"], ignore_index=True)


def kernel_table(result: dict[str, Tensor], bases: Sequence[float]) -> pd.DataFrame:
    """The kernel mean cos(angle (i - j)) of each kind of layer, up to lengths far beyond the prompts: the largest
    eigenvalue as a share of the trace, and the effective rank."""
    kinds: dict[tuple[float, ...], list[int]] = {}
    for layer, angles in zip(result["layers"].tolist(), result["angles"], strict=True):
        kinds.setdefault(tuple(angles[~angles.isnan()].tolist()), []).append(layer)
    rows = []
    for angles, layers in kinds.items():
        own = Rotation.interleaved(torch.tensor(angles), 2 * len(angles))
        for base in (None, *bases) if own.rotating else ():
            rotation = own if base is None else with_base(own, base)
            for length in LONG:
                eigenvalues = kernel_eigenvalues(rotation.angles, length)
                rows.append(
                    {
                        "layers": name_layers(layers),
                        "rotation": "own" if base is None else f"{base:.10g}",
                        "tokens": length,
                    }
                    | {"largest": float(eigenvalues[0] / length)}
                    | {"effective_rank": float(SingularValues(eigenvalues).effective_rank)}
                )
    return pd.DataFrame(rows, columns=["layers", "rotation", "tokens", "largest", "effective_rank"])
