"""What was published about positional encodings on the two tasks."""

from __future__ import annotations

# Accuracy, or what the paper says where it gives no number, by encoding and task.
PUBLISHED: dict[tuple[str, str], float | str] = {
    ("rope", "distance"): 0.9264,
    ("rope", "count"): 0.6943,
    ("mla", "distance"): 0.8834,
    ("mla", "count"): 0.9741,
    ("sinusoidal", "distance"): "second best",
    ("sinusoidal", "count"): "medium",
    ("alibi", "distance"): "fails",
    ("alibi", "count"): "worst",
    ("nope", "distance"): "fails",
    ("nope", "count"): 0.7769,
}


def published(encoding: str, task: str) -> str:
    """What was published, for a table; empty if nothing was.

    >>> published("rope", "distance"), published("alibi", "count"), published("t5", "count")
    ('92.6 %', 'worst', '')
    """
    found = PUBLISHED.get((encoding, task), "")
    return found if isinstance(found, str) else f"{100 * found:.1f} %"
