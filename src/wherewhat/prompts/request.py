"""From the options of a command to prompts that fit a model."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .binding import binding, check_binding
from .prompt import Prompt
from .text import own_prompts, plain_text, read_text, repeats

# The options of each task and their defaults. None: as much as fits.
OPTIONS: dict[str, dict[str, Any]] = {
    "binding": {"kind": "color", "template": "plain", "pairs": None, "samples": 8, "chat": False},
    "repeats": {"samples": 8},
    ".txt": {"samples": 8, "width": 8},
    ".jsonl": {},
}
DEFAULT_PAIRS = 64


@dataclass(frozen=True)
class PromptRequest:
    """A task and its options; None stands for the default.

    Options that the task does not have, and values that no model could take, are refused immediately.

    >>> PromptRequest("binding", pairs=16).settings()
    {'task': 'binding', 'kind': 'color', 'template': 'plain', 'pairs': 16, 'samples': 8, 'chat': False}
    """

    name: str = "binding"
    kind: str | None = None
    template: str | None = None
    pairs: int | None = None
    samples: int | None = None
    chat: bool | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        options = asdict(self)
        del options["name"]
        for option, value in options.items():
            if value is not None and option not in OPTIONS[self.form]:
                raise BadInput(f"--{option} does not apply to the task {self.name}")
        chosen = self.settings()
        if "samples" in chosen and chosen["samples"] < 1:
            raise BadInput(f"samples must be at least 1, got {chosen['samples']}")
        if "width" in chosen and chosen["width"] < 1:
            raise BadInput(f"width must be at least 1 token per block, got {chosen['width']}")
        if self.form == "binding":
            pairs = DEFAULT_PAIRS if self.pairs is None else self.pairs
            check_binding(pairs, chosen["samples"], chosen["kind"], chosen["template"])
        elif self.form.startswith("."):
            read_text(self.name)

    @property
    def form(self) -> str:
        """The key of the task in OPTIONS."""
        form = self.name if self.name in ("binding", "repeats") else Path(self.name).suffix
        if form not in OPTIONS:
            raise BadInput(f"no task {self.name!r}: binding, repeats, a .jsonl file or a .txt file")
        return form

    def settings(self) -> dict[str, Any]:
        """The task with all its options, as chosen or by default."""
        chosen = {name: getattr(self, name) for name in OPTIONS[self.form]}
        filled = {name: OPTIONS[self.form][name] if value is None else value for name, value in chosen.items()}
        return {"task": self.name, **filled}


def make_prompts(
    task: PromptRequest, tokenizer: Any, context: int, seed: int = 0
) -> tuple[list[Prompt], PromptRequest]:
    """The prompts of a task for a model that takes `context` tokens, and the task with its number of pairs.

    By default the binding task has 64 pairs, or as many as fit; a given number of pairs that does not fit is refused.

    >>> prompts, task = make_prompts(PromptRequest("binding"), tokenizer, context=256)      # doctest: +SKIP
    >>> task.pairs                                                                 # doctest: +SKIP
    39
    """
    chosen = task.settings()
    del chosen["task"]
    if task.form == "binding":
        del chosen["pairs"]

        def with_pairs(pairs: int) -> list[Prompt]:
            return binding(tokenizer, pairs, **chosen, seed=seed)

        pairs = task.pairs
        if pairs is None:
            pairs = pairs_that_fit(with_pairs, context)
        task, prompts = replace(task, pairs=pairs), with_pairs(pairs)
    elif task.form == "repeats":
        prompts = repeats(tokenizer, min(64, context // 2 - 2), **chosen, seed=seed)
    elif task.form == ".txt":
        prompts = plain_text(tokenizer, read_text(task.name), tokens=min(256, context), **chosen)
    else:
        prompts = own_prompts(tokenizer, task.name)
    if longest(prompts) > context:
        fewer = "; use fewer pairs" if task.form == "binding" else ""
        raise BadInput(f"a prompt has {longest(prompts)} tokens, more than the {context} that the model takes{fewer}")
    return prompts, task


def pairs_that_fit(with_pairs: Callable[[int], Sequence[Prompt]], context: int, most: int = DEFAULT_PAIRS) -> int:
    """The largest number of pairs, at least 2, whose prompts have at most `context` tokens: lengths grow with pairs."""
    return max(2, 1 + bisect(range(2, most + 1), context, key=lambda size: longest(with_pairs(size))))


def longest(prompts: Sequence[Prompt]) -> int:
    """The number of tokens of the longest prompt."""
    return max(len(prompt.ids) for prompt in prompts)
