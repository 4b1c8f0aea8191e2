"""The tables of heads and frequencies, from the measurements of every prompt."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.frequency import mean_frequency
from ...core.kinds import kind
from ..stats import interval, resamples
from .attention import SHARES

AXES = ("positional", "symbolic")
HEAD_MEANS = ("entropy", "variance", "exclusion_bound", "positional_without_first", "symbolic_without_first")
FREQUENCY_MEANS = {
    "positional": "frequency_positional",
    "symbolic": "frequency_symbolic",
    "use_norm": "use_norm",
    "use_max": "use_max",
}

Measured = Sequence[dict[str, Tensor]]


def head_table(results: Measured, signature: dict[str, Tensor], seed: int) -> pd.DataFrame:
    """One row per head: means over prompts, with bootstrap intervals for the two scores.

    A single prompt at level prompt has the interval of its sample of swaps.
    """
    mean = {name: stacked(results, name).mean(0) for name in (*AXES, *HEAD_MEANS, "sink")}
    draws = resamples(len(results), seed)
    ends = {name: interval(draws @ stacked(results, name).flatten(1).double()) for name in AXES}
    planes = int((results[0]["frequency_ids"] > 0).sum())
    use = stacked(results, "use_max").mean(0)[..., :planes]
    typical = mean_frequency(use) if planes else torch.full_like(mean["positional"], torch.nan)
    layers, heads = mean["positional"].shape
    groups = results[0]["kv_groups"][:, None]
    table = {
        "layer": results[0]["layers"][:, None].expand(layers, heads),
        "head": torch.arange(heads).expand(layers, heads),
        "kv_head": torch.arange(heads) // groups,
    }
    for axis in AXES:
        low, high = (end.reshape(layers, heads) for end in ends[axis])
        if len(results) == 1 and f"{axis}_low" in results[0]:
            low, high = (results[0][f"{axis}_{end}"].double() for end in ("low", "high"))
        table |= {axis: mean[axis].double(), f"{axis}_low": low, f"{axis}_high": high}
    table |= {name: mean[name].double() for name in HEAD_MEANS}
    table |= {"mean_frequency": typical.double()}
    table |= {name: signature[name].double() for name in ("previous_token", "induction")}
    table |= {"sink": mean["sink"].double()}
    for column, name in SHARES.items():
        table |= _with_interval(column, stacked(results, name).double(), seed)
    table |= {"answer_chance": stacked(results, "answer_chance").double().nanmean(0)}
    table |= {"current_token": signature["current_token"].double()}
    frame = pd.DataFrame({name: values.flatten().numpy() for name, values in table.items()})
    frame.insert(3, "kind", [kind(*scores) for scores in zip(frame["positional"], frame["symbolic"], strict=True)])
    return frame.dropna(subset=["entropy"], ignore_index=True)  # some layers have fewer heads than others


def _with_interval(column: str, values: Float[Tensor, "P L H"], seed: int) -> dict[str, Float[Tensor, "L H"]]:
    """The mean over the prompts that have this value, with its bootstrap interval; NaN if none has it."""
    judged = values[~values.isnan().all(-1).all(-1)]
    if not len(judged):
        return dict.fromkeys((column, f"{column}_low", f"{column}_high"), values[0])
    low, high = interval(torch.einsum("rp,plh->rlh", resamples(len(judged), seed), judged))
    return {column: judged.mean(0), f"{column}_low": low, f"{column}_high": high}


def frequency_table(results: Measured) -> pd.DataFrame:
    """One row per head and frequency: means over prompts."""
    mean = {name: stacked(results, source).mean(0) for name, source in FREQUENCY_MEANS.items()}
    shape = mean["positional"].shape
    table = {
        "layer": results[0]["layers"][:, None, None].expand(shape),
        "head": torch.arange(shape[1])[:, None].expand(shape),
        "frequency": results[0]["frequency_ids"].expand(shape),
        "angle": results[0]["angles"][:, None].expand(shape).double(),
    } | {name: values.double() for name, values in mean.items()}
    frame = pd.DataFrame({name: values.flatten().numpy() for name, values in table.items()})
    return frame.dropna(subset=["angle", "use_norm"], ignore_index=True)


def stacked(results: Measured, name: str) -> Float[Tensor, "P ..."]:
    return torch.stack([one[name] for one in results])
