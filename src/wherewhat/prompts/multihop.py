"""Prompts of the multi-hop tasks, and the small models trained on them."""

from __future__ import annotations

from ..errors import BadInput
from ..tasks import TASKS
from ..tasks.hops import HopTask, Sequences
from . import Prompt


def multihop(name: str, samples: int = 16, seed: int = 0) -> list[Prompt]:
    """Fresh sequences of a multi-hop task, "number" or "letter", as prompts for a model trained on it.

    >>> prompt = multihop("number", samples=1)[0]
    >>> prompt.text, prompt.says
    ('as u m bf bv m dn m 5 7 10 1 10 5 1 10 16', 'as')
    """
    if name not in TASKS:
        raise BadInput(f"no task {name!r}: {', '.join(TASKS)}")
    task = TASKS[name]()
    return prompts_of(task, task.sample(samples, seed))


def prompts_of(task: HopTask, sequences: Sequences) -> list[Prompt]:
    """Sequences of a task as prompts: one token per block, the query last."""
    blocks = tuple((at, at + 1) for at in range(task.tokens - 1))
    parts = zip(*(getattr(sequences, part).tolist() for part in ("tokens", "answers", "hops", "path")), strict=True)
    prompts = []
    for ids, answer, hops, path in parts:
        symbols = [task.symbols[number] for number in ids]
        prompts.append(
            Prompt(
                ids=tuple(ids),
                blocks=blocks,
                text=" ".join(symbols),
                answer=answer,
                target=path[hops],
                choices=task.targets,
                labels=tuple(symbols[:-1]),
                tokens=tuple(f"{symbol} " for symbol in symbols),
                says=task.symbols[answer],
            )
        )
    return prompts
