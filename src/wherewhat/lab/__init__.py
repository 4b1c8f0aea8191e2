"""Small models that are trained here: one Transformer, one trainer."""

from .gptj import from_gptj, to_gptj
from .train import Recipe, train
from .transformer import Shape, Transformer

__all__ = ["Recipe", "Shape", "Transformer", "from_gptj", "to_gptj", "train"]
