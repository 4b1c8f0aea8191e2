"""Tasks with a known answer: vectorised, seeded generators."""

from .hops import Sequences
from .letter import Letter
from .number import Number

TASKS = {"number": Number, "letter": Letter}

__all__ = ["TASKS", "Letter", "Number", "Sequences"]
