"""The headline numbers of a profile, recomputed in plain loops from results with known values."""

from __future__ import annotations

import math
import statistics
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from wherewhat.prompts import Prompt
from wherewhat.studies.profile.summary import (
    answers,
    by_position,
    little_attention,
    plane_numbers,
    retrieval,
    sensitivity,
    sinks,
    skipped,
    swaps,
    warnings,
)
from wherewhat.studies.stats import interval, pearson, resamples, wilson

DRAW = np.random.default_rng(0)
LAYERS, HEADS, TOKENS = 5, 2, 14
BLOCKS = ((2, 4), (4, 6), (6, 8), (8, 10))


def prompt(answer: int | None = 1, target: int | None = 0, choices: int = 4, left: int = 1) -> Prompt:
    tokens = tuple(f"t{at}" for at in range(TOKENS))
    return Prompt(
        tuple(range(TOKENS)), BLOCKS, answer=answer, target=target, choices=choices, skipped=left, tokens=tokens
    )


def measured(chance: float = 0.5, right: float = 1.0) -> dict[str, Tensor]:
    """The numbers of one prompt; all shares are random."""
    names = "positional symbolic on_blocks answer_block answer_chance".split()
    shares = {name: torch.from_numpy(DRAW.random((LAYERS, HEADS))) for name in names}
    attention = torch.from_numpy(DRAW.random(TOKENS)) / TOKENS
    drawn = torch.zeros(TOKENS)
    return shares | {
        "answer": torch.tensor([chance, right]),
        "skipped": torch.from_numpy(DRAW.integers(0, 3, (LAYERS, HEADS))).float(),
        "key_attention": attention,
        "drawn_heads": drawn,
    }


def test_answers_are_counted_and_compared_with_guessing() -> None:
    prompts = [prompt(1, 0, 4), prompt(1, 1, 2), prompt(1, 3, 0), prompt(None, None)]
    found = answers([measured(0.5, 1.0), measured(0.25, 0.0), measured(0.75, 1.0), measured(-1.0, -1.0)], prompts)
    assert found["accuracy"]["right"] == 2
    assert found["accuracy"]["of"] == 3
    assert found["accuracy"]["share"] == pytest.approx(2 / 3)
    assert found["accuracy"]["guess"] == pytest.approx((1 / 4 + 1 / 2 + 0) / 3)
    chance = found["accuracy"]["guess"]
    by_hand = sum(math.comb(3, k) * chance**k * (1 - chance) ** (3 - k) for k in (2, 3))
    assert found["accuracy"]["p"] == pytest.approx(by_hand)
    assert (found["accuracy"]["low"], found["accuracy"]["high"]) == pytest.approx(wilson(2, 3))
    assert found["answer_probability"] == pytest.approx(0.5)
    assert [one["target"] for one in found["by_target"]] == [0, 1, 3]
    assert [one["place"] for one in found["by_target"]] == [0.125, 0.375, 0.875]
    assert [one["correct"] for one in found["by_target"]] == [True, False, True]
    assert [row["prompts"] for row in found["by_position"]] == [1, 1, 1]
    nobody = answers([measured(-1.0, -1.0)], [prompt(None, None)])
    assert nobody == {"accuracy": None, "answer_probability": None, "by_target": [], "by_position": []}


def test_thirds_become_fifths_from_20_prompts_on() -> None:
    placed = [{"place": 0.3, "probability": 0.5, "correct": True}] * 19
    assert [row["prompts"] for row in by_position(placed)] == [19, 0, 0]
    fifths = by_position([*placed, {"place": 0.9, "probability": 0.25, "correct": False}])
    assert [row["prompts"] for row in fifths] == [0, 19, 0, 0, 1]
    assert [row["from"] for row in fifths] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert [row["to"] for row in fifths] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])
    assert fifths[1]["accuracy"] == 1
    assert (fifths[4]["accuracy"], fifths[4]["probability"]) == (0, 0.25)
    assert fifths[0]["accuracy"] is fifths[0]["probability"] is None


