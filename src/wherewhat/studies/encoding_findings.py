"""What was claimed of positional encodings, beside what is found over seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import stats

from .encoding_tables import Encodings, rows_with
from .encodings import CLEAN, QUIRKY

Row = tuple[str, str, str]  # encoding, task, variant


@dataclass(frozen=True)
class Claim:
    """A sentence on some rows of the summary; `holds` is asked with the seeds' values of one column of each."""

    words: str
    column: str
    rows: tuple[Row, ...]
    holds: Callable[..., bool]

    def against(self, runs: pd.DataFrame) -> dict[str, Any] | None:
        """What is found, or nothing where a row was not run."""
        values = []
        for encoding, task, variant in self.rows:
            some = rows_with(runs, encoding=encoding, task=task, variant=variant)
            if some.empty:
                return None
            values.append(some[self.column].to_numpy())
        named = [
            f"{name}{'' if variant == CLEAN else f' ({variant})'} {told.mean():.3g} ({told.min():.3g}-{told.max():.3g})"
            for (name, _, variant), told in zip(self.rows, values, strict=True)
        ]
        return {"claim": self.words, "found": ", ".join(named), "holds": bool(self.holds(*values))}


def ahead(one: Any, other: Any) -> bool:
    """Every seed of the one is above every seed of the other, by 5 points at least."""
    return bool(one.min() > other.max() + 0.05)


def on(task: str, *encodings: str, variant: str = CLEAN) -> tuple[Row, ...]:
    return tuple((encoding, task, variant) for encoding in encodings)


CLAIMS = (
    Claim("Distance: RoPE is ahead of NoPE", "accuracy", on("distance", "rope", "nope"), ahead),
    Claim("Distance: RoPE is ahead of ALiBi", "accuracy", on("distance", "rope", "alibi"), ahead),
    Claim("Distance: RoPE is ahead of sinusoids", "accuracy", on("distance", "rope", "sinusoidal"), ahead),
    Claim("Distance: RoPE is learnt sooner than ALiBi", "steps_to_90", on("distance", "rope", "alibi"),
          lambda rope, alibi: rope.max() < alibi.min()),
    Claim("Distance: NoPE fails", "accuracy", on("distance", "nope"), lambda nope: nope.max() < 0.5),
    Claim("Distance: ALiBi fails", "accuracy", on("distance", "alibi"), lambda alibi: alibi.max() < 0.5),
    Claim("Distance, quirky: ALiBi fails", "accuracy", on("distance", "alibi", variant=QUIRKY),
          lambda alibi: alibi.max() < 0.5),
    Claim("Count: RoPE is behind NoPE", "accuracy", on("count", "nope", "rope"), ahead),
    Claim("Count: ALiBi is worst", "accuracy", on("count", "alibi", "rope", "nope", "sinusoidal"),
          lambda alibi, *others: alibi.max() < min(other.min() for other in others)),
    Claim("Count, quirky: ALiBi is worst", "accuracy",
          on("count", "alibi", "rope", "nope", "sinusoidal", variant=QUIRKY),
          lambda alibi, *others: alibi.max() < min(other.min() for other in others)),
    Claim("Distance: one head of RoPE costs 50 points", "largest", on("distance", "rope"),
          lambda drop: drop.min() >= 0.5),
    Claim("Distance: that head holds more than half of all drops", "share", on("distance", "rope"),
          lambda share: share.min() > 0.5),
    Claim("Distance: a head of ALiBi costs less than one of RoPE", "largest", on("distance", "rope", "alibi"), ahead),
    Claim("Distance: a head of sinusoids costs less than one of RoPE", "largest",
          on("distance", "rope", "sinusoidal"), ahead),
    Claim("Count: no head of RoPE costs 20 points", "largest", on("count", "rope"), lambda drop: drop.max() < 0.2),
    Claim("Distance: RoPE in one head gives 90 %", "accuracy", on("distance", "rope, 1 head"),
          lambda accuracy: accuracy.min() >= 0.9),
    Claim("Distance: latent attention spreads the loss over more heads than RoPE", "effective",
          on("distance", "mla", "rope"), lambda mla, rope: mla.min() > rope.max()),
    Claim("Distance: RoPE in half of the heads spreads the loss over more heads than in all", "effective",
          on("distance", "rope, 4 heads", "rope"), lambda some, rope: some.min() > rope.max()),
    Claim("Distance: RoPE is needed in the first layer", "accuracy",
          (("rope", "distance", CLEAN), ("rope", "distance", "last layer")), ahead),
    Claim("Distance: the head of RoPE that costs most had the largest gradient early", "seed_rank",
          on("distance", "rope"), lambda rank: rank.max() == 1),
    Claim("Distance: at the start sequences pull a head of RoPE one way more than one of ALiBi", "agreement",
          on("distance", "rope", "alibi"), lambda rope, alibi: rope.min() > alibi.max()),
)  # fmt: skip


def findings(made: Encodings) -> pd.DataFrame:
    """Every claim whose runs are there: what is found, a mean and range over seeds, and whether it holds."""
    rows = [row for claim in CLAIMS if (row := claim.against(made.runs)) is not None]
    return pd.DataFrame([*rows, *_conditioning(made.runs)])


def _conditioning(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Whether encodings with better conditioned logits at the start learn sooner: rank correlation over encodings, each
    the mean of its seeds, as seeds of one encoding are not independent of each other."""
    some: Any = rows_with(runs, task="distance", variant=CLEAN).dropna(subset=["steps_to_90"])
    means = some.groupby("encoding")[["condition", "steps_to_90"]].mean()
    if len(means) < 4:
        return []
    found: Any = stats.spearmanr(means["condition"], means["steps_to_90"])
    words = "Distance: a lower condition number at the start goes with fewer steps to 90 %"
    told = f"rank correlation {found.statistic:+.2f}, p = {found.pvalue:.2g}, {len(means)} encodings"
    return [{"claim": words, "found": told, "holds": bool(found.statistic > 0 and found.pvalue < 0.05)}]
