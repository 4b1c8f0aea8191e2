"""A profile in a few numbers: correlation, medians, accuracy, what they depend on, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from scipy.stats import binomtest
from torch import Tensor

from ...core.kinds import LITTLE
from ...files import plain
from ...prompts import Prompt
from ..stats import ENOUGH_PROMPTS, interval, pearson, resamples, wilson
from .attention import sinks_before
from .cell import other_blocks, other_taus
from .tables import AXES, Measured, stacked

# A position inside a block that receives this share of the attention of all heads together makes heads appear symbolic.
SINK = 0.2


def summarise(results: Measured, prompts: Sequence[Prompt], tau: float, seed: int, dtype: str) -> dict[str, Any]:
    """The numbers of the terminal summary, with bootstrap intervals over prompts."""
    scores = torch.stack([stacked(results, name) for name in AXES], 1).double()  # P 2 L H
    numbers = {
        **plane_numbers(scores, seed),
        **answers(results, prompts),
        "sinks": sinks(results, prompts),
        "little": little_attention(results, scores, seed),
        "retrieval": retrieval(results),
        "skipped": skipped(results, prompts),
        "swaps": swaps(results),
        "sensitivity": sensitivity(results, prompts, tau),
    }
    return numbers | {"warnings": warnings(numbers, len(prompts), dtype, tau)}


def little_attention(results: Measured, scores: Float[Tensor, "P 2 L H"], seed: int) -> dict[str, Any]:
    """How many heads rest on little attention, and the correlation and medians of all others."""
    on_blocks = stacked(results, "on_blocks").double().mean(0)
    rest = on_blocks >= LITTLE
    others = plane_numbers(scores.masked_fill(~rest, torch.nan), seed)
    return {
        "threshold": LITTLE,
        "heads": int((on_blocks < LITTLE).sum()),
        "of": int(on_blocks.isfinite().sum()),
    } | others


def retrieval(results: Measured) -> dict[str, Any] | None:
    """The most attention of any head on the answer, and how many heads put more than chance there in every prompt."""
    answer, chance = (stacked(results, name).double() for name in ("answer_block", "answer_chance"))
    judged = ~answer.isnan().all(-1).all(-1)
    if not judged.any():
        return None
    answer, chance = answer[judged], chance[judged]
    return {
        "prompts": len(answer),
        "largest": plain(answer.mean(0).nan_to_num().max().item()),
        "above_chance": int((answer > chance).all(0).sum()),
        "mean": plain(answer.mean(0).nanmean().item()),
        "chance": plain(chance.mean(0).nanmean().item()),
    }


def plane_numbers(scores: Float[Tensor, "P 2 L H"], seed: int) -> dict[str, Any]:
    """r of the two axes and their medians in the first and the second half of the layers, with bootstrap intervals."""
    mean = scores.mean(0)
    drawn = torch.einsum("rp,p...->r...", resamples(len(scores), seed), scores)
    seen = ~mean.isnan().any(0)
    r, p = pearson(*mean[:, seen])
    low, high = interval(_correlations(drawn[..., seen]))
    medians, (lows, highs) = _medians(mean[None])[0], interval(_medians(drawn))
    return {
        "correlation": {"r": plain(r), "r_low": plain(low.item()), "r_high": plain(high.item()), "p": plain(p)},
        "medians": {
            axis: [
                {"median": plain(value), "low": plain(low), "high": plain(high)}
                for value, low, high in zip(*(part[row].tolist() for part in (medians, lows, highs)), strict=True)
            ]
            for row, axis in enumerate(AXES)
        },
    }


def sensitivity(results: Measured, prompts: Sequence[Prompt], tau: float) -> list[dict[str, Any]]:
    """The same prompts at other temperatures, and with their blocks cut finer or joined to coarser ones.

    The first row is the profile itself. Cuts that some prompt does not allow are absent; level prompt has none.
    """
    own = torch.stack([stacked(results, name) for name in (*AXES, "skipped")], 1)
    cuts = [other_blocks(prompt.blocks) for prompt in prompts]
    blocks = [prompt.blocks for prompt in prompts]
    rows = [(tau, "as given", blocks, own)]
    rows += [
        (value, "as given", blocks, stacked(results, f"tau {name}"))
        for name, value in other_taus(tau).items()
        if f"tau {name}" in results[0]
    ]
    rows += [
        (tau, name, [cut[name] for cut in cuts], stacked(results, f"blocks {name}"))
        for name in cuts[0]
        if all(f"blocks {name}" in one for one in results)
    ]
    table = []
    for temperature, name, spans, values in rows:
        mean = values[:, :2].double().mean(0)
        medians = _medians(mean[None])[0].tolist()
        seen = ~mean.isnan().any(0)
        table.append(
            {"tau": plain(temperature), "blocks": name}
            | {"tokens_per_block": spans[0][0][1] - spans[0][0][0], "blocks_per_prompt": len(spans[0])}
            | {"r": plain(pearson(*mean[:, seen])[0])}
            | {f"median_{axis}": [plain(half) for half in halves] for axis, halves in zip(AXES, medians, strict=True)}
            | {"left_out_swaps": int(values[:, 2].nansum())}
        )
    return table


def answers(results: Measured, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """How often the model answers correctly, and how that depends on the position of the answer in the prompt."""
    judged = [(prompt, *one.tolist()) for prompt, one in zip(prompts, stacked(results, "answer"), strict=True)]
    judged = [(prompt, chance, right) for prompt, chance, right in judged if prompt.answer is not None]
    if not judged:
        return {"accuracy": None, "answer_probability": None, "by_target": [], "by_position": []}
    placed = [
        {"target": prompt.target, "place": (prompt.target + 0.5) / len(prompt.blocks)}
        | {"probability": chance, "correct": right > 0}
        for prompt, chance, right in judged
        if prompt.target is not None
    ]
    vocabulary = math.inf  # without a list of choices, a guess is never correct
    guess = sum(1 / (prompt.choices or vocabulary) for prompt, _, _ in judged) / len(judged)
    right = int(sum(right for _, _, right in judged))
    test = binomtest(right, len(judged), guess, alternative="greater")
    low, high = wilson(right, len(judged))
    return {
        "accuracy": {"right": right, "of": len(judged), "share": right / len(judged)}
        | {"low": low, "high": high, "guess": guess, "p": float(test.pvalue)},
        "answer_probability": sum(chance for _, chance, _ in judged) / len(judged),
        "by_target": placed,
        "by_position": by_position(placed),
    }


def by_position(placed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy and probability in each third of the prompt, or in each fifth if there are at least 20 prompts.

    >>> by_position([{"place": 0.1, "probability": 0.5, "correct": True}])[0]
    {'from': 0.0, 'to': 0.3333333333333333, 'prompts': 1, 'accuracy': 1.0, 'probability': 0.5}
    """
    parts = 5 if len(placed) >= 20 else 3
    rows = []
    for part in range(parts if placed else 0):
        inside = [one for one in placed if int(one["place"] * parts) == part]
        rows.append(
            {"from": part / parts, "to": (part + 1) / parts, "prompts": len(inside)}
            | {"accuracy": sum(one["correct"] for one in inside) / len(inside) if inside else None}
            | {"probability": sum(one["probability"] for one in inside) / len(inside) if inside else None}
        )
    return rows


