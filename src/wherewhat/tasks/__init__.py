"""Tasks with a known answer: vectorised, seeded generators."""

from .count import Count
from .distance import Distance
from .hops import Sequences
from .index import Index
from .induction import Induction
from .letter import Letter
from .lookups import Lookups, LookupTask
from .number import Number
from .retrieval import Retrieval

TASKS = {"number": Number, "letter": Letter}
CANONICAL = {"index": Index, "retrieval": Retrieval, "induction": Induction}

__all__ = [
    "CANONICAL", "TASKS", "Count", "Distance", "Index", "Induction", "Letter", "LookupTask", "Lookups", "Number",
    "Retrieval", "Sequences",
]  # fmt: skip
