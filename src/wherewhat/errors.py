"""Exceptions of wherewhat. The command line reports BadInput and NotMeasurable in one line with exit code 2, and
CellsFailed with exit code 1."""

from collections.abc import Mapping
from pathlib import Path


class BadInput(ValueError):
    """The request is invalid; the message says what was given and what would work."""


class Damaged(BadInput):
    """A file does not hold what was written to it, or belongs to something else."""


class SetAside(UserWarning):
    """A damaged file was renamed; what it held is computed again."""


class NotMeasurable(RuntimeError):
    """The model cannot be measured correctly at this level, so it is not measured at all."""


class CellsFailed(RuntimeError):
    """Some cells failed; the results of all others are kept. `failed` maps the hash of each to its reason."""

    def __init__(self, name: str, total: int, failed: Mapping[str, str], logs: Path | None = None) -> None:
        reasons = "\n".join(f"  {number}  {reason}" for number, reason in failed.items())
        where = f" (logs in {logs})" if logs else ""
        super().__init__(
            f"{len(failed)} of {total} {name} failed; the others are kept; rerun the command to retry only these"
            f"{where}:\n{reasons}"
        )
        self.failed, self.logs = dict(failed), logs
