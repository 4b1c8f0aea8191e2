"""Tasks with a known answer: vectorised, seeded generators."""

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
    "CANONICAL", "TASKS", "Index", "Induction", "Letter", "LookupTask", "Lookups", "Number", "Retrieval", "Sequences",
]  # fmt: skip
