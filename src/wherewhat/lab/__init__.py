"""Small models for controlled experiments: one Transformer, one trainer."""

from .checkpoint import embedded, load_checkpoint
from .gptj import from_gptj, to_gptj
from .run import Run
from .train import Recipe, train_model
from .transformer import Shape, Transformer

__all__ = [
    "Recipe", "Run", "Shape", "Transformer", "embedded", "from_gptj", "load_checkpoint", "to_gptj", "train_model",
]  # fmt: skip