def test_the_wilson_interval_follows_its_formula() -> None:
    z = statistics.NormalDist().inv_cdf(0.975)
    for right, of in ((0, 5), (3, 8), (8, 8), (50, 100)):
        share, shrink = right / of, 1 + z**2 / of
        middle = (share + z**2 / (2 * of)) / shrink
        half = z * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2)) / shrink
        assert wilson(right, of) == pytest.approx((middle - half, middle + half), abs=1e-9)


def test_correlation_and_medians_of_the_halves() -> None:
    scores = torch.from_numpy(DRAW.random((6, 2, LAYERS, HEADS)))
    scores[:, :, 1, 1] = torch.nan  # a head without scores
    found = plane_numbers(scores, seed=3)
    mean = scores.mean(0).numpy()
    seen = ~np.isnan(mean[0])
    r, p = stats.pearsonr(mean[0][seen], mean[1][seen])
    assert found["correlation"]["r"] == pytest.approx(r)
    assert found["correlation"]["p"] == pytest.approx(p)
    weights = resamples(6, 3).numpy()
    drawn = [np.tensordot(one, scores.numpy(), 1) for one in weights]
    again = [np.corrcoef(one[0][seen], one[1][seen])[0, 1] for one in drawn]
    low, high = interval(torch.tensor(again))
    assert found["correlation"]["r_low"] == pytest.approx(float(low))
    assert found["correlation"]["r_high"] == pytest.approx(float(high))
    for axis, values in enumerate(mean):
        name = ("positional", "symbolic")[axis]
        for half, part in enumerate((values[: LAYERS // 2], values[LAYERS // 2 :])):
            ours = found["medians"][name][half]
            assert ours["median"] == pytest.approx(statistics.median(part[~np.isnan(part)].tolist()))
            assert ours["low"] <= ours["high"]


def test_heads_with_little_attention_on_the_blocks_are_counted_and_left_out() -> None:
    results = [measured() for _ in range(3)]
    for one in results:
        one["on_blocks"] = torch.full((LAYERS, HEADS), 0.5, dtype=torch.float64)
        one["on_blocks"][0, 0], one["on_blocks"][4, 1] = 0.0099, torch.nan
        one["on_blocks"][2, 0] = 0.01
    scores = torch.stack([torch.stack([one["positional"], one["symbolic"]]) for one in results]).double()
    found = little_attention(results, scores, seed=0)
    assert (found["threshold"], found["heads"], found["of"]) == (0.01, 1, LAYERS * HEADS - 1)
    mean = scores.mean(0)
    rest = torch.ones(LAYERS, HEADS, dtype=torch.bool)
    rest[0, 0] = rest[4, 1] = False
    assert found["correlation"]["r"] == pytest.approx(pearson(*mean[:, rest])[0])


def test_retrieval_counts_heads_above_chance_in_every_prompt() -> None:
    results = [measured() for _ in range(3)]
    results[2]["answer_block"] = torch.full((LAYERS, HEADS), torch.nan)  # a prompt without an answer
    found = retrieval(results)
    assert found is not None
    pairs = [(one["answer_block"], one["answer_chance"]) for one in results[:2]]
    assert found["prompts"] == 2
    cells = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    assert found["above_chance"] == sum(all(a[cell] > c[cell] for a, c in pairs) for cell in cells)
    means = [sum(float(a[cell]) for a, _ in pairs) / 2 for cell in cells]
    assert found["largest"] == pytest.approx(max(means))
    assert found["mean"] == pytest.approx(statistics.fmean(means))
    assert found["chance"] == pytest.approx(statistics.fmean(float(c[cell]) for _, c in pairs for cell in cells))
    assert retrieval(results[2:]) is None


def test_sinks_before_the_blocks_and_inside_them() -> None:
    results, prompts = [measured(), measured()], [prompt(), prompt()]
    for one in results:
        one["drawn_heads"][:2] = torch.tensor([0.5, 0.1])
    results[1]["drawn_heads"][1] = 0.0999
    found = sinks(results, prompts)
    first, second = (one["key_attention"] for one in results)
    assert found["share"] == pytest.approx(float(first[0] + first[1] + second[0]) / 2)
    inside = [(first[at] + second[at]) / 2 for start, stop in BLOCKS for at in range(start, stop)]
    assert found["largest_in_a_block"] == pytest.approx(float(max(inside)))
    in_order = sorted((0, 1), key=lambda at: -first[at])
    assert [one["position"] for one in found["tokens"]] == in_order
    assert [one["token"] for one in found["tokens"]] == [f"t{at}" for at in in_order]
    assert found["tokens"][0]["attention"] == pytest.approx(float(first[in_order[0]]))


def test_what_was_skipped() -> None:
    results, prompts = [measured(), measured()], [prompt(left=1), prompt(left=2)]
    results[0]["skipped"][0, 0] = torch.nan  # a head that the layer does not have
    found = skipped(results, prompts)
    assert found["statements"] == 3
    assert found["of_statements"] == 2 * len(BLOCKS) + 3
    assert found["swaps"] == int(sum(one["skipped"].nansum() for one in results))
    pairs = len(list(combinations(BLOCKS, 2)))
    assert found["of_swaps"] == 2 * pairs * (LAYERS * HEADS - 1)
    assert swaps(results) is None
    for one in results:
        one |= {"swaps": torch.tensor([3.0, 6.0]), "unseen": torch.tensor([0.25, torch.nan])}
    assert swaps(results) == {"run": 6, "of": 12, "unseen_weight": 0.25}


def test_sensitivity_has_a_row_for_every_temperature_and_cut() -> None:
    results, prompts = [measured(), measured()], [prompt(), prompt()]
    for one in results:
        one["tau 0.01"] = torch.from_numpy(DRAW.random((3, LAYERS, HEADS)))
        one["tau 0.01"][2] = 1
        one["blocks one token"] = torch.from_numpy(DRAW.random((3, LAYERS, HEADS)))
    own, warm, single = sensitivity(results, prompts, 1e-4)
    assert [(row["tau"], row["blocks"]) for row in (own, warm, single)] == [
        (1e-4, "as given"), (0.01, "as given"), (1e-4, "one token"),
    ]  # fmt: skip
    assert [row["tokens_per_block"] for row in (own, warm, single)] == [2, 2, 1]
    assert [row["blocks_per_prompt"] for row in (own, warm, single)] == [4, 4, 8]
    assert warm["left_out_swaps"] == 2 * LAYERS * HEADS
    assert own["left_out_swaps"] == int(sum(one["skipped"].sum() for one in results))
    mean = sum(one["tau 0.01"][:2].numpy() for one in results) / 2
    assert warm["r"] == pytest.approx(stats.pearsonr(mean[0].flatten(), mean[1].flatten())[0])
    assert warm["median_symbolic"] == pytest.approx([np.median(mean[1][:2]), np.median(mean[1][2:])])


def test_warnings_are_given_where_they_are_due() -> None:
    fine = {"accuracy": {"p": 0.05, "right": 3, "of": 8}, "sinks": {"largest_in_a_block": 0.199}}

    def said(prompts: int = 8, dtype: str = "float32", **changed: object) -> list[str]:
        return warnings(fine | changed, prompts, dtype, 1e-4)

    assert said() == said(accuracy=None) == []
    assert [one[:15] for one in said(prompts=1)] == ["a single prompt"]
    assert said(prompts=2) == ["2 prompts are too few for reliable intervals"]
    assert "3 of 8 answers are correct" in said(accuracy={"p": 0.051, "right": 3, "of": 8})[0]
    assert "receives 20% of all attention" in said(sinks={"largest_in_a_block": 0.2})[0]
    assert said(dtype="bfloat16") == [
        "bfloat16 rounds attention to two or three digits: differences near tau 0.0001 are noise"
    ]
