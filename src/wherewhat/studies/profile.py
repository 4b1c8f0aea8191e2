"""Profile a model: for every head and frequency, where or what, on prompts that mean something."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from ..capture import capture, load
from ..core.frequency import mean_frequency
from ..core.kinds import HIGH, LOW, kind
from ..core.measure import block_index, entropy, exclusion, frequency_use, score, score_frequencies
from ..core.scores import block_attention
from ..core.trace import Trace
from ..errors import BadInput
from ..prompts import Prompt, binding, own_prompts, plain_text, repeats
from .cells import read_tensors, run_cells, write_atomically

TAUS = (1e-4, 1e-3, 1e-2, math.inf)
CHECKS = ("attention", "logits", "keys", "swap")
HEAD_MEANS = ("entropy", "variance", "exclusion_bound", "positional_without_first", "symbolic_without_first")
FREQUENCY_MEANS = {
    "positional": "frequency_positional",
    "symbolic": "frequency_symbolic",
    "use_norm": "use_norm",
    "use_max": "use_max",
}
MEANS = ("positional", "symbolic", "sink", *HEAD_MEANS, *FREQUENCY_MEANS.values())
RESAMPLES = 1000
FILES = ("profile.json", "heads.parquet", "frequencies.parquet", "tensors.safetensors")
VERSION = 1


@dataclass(frozen=True)
class PromptCell:
    """One prompt measured on one model: all that its numbers depend on."""

    weights: str
    ids: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    answer: int | None
    tau: float
    version: int = VERSION


@dataclass(frozen=True)
class SignatureCell:
    """Repeated random tokens: how much each head looks at the token before, and after the query's last occurrence."""

    weights: str
    ids: tuple[int, ...]
    period: int
    version: int = VERSION


@dataclass(frozen=True)
class Profile:
    """The tables of a profile, and all that it takes to repeat it.

    >>> profile = Profile.load("profiles/smollm2")                    # doctest: +SKIP
    >>> profile.heads.query("kind == 'where'")                        # doctest: +SKIP
    """

    heads: pd.DataFrame
    frequencies: pd.DataFrame
    about: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)

    def save(self, folder: str | Path) -> None:
        """Four files, each written atomically, profile.json last: a folder with it is whole."""
        folder = Path(folder)
        for name, table in (("heads", self.heads), ("frequencies", self.frequencies)):
            buffer = BytesIO()
            table.to_parquet(buffer, index=False)
            write_atomically(folder / f"{name}.parquet", buffer.getvalue())
        write_atomically(folder / "tensors.safetensors", save(self.tensors))
        digests = {name: _sha256((folder / name).read_bytes()) for name in FILES[1:]}
        write_atomically(folder / "profile.json", json.dumps(self.about | {"sha256": digests}, indent=1) + "\n")

    @staticmethod
    def load(folder: str | Path) -> Profile:
        """Read a profile; a missing or damaged file is named."""
        folder = Path(folder)
        try:
            about = json.loads((folder / "profile.json").read_text())
            digests = about.pop("sha256")
        except FileNotFoundError as error:
            raise BadInput(f"{folder}: holds no profile (no profile.json)") from error
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise BadInput(f"{folder / 'profile.json'}: damaged or unreadable") from error
        for name in FILES[1:]:
            path = folder / name
            if not path.is_file() or _sha256(path.read_bytes()) != digests.get(name):
                raise BadInput(f"{path}: missing or damaged")
        return Profile(
            pd.read_parquet(folder / "heads.parquet"),
            pd.read_parquet(folder / "frequencies.parquet"),
            about,
            read_tensors(folder / "tensors.safetensors"),
        )


