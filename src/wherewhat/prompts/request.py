"""From the options of a command to prompts that fit a model."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..results import check_count
from .binding import binding, check_binding
from .prompt import Prompt
from .text import included_story, own_prompts, plain_text, read_text, repeats

# The options of each task and their defaults. None: as much as fits.
OPTIONS: dict[str, dict[str, Any]] = {
    "binding": {"kind": "color", "template": "plain", "pairs": None, "samples": 8, "chat": False, "group": 1},
    "repeats": {"samples": 8},
    "prose": {"samples": 8, "width": 8, "stretch": None},
    ".txt": {"samples": 8, "width": 8, "stretch": None},
    ".jsonl": {},
}
DEFAULT_PAIRS = 64
STRETCH = 256  # tokens per prompt of text


@dataclass(frozen=True)
class PromptRequest:
    """A task and its options; None stands for the default.

    Options that the task does not have, and values that no model could take, are refused immediately.

    >>> PromptRequest("binding", pairs=16).settings()
    {'task': 'binding', 'kind': 'color', 'template': 'plain', 'pairs': 16, 'samples': 8, 'chat': False, 'group': 1}
    """

    name: str = "binding"
    kind: str | None = None
    template: str | None = None
    pairs: int | None = None
    samples: int | None = None
    chat: bool | None = None
    width: int | None = None
    group: int | None = None
    stretch: int | None = None

    def __post_init__(self) -> None:
        options = asdict(self)
        del options["name"]
        for option, value in options.items():
            if value is not None and option not in OPTIONS[self.form]:
                raise BadInput(f"--{option} does not apply to the task {self.name}")
        chosen = self.settings()
        if "samples" in chosen:
            check_count(chosen["samples"], "samples")
        if "width" in chosen and chosen["width"] < 1:
            raise BadInput(f"width must be at least 1 token per block, got {chosen['width']}")
        if self.stretch is not None and self.stretch < 3 * chosen["width"] + 2:
            raise BadInput(
                f"stretch must be at least {3 * chosen['width'] + 2} tokens for blocks of {chosen['width']}, "
                f"got {self.stretch}"
            )
        if self.form == "binding":
            pairs = DEFAULT_PAIRS if self.pairs is None else self.pairs
            check_binding(pairs, chosen["samples"], chosen["kind"], chosen["template"], chosen["group"])
        elif self.form.startswith("."):
            read_text(self.name)

    @property
    def form(self) -> str:
        """The key of the task in OPTIONS."""
        form = Path(self.name).suffix or self.name
        if form not in OPTIONS:
            raise BadInput(f"no task {self.name!r}: binding, repeats, prose, a .jsonl file or a .txt file")
        return form

    def settings(self) -> dict[str, Any]:
        """The task with all its options, as chosen or by default."""
        chosen = {name: getattr(self, name) for name in OPTIONS[self.form]}
        filled = {name: OPTIONS[self.form][name] if value is None else value for name, value in chosen.items()}
        return {"task": self.name, **filled}


def request_prompts(names: Sequence[str], options: Mapping[str, Any]) -> list[PromptRequest]:
    """One request per task; each takes the options that it has, and an option that none of them has is refused.

    >>> [request.settings()["samples"] for request in request_prompts(["binding", "prose"], {"samples": 4, "pairs": 8})]
    [4, 4]
    """
    if len(set(names)) < len(names):
        raise BadInput(f"each task is given once, got {', '.join(names)}")
    forms = [PromptRequest(name).form for name in names]
    for option, value in options.items():
        if value is not None and not any(option in OPTIONS[form] for form in forms):
            raise BadInput(f"--{option} does not apply to the task {' or '.join(names)}")
    return [
        PromptRequest(name, **{option: value for option, value in options.items() if option in OPTIONS[form]})
        for name, form in zip(names, forms, strict=True)
    ]


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
            pairs = pairs_that_fit(with_pairs, context, fewest=max(2, 2 * chosen["group"]))
        task, prompts = replace(task, pairs=pairs), with_pairs(pairs)
    elif task.form == "repeats":
        prompts = repeats(tokenizer, min(64, context // 2 - 2), **chosen, seed=seed)
    elif task.form in (".txt", "prose"):
        text = included_story() if task.form == "prose" else read_text(task.name)
        prompts = plain_text(tokenizer, text, tokens=chosen.pop("stretch") or min(STRETCH, context), **chosen)
    else:
        prompts = own_prompts(tokenizer, task.name)
    if longest(prompts) > context:
        fewer = "; use fewer pairs" if task.form == "binding" else ""
        raise BadInput(f"a prompt has {longest(prompts)} tokens, more than the {context} that the model takes{fewer}")
    return prompts, task


def pairs_that_fit(
    with_pairs: Callable[[int], Sequence[Prompt]], context: int, most: int = DEFAULT_PAIRS, fewest: int = 2
) -> int:
    """The largest number of pairs, at least `fewest`, whose prompts have at most `context` tokens: lengths grow with
    pairs."""
    sizes = range(fewest, most + 1)
    return max(fewest, fewest - 1 + bisect(sizes, context, key=lambda size: longest(with_pairs(size))))


def longest(prompts: Sequence[Prompt]) -> int:
    """The number of tokens of the longest prompt."""
    return max(len(prompt.ids) for prompt in prompts)
