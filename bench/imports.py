"""What a user waits for before anything is computed: processor time of whole processes, less that of an empty one."""

from __future__ import annotations

import subprocess
import sys
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

COMMANDS = {
    "import wherewhat": ["-c", "import wherewhat"],
    "wherewhat --help": ["-m", "wherewhat", "--help"],
    "import torch, transformers": ["-c", "import torch, transformers, wherewhat.tracing.load"],
    "import numba": ["-c", "import numba"],
    "a model that is missing": ["-m", "wherewhat", "profile", "gone.gguf"],
    "a number out of range": ["-m", "wherewhat", "profile", "number", "--pairs=-3"],
}


def compare() -> list[dict[str, float | str]]:
    empty = taken(["-c", "pass"])
    return [{"command": name, "s": taken(words) - empty} for name, words in COMMANDS.items()]


def taken(words: list[str], turns: int = 5) -> float:
    """The median processor time of a Python process; the first turn, which may read from disk, is left out."""
    found = []
    for _ in range(turns + 1):
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=False)
        after = getrusage(RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(found[1:])