def profile(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    *,
    tau: float = 1e-4,
    seed: int = 0,
    folder: str | Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Profile:
    """Measure every head and frequency of a model on these prompts.

    With a `folder`, each prompt's numbers are kept there as they come, so that an interrupted profile goes on with
    the next prompt; the finished profile is saved beside them.

    >>> prompts = binding(tokenizer, pairs=64, samples=8)              # doctest: +SKIP
    >>> ww.profile(model, prompts).heads                               # doctest: +SKIP
    """
    if not prompts:
        raise BadInput("a profile needs at least one prompt")
    weights = weights_hash(model)
    kept = None if folder is None else Path(folder) / "cells"
    if folder is not None:
        _same_model(Path(folder), weights)
    cells = [PromptCell(weights, prompt.ids, prompt.blocks, prompt.answer, tau) for prompt in prompts]
    results = []
    for done, result in enumerate(run_cells(kept, cells, lambda cell: measure_prompt(model, cell)), 1):
        progress("prompts", done, len(cells))
        results.append(result)
    signature = next(
        run_cells(kept, [signature_cell(model, weights, seed)], lambda cell: measure_signature(model, cell))
    )
    made = summarise(results, signature, seed)
    described = _describe(model, prompts, weights, tau, seed, results) | (about or {})
    finished = Profile(*made, described, _tensors(results))
    if folder is not None:
        finished.save(folder)
    return finished


def load_with_tokenizer(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, Any]:
    """A model and its tokenizer, with one clear sentence where either fails."""
    if dtype not in ("float32", "bfloat16", "float16"):
        raise BadInput(f"dtype is float32, bfloat16 or float16, got {dtype}")
    model = load(name, dtype=getattr(torch, dtype), revision=revision, trust_remote_code=trust_remote_code)
    source = Path(name).parent if name.endswith(".gguf") else name
    try:
        model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device {device} cannot be used ({str(error).splitlines()[0]})") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise BadInput(f"{source}: holds no tokenizer that can be loaded ({str(error).splitlines()[0]})") from error
    return model, tokenizer


def make_prompts(
    model: PreTrainedModel,
    tokenizer: Any,
    task: str,
    pairs: int | None,
    samples: int,
    seed: int,
    *,
    kind: str = "color",
    chat: bool = False,
    width: int = 8,
) -> tuple[list[Prompt], str]:
    """The prompts of a task, and a sentence about them; a number of pairs that does not fit is refused if asked for."""
    context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 2048
    prompts: list[Prompt] = []
    if task.endswith(".jsonl"):
        prompts = own_prompts(tokenizer, task)
    elif task.endswith(".txt"):
        try:
            text = Path(task).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{task}: cannot be read ({type(error).__name__})") from error
        prompts = plain_text(tokenizer, text, width, min(256, context), samples)
    elif task == "repeats":
        prompts = repeats(tokenizer, min(64, context // 2 - 2), samples, seed)
    elif task == "binding":
        for wanted in [pairs] if pairs else [64, 32, 16, 8, 4]:
            prompts = binding(tokenizer, wanted, samples, seed, kind, chat)
            if max(len(prompt.ids) for prompt in prompts) <= context:
                break
    else:
        raise BadInput(f"no task {task!r}: binding, repeats, a .jsonl file or a .txt file")
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest > context:
        raise BadInput(f"a prompt has {longest} tokens, more than the {context} that the model takes; use fewer pairs")
    blocks, left_out = len(prompts[0].blocks), sum(prompt.left_out for prompt in prompts)
    note = f"{len(prompts)} prompts of up to {longest} tokens, {blocks} blocks each"
    return prompts, note + (f"; {left_out} statements of other lengths stay out of the swaps" if left_out else "")


def measure_prompt(model: PreTrainedModel, cell: PromptCell) -> dict[str, Tensor]:
    """All numbers of one prompt, from one forward pass."""
    trace = capture(model, torch.tensor([cell.ids], device=model.device))
    blocks, tau = cell.blocks, cell.tau
    heads, blind = score(trace, blocks, tau), score(trace, blocks, tau, without_first=True)
    alone, use, bounds = score_frequencies(trace, blocks, tau), frequency_use(trace), exclusion(trace)
    index = block_index(blocks, trace.keys)
    attention = torch.stack([_padded(block_attention(trace.placements(n), index)[0], trace) for n in _layers(trace)])
    other = [score(trace, blocks, one) for one in TAUS]
    assert trace.output is not None
    chances = trace.output[0].softmax(-1)
    answered = [-1.0, -1.0] if cell.answer is None else [chances[cell.answer], float(chances.argmax() == cell.answer)]
    return {
        "positional": heads.positional[0],
        "symbolic": heads.symbolic[0],
        "positional_without_first": blind.positional[0],
        "symbolic_without_first": blind.symbolic[0],
        "left_out": heads.left_out[0],
        "entropy": entropy(trace)[0],
        "variance": bounds.variance[0],
        "exclusion_bound": bounds.bound[0],
        "sink": torch.stack([_padded(trace.placements(n).attention()[0, :, 0], trace) for n in _layers(trace)]),
        "frequency_positional": alone.positional[0],
        "frequency_symbolic": alone.symbolic[0],
        "use_norm": use.norm[0],
        "use_max": use.maximum[0],
        "block_attention": attention,
        "by_tau": torch.stack([torch.stack([one.positional[0], one.symbolic[0]]) for one in other]),
        "answer": torch.tensor(answered),
        "angles": trace.angles,
        "layers": torch.tensor(trace.layers),
        "kv_groups": torch.tensor([layer.queries.shape[1] // layer.keys.shape[1] for layer in trace.attention]),
        "frequency_ids": torch.tensor(trace.frequency_ids),
        "check": torch.tensor([trace.check[name] for name in CHECKS]),
    }


def signature_cell(model: PreTrainedModel, weights: str, seed: int, period: int = 48) -> SignatureCell:
    """Random tokens twice over, as many as fit."""
    text = model.config.get_text_config(decoder=True)
    period = max(4, min(period, (getattr(text, "max_position_embeddings", None) or 512) // 2 - 2))
    draw = torch.Generator().manual_seed(seed)
    once = torch.randint(min(10, text.vocab_size // 2), text.vocab_size, (period,), generator=draw).tolist()
    return SignatureCell(weights, (once[-1], *once, *once), period)


def measure_signature(model: PreTrainedModel, cell: SignatureCell) -> dict[str, Tensor]:
    """Mean attention on the token before the query, and on the one that followed its last occurrence."""
    tokens = len(cell.ids)
    queries = list(range(tokens - cell.period // 2, tokens))
    trace = capture(model, torch.tensor([cell.ids], device=model.device), queries=queries)
    previous, induction = [], []
    for query in queries:
        seen = trace.at(query)
        rows = torch.stack([_padded(seen.placements(n).attention()[0], trace) for n in _layers(trace)])
        previous.append(rows[..., query - 1])
        induction.append(rows[..., query - cell.period + 1])
    return {"previous_token": torch.stack(previous).mean(0), "induction": torch.stack(induction).mean(0)}


def summarise(
    results: Sequence[dict[str, Tensor]], signature: dict[str, Tensor], seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of heads and frequencies: plain means over prompts, with bootstrap intervals."""
    mean = {name: torch.stack([one[name] for one in results]).mean(0) for name in MEANS}
    draws = np.random.default_rng(seed).integers(len(results), size=(RESAMPLES, len(results)))
    layers, groups = results[0]["layers"].tolist(), results[0]["kv_groups"].tolist()
    intervals = {
        name: _interval(torch.stack([one[name] for one in results]), draws) for name in ("positional", "symbolic")
    }
    ids = results[0]["frequency_ids"].tolist()
    planes = sum(number > 0 for number in ids)
    typical = (
        mean_frequency(mean["use_max"][..., :planes]) if planes else torch.full_like(mean["positional"], torch.nan)
    )
    heads, frequencies = [], []
    for row, layer in enumerate(layers):
        for head in range(mean["positional"].shape[1]):
            at = (row, head)
            if mean["entropy"][at].isnan():
                continue  # a layer with fewer heads than the most
            where, what = mean["positional"][at].item(), mean["symbolic"][at].item()
            heads.append(
                {"layer": layer, "head": head, "kv_head": head // groups[row], "kind": kind(where, what)}
                | {"positional": where}
                | {f"positional_{end}": intervals["positional"][which][at] for which, end in enumerate(("low", "high"))}
                | {"symbolic": what}
                | {f"symbolic_{end}": intervals["symbolic"][which][at] for which, end in enumerate(("low", "high"))}
                | {name: mean[name][at].item() for name in HEAD_MEANS}
                | {"mean_frequency": typical[at].item()}
                | {name: signature[name][at].item() for name in ("previous_token", "induction")}
                | {"sink": mean["sink"][at].item()}
            )
            for column, number in enumerate(ids):
                angle = results[0]["angles"][row, column].item()
                if not math.isnan(angle):
                    frequencies.append(
                        {"layer": layer, "head": head, "frequency": number, "angle": angle}
                        | {name: mean[source][(*at, column)].item() for name, source in FREQUENCY_MEANS.items()}
                    )
    return pd.DataFrame(heads), pd.DataFrame(frequencies)


def weights_hash(model: torch.nn.Module) -> str:
    """A hash of every parameter, by name: the same weights, the same hash."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _describe(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    weights: str,
    tau: float,
    seed: int,
    results: Sequence[dict[str, Tensor]],
) -> dict[str, Any]:
    """All that it takes to repeat the profile, and its headline numbers."""
    plane = torch.stack([torch.stack([one["positional"], one["symbolic"]]) for one in results]).mean(0).flatten(1)
    answered = torch.stack([one["answer"] for one in results])
    known = answered[answered[:, 0] >= 0]
    by_tau = torch.stack([one["by_tau"] for one in results]).mean(0)  # taus 2 L H
    half = by_tau.shape[2] // 2
    return {
        "model": model.config.name_or_path,
        "architecture": model.config.model_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights_sha256": weights,
        "level": "keys",
        "tau": tau,
        "seed": seed,
        "thresholds": {"high": HIGH, "low": LOW},
        "prompts": [asdict(prompt) for prompt in prompts],
        "accuracy": known[:, 1].mean().item() if len(known) else None,
        "answer_probability": known[:, 0].mean().item() if len(known) else None,
        "by_target": [
            {"target": prompt.target, "probability": one[0].item(), "correct": bool(one[1] > 0)}
            for prompt, one in zip(prompts, answered, strict=True)
            if prompt.target is not None and one[0] >= 0
        ],
        "correlation": dict(zip(("r", "p"), pearson(plane[0], plane[1]), strict=True)),
        "sensitivity": [
            {
                "tau": one if math.isfinite(one) else "inf",
                "r": pearson(scores[0].flatten(), scores[1].flatten())[0],
                "median_positional": [scores[0, :half].nanmedian().item(), scores[0, half:].nanmedian().item()],
                "median_symbolic": [scores[1, :half].nanmedian().item(), scores[1, half:].nanmedian().item()],
            }
            for one, scores in zip(TAUS, by_tau, strict=True)
        ],
        "left_out_swaps": torch.stack([one["left_out"] for one in results]).nansum().item(),
        "self_check": dict(zip(CHECKS, results[0]["check"].tolist(), strict=True)),
        "versions": {name: version(name) for name in ("wherewhat", "torch", "transformers")}
        | {"python": platform.python_version()},
    }


def pearson(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Correlation and its two-sided p-value (Student's t)."""
    from scipy.stats import pearsonr

    seen = ~(x.isnan() | y.isnan())
    if seen.sum() < 3:
        return math.nan, math.nan
    found: Any = pearsonr(x[seen].double().numpy(), y[seen].double().numpy())
    return float(found.statistic), float(found.pvalue)


def _same_model(folder: Path, weights: str) -> None:
    """A folder that holds the profile of another model is not written over."""
    path = folder / "profile.json"
    if path.exists():
        try:
            before = json.loads(path.read_text())["weights_sha256"]
        except (ValueError, KeyError, OSError) as error:
            raise BadInput(f"{path}: damaged or unreadable; remove it or choose another folder") from error
        if before != weights:
            raise BadInput(f"{folder}: holds the profile of another model; choose another folder")


def _interval(values: Tensor, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A 95 % bootstrap interval of the mean over prompts."""
    means = values.numpy()[draws].mean(1)
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    return low, high


def _tensors(results: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    shapes = {one["block_attention"].shape for one in results}
    return {"block_attention": torch.stack([one["block_attention"] for one in results])} if len(shapes) == 1 else {}


def _padded(values: Tensor, trace: Trace) -> Tensor:
    """Rows of NaN for the heads that a layer does not have."""
    heads = max(layer.queries.shape[1] for layer in trace.attention)
    full = values.new_full((heads, *values.shape[1:]), torch.nan)
    full[: len(values)] = values
    return full.cpu()


def _layers(trace: Trace) -> range:
    return range(len(trace.attention))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
