"""Reading queries, keys and angles out of a model, and making sure that what was read is what the model does."""

from .capture import capture
from .load import load, load_tokenizer

__all__ = ["capture", "load", "load_tokenizer"]
