"""Prompts for language models: binding, repeats, plain text, and the user's own."""

from .binding import KINDS, TEMPLATES, binding
from .prompt import Prompt
from .request import PromptRequest, make_prompts
from .text import own_prompts, plain_text, repeats

__all__ = [
    "KINDS",
    "TEMPLATES",
    "Prompt",
    "PromptRequest",
    "binding",
    "make_prompts",
    "own_prompts",
    "plain_text",
    "repeats",
]
