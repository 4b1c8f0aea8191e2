"""Heads with hand-set weights, and what can be proved about them."""
