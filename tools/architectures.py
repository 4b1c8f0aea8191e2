"""Measure a tiny random model of every causal family of the installed transformers; write docs/architectures.md.

Run by `make architectures`. With names of model types as arguments, only those are measured and nothing is written.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import wherewhat as ww
from wherewhat.tracing.hook import implementation
from wherewhat.tracing.self_check import certify

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import brute_force  # noqa: E402
from tiny import tiny_model  # noqa: E402

TOKENS = 25
TAUS = [1e-4, torch.inf]
CHECKED, SCORED = 1e-5, 1e-4

# Families whose layers attend to more than their input hidden states, so that contents have to be exchanged one step
# later, right before attention.
INSIDE = {
    "gemma3n_text": "a layer receives four versions of each hidden state",
    "longcat_flash": "a layer attends twice",
    "zamba": "attention also reads the embeddings",
    "zamba2": "attention also reads the embeddings",
}
NOTES = {"falcon": "with ALiBi refused: eager attention of this transformers adds the bias twice"}
NOT_BUILT = {
    "gemma3n": "its image part needs the package timm; its text part is listed as gemma3n_text",
    "gemma4_assistant": "it drafts for another model, whose hidden states and keys it needs",
    "musicgen": "it reads several audio codebooks at a time instead of tokens",
    "musicgen_melody": "it reads several audio codebooks at a time instead of tokens",
}


@dataclass
class Row:
    """One line of the table."""

    family: str
    verdict: str
    layout: str = ""
    nope: str = ""
    features: str = ""
    deviation: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    def __str__(self) -> str:
        names = ("attention", "keys", "swap", "scores")
        numbers = [f"{self.deviation[name]:.0e}" if name in self.deviation else "" for name in names]
        cells = [self.family, self.verdict, self.layout, self.nope, self.features, *numbers, self.reason]
        return f"| {' | '.join(cells)} |"


def measure(family: str) -> Row:
    """Build, capture, compare with brute force."""
    if family in NOT_BUILT:
        return Row(family, "refused", reason=f"not built here: {NOT_BUILT[family]}")
    model = tiny_model(family)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    ids = torch.randint(10, vocabulary, (1, TOKENS), generator=torch.Generator().manual_seed(5))
    try:
        trace = ww.capture(model, ids)
    except ww.NotMeasurable as error:
        if 'level "prompt" only' not in str(error):
            return Row(family, "refused", reason=str(error).removeprefix(f"{family}: "))
        trace = ww.capture(model, ids, level="prompt")
        agrees = max(trace.check.values()) <= CHECKED
        verdict, reason = "prompt only" if agrees else "not verified", "positions are added to the embeddings"
        return Row(family, verdict, "none", "", features(model, trace), {**trace.check}, reason)
    deviation = {**trace.check, "scores": deviation_of_scores(family, model, ids, trace)}
    right = all(value <= (SCORED if name == "scores" else CHECKED) for name, value in deviation.items())
    reason = f"contents exchanged before attention: {INSIDE[family]}" if family in INSIDE else NOTES.get(family, "")
    still = [layer.index for layer in trace.attention if not layer.rotation.planes]
    nope = "all" if len(still) == len(trace.attention) else ", ".join(map(str, still))
    return Row(
        family, "verified" if right else "not verified", layout(trace), nope, features(model, trace), deviation, reason
    )


def deviation_of_scores(family: str, model: PreTrainedModel, ids: Tensor, trace: ww.Trace) -> float:
    """The largest difference between scores from the table and scores by brute force.

    A module that runs several times is compared at its first run. Layers that reuse the keys of an earlier one have no
    contents that could be exchanged before them; for them there is only the self-check.
    """
    calls: list[nn.Module] = []
    with implementation(model, "eager"):
        modules = brute_force.attention_modules(model, ids)
        handles = [module.register_forward_hook(lambda module, *_: calls.append(module)) for module in modules]
        rows = {module: brute_force.last_rows(model, ids, module)[0] for module in modules}
        for handle in handles:
            handle.remove()
        calls = calls[: len(trace.attention)]
        first = [calls.index(module) for module in modules]
        # Some families return rows without the share of the sink.
        shares = {
            module: trace.attention_rows(at)[0].sum(-1)
            for module, at in zip(modules, first, strict=True)
            if trace.attention[at].sinks is not None and rows[module].sum(-1).min() > 1 - 1e-5
        }
        blocks = [(at, at + 1) for at in range(TOKENS - 1)]
        brute = brute_force.scores(model, ids, blocks, TAUS, inside=family in INSIDE, shares=shares)
    taken = shared_keys(trace)
    own = [place for place, at in enumerate(first) if at not in taken]
    worst = 0.0
    for tau, expected in brute.items():
        scores = ww.score(trace, tau=tau)
        mine = torch.stack([scores.positional[0, first], scores.symbolic[0, first]])
        worst = max(worst, float((mine - expected)[:, own].abs().nan_to_num(nan=torch.inf).max()))
    return worst


def shared_keys(trace: ww.Trace) -> list[int]:
    """The attention layers that reuse the keys of an earlier one."""
    keys = [layer.keys for layer in trace.attention]
    return [at for at in range(len(keys)) if any(torch.equal(keys[at], keys[before]) for before in range(at))]


def layout(trace: ww.Trace) -> str:
    """How many dimensions are rotary, where they are and how they are paired; one entry per kind of layer."""
    kinds: dict[str, None] = {}
    for layer in trace.attention:
        rotation, size = layer.rotation, layer.rotation.head_dim
        turning = 2 * int((rotation.angles != 0).sum())
        if not turning:
            continue
        where = "front" if rotation.start == 0 else "end"
        where = where if turning == 2 * rotation.planes else f"paired across {2 * rotation.planes}"
        span = f"all {size} dims" if turning == size else f"{turning} of {size} dims, {where}"
        kinds[f"{rotation.layout} {span}"] = None
    return "; ".join(kinds) or "none"


def features(model: PreTrainedModel, trace: ww.Trace) -> str:
    """What else acts on the logits, and how heads share keys."""
    found: dict[str, None] = {}
    for layer in trace.attention:
        heads, groups = layer.queries.shape[1], layer.keys.shape[1]
        if groups < heads:
            found[f"{heads} heads on {groups}"] = None
        if layer.softcap is not None:
            found[f"softcap {layer.softcap:g}"] = None
        if layer.sinks is not None:
            found["sinks"] = None
        if layer.bias is not None:
            seen = layer.bias.isfinite()
            if not seen.all():
                found[f"window {int(seen[0, 0, 0].sum())}"] = None
            if layer.bias[seen.expand_as(layer.bias)].any():
                found["position bias"] = None
    names = [name for name, _ in model.named_parameters() if re.search("attn|attention", name)]
    if any(re.search(r"\b(q|k|qkv|query|key|query_key_value|Wqkv|c_attn)(_proj)?\.bias$", name) for name in names):
        found["bias"] = None
    if any(re.search(r"(q|k|query|key)_?(layer)?_?norm", name) for name in names):
        after = any(position.stretch is not None for position in certify(model, TOKENS).positions)
        found["q/k norm after the rotation" if after else "q/k norm"] = None
    if taken := shared_keys(trace):
        found[f"keys shared by layers {', '.join(str(trace.layers[at]) for at in taken)}"] = None
    return "; ".join(found)


def document(rows: list[Row]) -> str:
    counts = Counter(row.verdict for row in rows)
    head = f"""# Verified architectures

