"""What the model reads: binding, repeats, plain text, the user's own prompts."""

from .binding import KINDS, binding
from .other import own_prompts, plain_text, repeats
from .prompt import Prompt

__all__ = ["KINDS", "Prompt", "binding", "own_prompts", "plain_text", "repeats"]
