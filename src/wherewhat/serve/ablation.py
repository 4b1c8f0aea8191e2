"""Ablations on the live page: next tokens before and after, beside random heads or frequencies of the same number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ..core.trace import Trace
from ..errors import BadInput
from ..studies.ablation.selections import HeadSpec, named, select
from ..studies.ablation.trials import Trial, Trials
from ..tracing.gate import gate
from ..tracing.hook import last_logits_only
from .live import Asked, LiveModel

# What the page calls each way to ablate, and the parameter of `ww.gate`.
WAYS = {"zero": "ablate", "mean": "ablate", "drop": "drop", "freeze": "freeze", "keep": "keep"}
LONGEST_WORDS = 20_000


def ablate(live: LiveModel, given: dict[str, Any]) -> dict[str, Any]:
    """The next tokens as they are, after the ablation, and after an equal ablation chosen at random."""
    asked = live.read(given)
    trace = live.trace(asked)
    trial, control, how = chosen(live, asked, trace, given)
    assert trace.output is not None
    answer = asked.answer
    after, random = (_logits(live, asked, one.choices, how) for one in (trial, control))
    return {
        "how": how,
        "chosen": named(trial.choices),
        "number": trial.number,
        "drawn": named(control.choices),
        "before": live.next_tokens(trace.output[0], answer),
        "after": live.next_tokens(after, answer),
        "random": live.next_tokens(random, answer),
        "followed": _followed(live, trace.output[0], after, random, answer),
        "python": live.python(asked, _as_python(trial.choices, how)),
    }


@contextmanager
def with_ablation(live: LiveModel, asked: Asked, given: dict[str, Any]) -> Iterator[None]:
    """The ablation of a request, if it has one; with `control`, the one chosen at random."""
    if not given.get("choose"):
        yield
        return
    trial, control, how = chosen(live, asked, live.trace(asked), given)
    with _gated(live, asked, (control if given.get("control") else trial).choices, how):
        yield


def chosen(live: LiveModel, asked: Asked, trace: Trace, given: dict[str, Any]) -> tuple[Trial, Trial, str]:
    """What is ablated, a random control that matches it, and how: from words such as "3.1, 4.2" or "slowest half"."""
    words, how, draw = given.get("choose"), given.get("how", "zero"), given.get("draw", 0)
    if not isinstance(words, str) or not words.strip() or len(words) > LONGEST_WORDS:
        raise BadInput("choose heads, such as 3.1, or a band of frequencies, such as slowest quarter")
    if "@" in words:
        raise BadInput("heads are listed here, not read from a file")
    if how not in WAYS:
        raise BadInput(f"an ablation is {', '.join(WAYS)}, got {how!r:.40}")
    if type(draw) is not int or not 0 <= draw < 2**31:
        raise BadInput(f"draw is a whole number from 0, got {draw!r:.40}")
    needs_scores = any(word in words for word in ("heads", "score"))
    if "retrieving" in words and live.target(asked, trace) is None:
        raise BadInput(
            "no single block contains the answer, so that no head retrieves it: choose heads by another word"
        )
    choices = select(words, live.profile(asked) if needs_scores else None)
    heads = [(layer.index, head) for layer in trace.attention for head in range(layer.queries.shape[1])]
    trials = Trials(pd.DataFrame(heads, columns=["layer", "head"]), trace.planes)
    if WAYS[how] == "ablate":
        if any(len(one) > 2 and one[2] is not None for one in choices):
            raise BadInput(f"{words!r:.60} chooses frequencies: drop, freeze or keep them, or choose heads")
        trial = trials.head_set("chosen", choices)
    else:
        trial = trials.trial("chosen", WAYS[how], _with_frequencies(choices))
    return trial, trials.controls([trial], draws=1, seed=draw)[0], how


def _with_frequencies(choices: list[HeadSpec]) -> list[HeadSpec]:
    return [(*one, *(None,) * (3 - len(one))) for one in choices]


def _gated(live: LiveModel, asked: Asked, choices: Any, how: str) -> Any:
    """The gate; the mean output of a head is its mean over the tokens of this prompt."""
    mean: dict[str, Any] = {"mean_of": torch.tensor([asked.ids], device=live.device)} if how == "mean" else {}
    return gate(live.model, **{WAYS[how]: choices}, **mean) if choices else nullcontext()


def _logits(live: LiveModel, asked: Asked, choices: Any, how: str) -> Tensor:
    ids = torch.tensor([asked.ids], device=live.device)
    with _gated(live, asked, choices, how), torch.no_grad():
        return live.model(input_ids=ids, use_cache=False, **last_logits_only(live.model)).logits[0, -1]


def _followed(live: LiveModel, before: Tensor, after: Tensor, random: Tensor, answer: int | None) -> dict[str, Any]:
    """The probability of one token in all three cases: of the right answer, or else of the model's own."""
    token = int(before.argmax()) if answer is None else answer
    chances = {name: float(logits.float().softmax(-1)[token]) for name, logits in
               (("before", before), ("after", after), ("random", random))}  # fmt: skip
    return {"id": token, "text": live.reader.decode([token]), "right": answer is not None} | chances


def _as_python(choices: Any, how: str) -> str:
    mean = ", mean_of=ids" if how == "mean" else ""
    return f"{WAYS[how]}={[tuple(one) for one in choices]}{mean}"
