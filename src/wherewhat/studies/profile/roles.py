"""Roles that a head resembles, from the table of heads: what it attends to on repeated tokens, what it retrieves."""

from __future__ import annotations

from typing import Any

from ...core.kinds import LITTLE

# A head has a role if it puts at least this share of its attention on the token that defines the role.
ROLE = 0.4
# The column that holds this share: the first two and the last on repeated random tokens, sink on the prompts.
ROLES = {
    "previous-token": "previous_token",
    "induction": "induction",
    "sink": "on_first",
    "current-token": "current_token",
}
RETRIEVES = "answer"  # the column by which heads are ranked as retrieving


def rests_on_little(heads: Any) -> Any:
    """Which heads put less than LITTLE of their attention on the blocks, so that their scores say little about them."""
    return heads["on_blocks"] < LITTLE


def retrieving(heads: Any) -> Any:
    """Which heads attend to the block with the answer above chance: the whole interval over prompts is above it."""
    return heads["answer_low"].fillna(heads["answer"]) > heads["answer_chance"]


def in_role(heads: Any, role: str) -> Any:
    """Which heads have this role, one of ROLES or "retrieving"."""
    return retrieving(heads) if role == "retrieving" else heads[ROLES[role]] >= ROLE
