"""The ways in which wherewhat says no. The command line turns bad input and what cannot be measured into one line and
exit code 2, and what failed on the way into exit code 1."""

from collections.abc import Mapping
from pathlib import Path


class BadInput(ValueError):
    """What was asked for cannot be: the message says what was given and what would work."""


class NotMeasurable(RuntimeError):
    """The model cannot be measured right at this level, so it is not measured at all."""


class CellsFailed(RuntimeError):
    """Some cells could not be computed; all others are kept."""

    def __init__(self, name: str, total: int, failed: Mapping[str, str], logs: Path | None = None) -> None:
        reasons = "\n".join(f"  {number}  {reason}" for number, reason in failed.items())
        where = f" (logs in {logs})" if logs else ""
        super().__init__(
            f"{len(failed)} of {total} {name} failed; the others are kept, and the same command tries only these again"
            f"{where}:\n{reasons}"
        )
        self.failed, self.logs = dict(failed), logs
