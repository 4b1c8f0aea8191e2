"""What was claimed about positional encodings, beside what is found over seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import stats

from .settings import CLEAN, FLAWED, variant_label
from .tables import SETTING, Encodings, rows_with

Row = tuple[str, str, str]  # encoding, task, variant


@dataclass(frozen=True)
class EncodingClaim:
    """A sentence about some rows of the summary. `holds` gets one array per row: a column's values over seeds."""

    words: str
    column: str
    rows: tuple[Row, ...]
    holds: Callable[..., bool]

    def against(self, runs: pd.DataFrame) -> dict[str, Any] | None:
        """The claim beside what is found; None if one of its rows was not run."""
        values = []
        for encoding, task, variant in self.rows:
            matching = rows_with(runs, encoding=encoding, task=task, variant=variant)
            if matching.empty:
                return None
            values.append(matching[self.column].to_numpy())
        named = [
            f"{name}{'' if variant == CLEAN else f' ({variant_label(variant)})'} "
            f"{seeds.mean():.3g} ({seeds.min():.3g}-{seeds.max():.3g})"
            for (name, _, variant), seeds in zip(self.rows, values, strict=True)
        ]
        return {"claim": self.words, "found": ", ".join(named), "holds": bool(self.holds(*values))}


def ahead(one: Any, other: Any) -> bool:
    """Every seed of the one exceeds every seed of the other by more than 5 percentage points."""
    return bool(one.min() > other.max() + 0.05)


def on(task: str, *encodings: str, variant: str = CLEAN) -> tuple[Row, ...]:
    return tuple((encoding, task, variant) for encoding in encodings)


CLAIMS = (
    EncodingClaim("Distance: RoPE is ahead of NoPE", "accuracy", on("distance", "rope", "nope"), ahead),
    EncodingClaim("Distance: RoPE is ahead of ALiBi", "accuracy", on("distance", "rope", "alibi"), ahead),
    EncodingClaim("Distance: RoPE is ahead of sinusoids", "accuracy", on("distance", "rope", "sinusoidal"), ahead),
    EncodingClaim("Distance: RoPE learns faster than ALiBi", "steps_to_90", on("distance", "rope", "alibi"),
          lambda rope, alibi: rope.max() < alibi.min()),
    EncodingClaim("Distance: NoPE fails", "accuracy", on("distance", "nope"), lambda nope: nope.max() < 0.5),
    EncodingClaim("Distance: ALiBi fails", "accuracy", on("distance", "alibi"), lambda alibi: alibi.max() < 0.5),
    EncodingClaim("Distance, with all flaws of the published code: ALiBi fails", "accuracy",
          on("distance", "alibi", variant=FLAWED), lambda alibi: alibi.max() < 0.5),
    EncodingClaim("Count: RoPE is behind NoPE", "accuracy", on("count", "nope", "rope"), ahead),
    EncodingClaim("Count: ALiBi is worst", "accuracy", on("count", "alibi", "rope", "nope", "sinusoidal"),
          lambda alibi, *others: alibi.max() < min(other.min() for other in others)),
    EncodingClaim("Count, with all flaws of the published code: ALiBi is worst", "accuracy",
          on("count", "alibi", "rope", "nope", "sinusoidal", variant=FLAWED),
          lambda alibi, *others: alibi.max() < min(other.min() for other in others)),
    EncodingClaim("Distance: without one head, RoPE loses at least 50 percentage points", "largest",
          on("distance", "rope"), lambda drop: drop.min() >= 0.5),
    EncodingClaim("Distance: that head has more than half of the sum of all drops", "share", on("distance", "rope"),
          lambda share: share.min() > 0.5),
    EncodingClaim("Distance: the largest drop of ALiBi is smaller than that of RoPE", "largest",
          on("distance", "rope", "alibi"), ahead),
    EncodingClaim("Distance: the largest drop of sinusoids is smaller than that of RoPE", "largest",
          on("distance", "rope", "sinusoidal"), ahead),
    EncodingClaim("Count: no head of RoPE costs 20 percentage points", "largest", on("count", "rope"),
          lambda drop: drop.max() < 0.2),
    EncodingClaim("Distance: RoPE in one head reaches 90 %", "accuracy", on("distance", "rope, 1 head"),
          lambda accuracy: accuracy.min() >= 0.9),
    EncodingClaim("Distance: latent attention spreads the loss over more heads than RoPE", "effective",
          on("distance", "mla", "rope"), lambda mla, rope: mla.min() > rope.max()),
    EncodingClaim("Distance: RoPE in half of the heads spreads the loss over more heads than in all", "effective",
          on("distance", "rope, 4 heads", "rope"), lambda some, rope: some.min() > rope.max()),
    EncodingClaim("Distance: RoPE is needed in the first layer", "accuracy",
          (("rope", "distance", CLEAN), ("rope", "distance", "last layer")), ahead),
    EncodingClaim("Distance: the head of RoPE with the largest drop had the largest gradient early in training",
          "seed_rank", on("distance", "rope"), lambda rank: rank.max() == 1),
    EncodingClaim("Distance: at initialisation, sequences agree more on the gradient of a head of RoPE than of ALiBi",
          "agreement", on("distance", "rope", "alibi"), lambda rope, alibi: rope.min() > alibi.max()),
)  # fmt: skip


def findings(made: Encodings) -> pd.DataFrame:
    """Every claim whose runs exist, by size and dropout: mean and range over seeds, and whether the claim holds."""
    rows: list[dict[str, Any]] = []
    every: Any = made.runs
    for (size, dropout), runs in every.groupby(SETTING, sort=False):
        found = [row for claim in CLAIMS if (row := claim.against(runs)) is not None]
        rows += [row | {"size": size, "dropout": dropout} for row in (*found, *_conditioning(runs))]
    return pd.DataFrame(rows, columns=["claim", "found", "holds", *SETTING])


def _conditioning(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Whether encodings with better conditioned logits at initialisation learn faster.

    Rank correlation over the means of encodings, because seeds of one encoding are not independent of each other.
    """
    learnt: Any = rows_with(runs, task="distance", variant=CLEAN).dropna(subset=["steps_to_90"])
    means = learnt.groupby("encoding")[["condition", "steps_to_90"]].mean()
    if len(means) < 4:
        return []
    found: Any = stats.spearmanr(means["condition"], means["steps_to_90"])
    words = "Distance: a lower condition number at initialisation goes with fewer steps to 90 %"
    summary = f"rank correlation {found.statistic:+.2f}, p = {found.pvalue:.2g}, {len(means)} encodings"
    return [{"claim": words, "found": summary, "holds": bool(found.statistic > 0 and found.pvalue < 0.05)}]
