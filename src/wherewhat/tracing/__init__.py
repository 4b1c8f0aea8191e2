"""Capture queries, keys and angles from a model, and verify that the capture describes what the model computes."""

from .capture import capture
from .load import load, load_tokenizer

__all__ = ["capture", "load", "load_tokenizer"]