def sinks(results: Measured, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The mean share of all heads' attention on sinks, the sinks of the first prompt, and the share of the most
    attended position inside a block.

    A sink is a token before the blocks to which enough heads attend (see `attention.sinks_before`). Inside the blocks,
    a sink is at the same position in every prompt; an answer, which may receive as much attention, is not.
    """
    shares, inside = [], torch.zeros(max(len(prompt.ids) for prompt in prompts))
    for result, prompt in zip(results, prompts, strict=True):
        attention = result["key_attention"]
        shares.append(attention[sinks_before(result["drawn_heads"], prompt.blocks)].sum().item())
        within = [at for block in prompt.blocks for at in range(*block)]
        inside[within] += attention[within] / len(prompts)
    attention, drawn, prompt = results[0]["key_attention"], results[0]["drawn_heads"], prompts[0]
    found = sinks_before(drawn, prompt.blocks).nonzero().flatten().tolist()
    tokens = [
        {"position": at, "token": prompt.tokens[at] if prompt.tokens else "", "attention": attention[at].item()}
        | {"heads": drawn[at].item()}
        for at in sorted(found, key=lambda at: -attention[at])
    ]
    return {"share": sum(shares) / len(shares), "largest_in_a_block": inside.max().item(), "tokens": tokens}


def skipped(results: Measured, prompts: Sequence[Prompt]) -> dict[str, int]:
    """Statements skipped because their length differs, and swaps skipped because neither block receives attention."""
    heads = int(results[0]["skipped"].isfinite().sum())
    return {
        "statements": sum(prompt.skipped for prompt in prompts),
        "of_statements": sum(len(prompt.blocks) + prompt.skipped for prompt in prompts),
        "swaps": int(stacked(results, "skipped").nansum()),
        "of_swaps": sum(math.comb(len(prompt.blocks), 2) * heads for prompt in prompts),
    }


def swaps(results: Measured) -> dict[str, Any] | None:
    """At level prompt, how many swaps were run, and the mean weight of those that were not."""
    if "swaps" not in results[0]:
        return None
    run, possible = stacked(results, "swaps").sum(0).tolist()
    return {"run": int(run), "of": int(possible), "unseen_weight": plain(stacked(results, "unseen").nanmean().item())}


def warnings(numbers: dict[str, Any], prompts: int, dtype: str, tau: float) -> list[str]:
    """What a reader should know before trusting the numbers."""
    sentences = []
    if prompts == 1:
        sentences.append("a single prompt has no intervals over prompts: the scores may not hold for others")
    elif prompts < ENOUGH_PROMPTS:
        sentences.append(f"{prompts} prompts are too few for reliable intervals")
    accuracy = numbers["accuracy"]
    if accuracy is not None and accuracy["p"] > 0.05:
        sentences.append(
            f"{accuracy['right']} of {accuracy['of']} answers are correct, which is indistinguishable from chance: "
            "the heads may have been measured on a task that the model does not do"
        )
    if (largest := numbers["sinks"]["largest_in_a_block"]) >= SINK:
        sentences.append(
            f"a token inside a block receives {largest:.0%} of all attention: "
            "with a sink inside a block, every head appears symbolic"
        )
    if dtype in ("float16", "bfloat16"):
        sentences.append(f"{dtype} rounds attention to two or three digits: differences near tau {tau:g} are noise")
    return sentences


def _correlations(scores: Float[Tensor, "R 2 n"]) -> Float[Tensor, " R"]:
    x, y = (scores - scores.mean(-1, keepdim=True)).unbind(1)
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def _medians(scores: Float[Tensor, "R 2 L H"]) -> Float[Tensor, "R 2 2"]:
    """For each axis, the medians of the first and the second half of the layers; a middle layer is in the second."""
    half = scores.shape[2] // 2
    halves = [
        part.flatten(2).nanquantile(0.5, dim=-1) for part in (scores[:, :, :half], scores[:, :, half:]) if part.numel()
    ]
    return torch.stack([halves[0], halves[-1]], -1)
