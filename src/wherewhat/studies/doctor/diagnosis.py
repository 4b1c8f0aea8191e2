"""The result of the doctor: one row per layer and property, declared and measured, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import pandas as pd

from ...results import Result
from ...words import name_layers

RIGHT, WRONG, NOT_STATED, NOT_MEASURED = "as declared", "wrong", "not stated", "not measured"


@dataclass(frozen=True)
class Finding:
    """One property of one layer; `advice` says what follows if it is wrong."""

    subject: str
    declared: str
    measured: str
    verdict: str
    deviation: float | None = None
    advice: str = ""


@dataclass(frozen=True)
class LayerFinding(Finding):
    """The same finding about several layers; `deviation` is the largest among them."""

    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Diagnosis(Result, file="diagnosis.json", kind="diagnosis"):
    """How position acts on a model, compared with its configuration.

    `measurements` has one row per layer and property; `findings` groups the layers with equal rows. `healthy`: nothing
    measured disagrees with the configuration. `about` has the family, dtype and context of the model; `probed`, the
    tokens of the prompt with which windows were measured; `reach`, how far the planes rotate over the context, in
    sentences; and the deviations of the `self_check`.

    >>> ww.doctor(model).healthy                                          # doctest: +SKIP
    True
    """

    measurements: pd.DataFrame
    about: dict[str, Any]

    @property
    def findings(self) -> tuple[LayerFinding, ...]:
        """Layers with equal findings together, in the order in which properties were compared."""
        return tuple(_grouped(self.measurements))

    @property
    def wrong(self) -> tuple[LayerFinding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == WRONG)

    @property
    def healthy(self) -> bool:
        return not self.wrong

    @property
    def verdict(self) -> str:
        """One sentence per finding that needs action; or that the model is healthy, and what was not compared."""
        if wrong := self.wrong:
            return " ".join(f"{name_layers(finding.layers)}: {finding.advice}." for finding in wrong)
        right = sum(finding.verdict == RIGHT for finding in self.findings)
        healthy = f"healthy: all {right} properties that could be compared are as the configuration declares"
        return "; ".join([healthy, *self._not_compared()])

    def _not_compared(self) -> Iterator[str]:
        """The properties that were not compared, by reason."""
        for reason in (NOT_STATED, NOT_MEASURED):
            names = []
            for finding in self.findings:
                if finding.verdict == reason:
                    declared = "" if finding.declared == NOT_STATED else f": {finding.declared}"
                    names.append(f"{finding.subject} ({name_layers(finding.layers)}{declared})")
            if names:
                yield f"{reason}: {', '.join(names)}"

    def as_dict(self) -> dict[str, Any]:
        """Everything that was found, for JSON."""
        shown = ("family", "dtype", "context", "probed", "reach", "self_check")
        return (
            {"findings": [asdict(finding) for finding in self.findings]}
            | {name: self.about[name] for name in shown}
            | {"healthy": self.healthy, "verdict": self.verdict}
        )


def measurement_table(rows: Iterable[tuple[int, Finding]]) -> pd.DataFrame:
    """One row per layer and property."""
    columns = ["layer", *(field.name for field in fields(Finding))]
    table = pd.DataFrame([(layer, *astuple(finding)) for layer, finding in rows], columns=columns)
    return table.astype({"deviation": "float64"})


def _grouped(table: pd.DataFrame) -> Iterator[LayerFinding]:
    order = {subject: at for at, subject in enumerate(dict.fromkeys(table["subject"]))}
    groups: Any = table.groupby(["subject", "declared", "measured", "verdict"], sort=False)
    for (subject, declared, measured, verdict), rows in sorted(
        groups, key=lambda group: (order[group[0][0]], group[1]["layer"].iloc[0])
    ):
        layers = tuple(int(layer) for layer in dict.fromkeys(rows["layer"]))
        deviation = rows["deviation"].max()
        yield LayerFinding(
            subject, declared, measured, verdict, deviation=None if pd.isna(deviation) else float(deviation),
            advice=rows["advice"].iloc[0], layers=layers,
        )  # fmt: skip