Written by `make architectures` (`tools/architectures.py`); not edited by hand.

For each of the {len(rows)} causal model types of transformers {transformers.__version__}, a tiny random model (2 to 6
layers, 4 heads, peaked attention, every bias, norm and sink drawn at random, windows shorter than the prompt) was built
offline, captured with `ww.capture` on a prompt of {TOKENS} tokens, and scored with one token per block at tau 1e-4 and
infinity. The scores were compared with the published procedure by brute force (`tests/brute_force.py`): the hidden
states that enter a layer are exchanged, the layer is rerun with the model's own eager attention, and the last row is
read, for every pair of tokens. torch {torch.__version__}, Python {platform.python_version()}, float32 on the CPU.

**{counts["verified"]} verified, {counts["prompt only"]} at level "prompt" only, {counts["refused"]} refused.**

- **verified**: the self-check of the capture (attention rows, shifted keys, contents exchanged by hand) is within
  {CHECKED:.0e}, and all scores are within {SCORED:.0e} of brute force.
- **prompt only**: positions are added to the embeddings and move with the contents. Captured at level "prompt",
  attention rows are within {CHECKED:.0e} of the model's own; scores at that level were not compared with anything here.
- **refused**: `ww.capture` raises `NotMeasurable`, or the family could not be built; the reason is given.

Columns *rows*, *keys*, *swap*: the deviations that the self-check stores in `trace.check`; *scores*: the largest
difference from brute force. Layer numbers count from 0. The behaviour of a family also depends on its configuration;
the self-check runs on every model that is measured, whatever this table says about its family.

Limits of the comparison: one random model, one prompt and one configuration per family. A module that runs several
times in a pass (hrm_text) is compared at its first run. Layers that reuse the keys of an earlier layer have no contents
to exchange; for them there is only the self-check. Where eager rows lack the share of the sink (granite_swa,
granitemoe_swa), brute force takes it from the capture. Attention is peaked but not
saturated: where float32 rows underflow to 0, brute force loses pairs that the table keeps (a test compares such heads
in float64).

| model type | verdict | rotary layout | NoPE layers | also | rows | keys | swap | scores | note |
|---|---|---|---|---|---|---|---|---|---|
"""
    order = {"verified": 0, "not verified": 1, "prompt only": 2, "refused": 3}
    ordered = sorted(rows, key=lambda row: (order[row.verdict], row.family))
    return head + "\n".join(map(str, ordered)) + "\n"


def main(chosen: list[str]) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    families = chosen or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    rows = []
    for number, family in enumerate(families, 1):
        start = time.perf_counter()
        rows.append(measure(family))
        print(f"{number}/{len(families)} {time.perf_counter() - start:.1f}s {rows[-1]}", flush=True)
    print(dict(Counter(row.verdict for row in rows)))
    if chosen:
        return
    target = ROOT / "docs" / "architectures.md"
    target.parent.mkdir(exist_ok=True)
    draft = target.with_suffix(".tmp")
    draft.write_text(document(rows))
    os.replace(draft, target)


if __name__ == "__main__":
    main(sys.argv[1:])
