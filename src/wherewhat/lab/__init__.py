"""Small models that are trained here: one Transformer, one trainer."""

from .checkpoint import embedded, load_checkpoint
from .gptj import from_gptj, to_gptj
from .train import Recipe, train
from .transformer import Shape, Transformer

__all__ = ["Recipe", "Shape", "Transformer", "embedded", "from_gptj", "load_checkpoint", "to_gptj", "train"]
