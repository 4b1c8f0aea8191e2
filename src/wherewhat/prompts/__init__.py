"""What the model reads: binding, repeats, plain text, the user's own prompts."""

from .binding import KINDS, TEMPLATES, binding
from .other import own_prompts, plain_text, repeats
from .prompt import Prompt
from .task import Task, make_prompts

__all__ = [
    "KINDS",
    "TEMPLATES",
    "Prompt",
    "Task",
    "binding",
    "make_prompts",
    "own_prompts",
    "plain_text",
    "repeats",
]
