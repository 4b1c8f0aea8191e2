"""What position does to the logits of every head of a model: which depend on distance alone, which couple contents with
positions, and how well conditioned they are with the rotation, without it, and with others."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..capture import capture
from ..capture.offload import entry_device
from ..core.rotation import Rotation
from ..core.spectrum import Contents, Spectrum, majorised, seen_logits, spectrum, two_way, with_base
from ..core.toeplitz import distance_share, kernel, kernel_eigenvalues, square, toeplitz_share
from ..core.trace import AttentionLayer, Trace
from ..errors import BadInput
from ..files import write_atomically, write_table
from ..lab import Transformer
from ..prompts import Prompt
from .cells import run_cells
from .executors import Here
from .layers import name_layers
from .measurements import dtype_name
from .profile import model_hash, weights_hash

BASES = (100.0, 1e3, 1e4, 1e5, 1e6)
LONG = (64, 256, 1024, 4096, 16_384, 65_536)  # of the kernels
MEASURES = ("norm", "condition", "effective_rank")
SHARES = ("content", "position", "interaction", "toeplitz", "distance", "kernel_norm", "majorised")
RESOLVED = 1e7  # conditions beyond it are infinite as far as queries and keys in float32 can tell
LARGEST = 2**24  # logits held at a time: 128 MB


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
class Spectra:
    """`heads` has a row a head, `spectra` one a head, rotation and number of tokens, `kernels` one a rotation and
    number of tokens. Means over prompts, of norms and conditions geometric ones.

    Of the logits of the last query, contents at positions: shares of variance `content`, `position`, `interaction`.
    Of the logits of all queries: shares that depend on distance alone, `toeplitz` of all variance, `distance` of that
    within queries, which is what attention sees. `norm`, `condition` and `effective_rank` of queries keys^T, turned
    and `_still`; `majorised`, the share of prompts on which the sums of the largest singular values shrink; and
    `kernel_norm`, the norm that the product with the mean kernel would leave of the still one.
    """

    heads: pd.DataFrame
    spectra: pd.DataFrame
    kernels: pd.DataFrame
    about: dict[str, Any]

    def save(self, folder: str | Path) -> None:
        for name in ("heads", "spectra", "kernels"):
            write_table(Path(folder) / f"{name}.parquet", getattr(self, name))
        write_atomically(Path(folder) / "spectrum.json", json.dumps(self.about, indent=1) + "\n")


def spectra(
    model: PreTrainedModel | Transformer,
    prompts: Sequence[Prompt],
    folder: str | Path | None = None,
    *,
    bases: Sequence[float] = BASES,
    progress: Callable[[str, float, int], None] = lambda what, done, total: None,
) -> Spectra:
    """Take the logits of every head apart, on all queries of these prompts; with a folder, what is there is kept.

    Other bases turn the same queries and keys anew, and shorter lengths are the first tokens: the model runs once.

    >>> found = ww.spectra(model, ww.binding(tokenizer, pairs=32, samples=4))          # doctest: +SKIP
    >>> found.heads.nlargest(5, "distance")                                            # doctest: +SKIP
    """
    if not prompts:
        raise BadInput("spectra need at least one prompt")
    if not all(base > 1 for base in bases):
        raise BadInput(f"a base is larger than 1, got {list(bases)}")
    shortest = min(len(prompt.ids) for prompt in prompts) - 1
    if shortest < 4:
        raise BadInput(f"spectra need prompts of at least 5 tokens, got {shortest + 1}")
    lengths = (*(2**power for power in range(3, 20) if 2**power < shortest), shortest)
    weights = model_hash(model) if isinstance(model, PreTrainedModel) else weights_hash(model)
    dtype = dtype_name(model) if isinstance(model, PreTrainedModel) else "float32"
    cells = [SpectrumCell(weights, dtype, prompt.ids, tuple(bases), lengths) for prompt in prompts]
    results: list[dict[str, Tensor]] = []
    show = Here(lambda share: progress("prompts", len(results) + share, len(cells)))

    def compute(cell: SpectrumCell) -> dict[str, Tensor]:
        return measure(model, cell, show)

    for result in run_cells(None if folder is None else Path(folder) / "cells", cells, compute, "prompts"):
        results.append(result)
        progress("prompts", len(results), len(cells))
    variants = ["still", "own", *(f"{base:.10g}" for base in bases)]
    heads, by_length = tables(results, variants, lengths)
    about = {"prompts": len(prompts), "tokens": shortest + 1, "lengths": lengths, "bases": list(bases)}
    return Spectra(heads, by_length, kernel_table(results[0], bases), about | {"weights": weights, "dtype": dtype})


@torch.no_grad()
def measure(
    model: PreTrainedModel | Transformer, cell: SpectrumCell, within: Callable[[float], None] = lambda share: None
) -> dict[str, Tensor]:
    """Every head on one prompt: shares (X, 7), and norm, condition and effective rank by rotation and length
    (X, V, P, 3); the angles of all planes of every layer (L, F), 0 where they rest."""
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
    """The angle of every pair of dimensions, 0 for those that rest."""
    return torch.cat([rotation.angles.cpu().float(), torch.zeros(len(rotation.still) // 2)])


def head_shares(trace: Trace, layer: AttentionLayer) -> Tensor:
    """(H, 7), in the order of SHARES; NaN where a model has no such thing."""
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
        if layer.rotation.turning:
            contents = Contents.of(layer)
            still, turned = spectrum(contents.queries, contents.keys), spectrum(*contents.turned())
            damping = square(kernel(plane_angles(layer.rotation), len(seen))).to(logits)
            damped = torch.linalg.matrix_norm(contents.queries @ contents.keys.mT * damping, 2)
            found |= {
                "kernel_norm": (damped / still.norm)[0],
                "majorised": majorised(turned.values, still.values)[0].double(),
            }
    return torch.stack([found[name].cpu() for name in SHARES], 1)


def head_spectra(layer: AttentionLayer, bases: Sequence[float], lengths: Sequence[int], absolute: bool) -> Tensor:
    """(H, V, P, 3): V the still contents, the model's own rotation and the other bases; P the lengths.

    A bias by position counts to the model's own, if it says something about later tokens too.
    """
    contents, turns = Contents.of(layer), bool(layer.rotation.turning)
    bias = None if layer.bias is None or not layer.bias.isfinite().all() else layer.bias[..., 1:]

    def told(made: Spectrum) -> Tensor:
        condition = made.condition.where(made.condition < RESOLVED, torch.inf)
        return torch.stack([made.norm, condition, made.effective_rank], -1)[0]

    found = torch.full((layer.queries.shape[1], 2 + len(bases), len(lengths), 3), torch.nan, dtype=torch.float64)
    for at, length in enumerate(lengths):
        some = contents.first(length)
        found[:, 1, at] = told(spectrum(*some.turned(), None if bias is None else bias[..., :length, :length]))
        if not absolute:
            found[:, 0, at] = told(spectrum(some.queries, some.keys))
        for variant, base in enumerate(bases if turns else (), 2):
            found[:, variant, at] = told(spectrum(*some.turned(base)))
    return found


def tables(
    results: Sequence[dict[str, Tensor]], variants: Sequence[str], lengths: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row a head, and a row a head, rotation and length: means over prompts."""
    stacked = torch.stack([result["spectra"] for result in results])
    mean = torch.cat([stacked[..., :2].log().mean(0).exp(), stacked[..., 2:].mean(0)], -1)
    which = {name: results[0][name].numpy() for name in ("layer", "head")}
    shares = torch.stack([result["shares"] for result in results]).mean(0)
    heads = which | {name: shares[:, at].numpy() for at, name in enumerate(SHARES)}
    for (variant, word), (at, name) in product(enumerate(("_still", "")), enumerate(MEASURES)):
        heads[name + word] = mean[:, variant, -1, at].numpy()
    rows = [
        pd.DataFrame(
            which | {"rotation": variant, "tokens": length} | dict(zip(MEASURES, mean[:, v, p].T.numpy(), strict=True))
        )
        for (v, variant), (p, length) in product(enumerate(variants), enumerate(lengths))
    ]
    return pd.DataFrame(heads), pd.concat(rows, ignore_index=True).dropna(subset=["norm"], ignore_index=True)


def kernel_table(result: dict[str, Tensor], bases: Sequence[float]) -> pd.DataFrame:
    """The kernel mean cos(angle (i - j)) of each kind of layer, far beyond the prompts: the share of its trace in the
    largest eigenvalue, and the effective rank."""
    kinds: dict[tuple[float, ...], list[int]] = {}
    for layer, angles in zip(result["layers"].tolist(), result["angles"], strict=True):
        kinds.setdefault(tuple(angles[~angles.isnan()].tolist()), []).append(layer)
    rows = []
    for angles, layers in kinds.items():
        own = Rotation.interleaved(torch.tensor(angles), 2 * len(angles))
        for base in (None, *bases) if own.turning else ():
            turned = own if base is None else with_base(own, base)
            for length in LONG:
                eigenvalues = kernel_eigenvalues(turned.angles, length)
                rows.append(
                    {
                        "layers": name_layers(layers),
                        "rotation": "own" if base is None else f"{base:.10g}",
                        "tokens": length,
                    }
                    | {"largest": float(eigenvalues[0] / length)}
                    | {"effective_rank": float(Spectrum(eigenvalues).effective_rank)}
                )
    return pd.DataFrame(rows, columns=["layers", "rotation", "tokens", "largest", "effective_rank"])
