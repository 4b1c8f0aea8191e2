"""What a model can do, in numbers that can be compared before and after an ablation: one value per prompt, sequence or
stretch of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from ...errors import BadInput
from ...lab import Transformer
from ...prompts import Prompt, binding, plain_text, repeats
from ...prompts.binding import check_binding
from ...prompts.multihop import prompts_of
from ...prompts.text import included_story
from ...results import check_seed
from ...tasks import TASKS
from ...tracing.hook import last_logits_only, quiet_evaluation
from ...tracing.load import OpenedModel
from ...tracing.offload import entry_device
from ...tracing.self_check import stated_context

# The name of each measure in words, and whether higher is better.
MEASURES = {
    "binding_accuracy": ("right answers", True),
    "binding_probability": ("probability of the right answer", True),
    "induction": ("gain from first to second copy", True),
    "repeat_loss": ("loss on the second copy", False),
    "copy_loss": ("loss on a repeated token", False),
    "text_loss": ("loss on text", False),
    "accuracy": ("right answers", True),
    "probability": ("probability of the right answer", True),
}
BATCH = 2048  # tokens per forward pass
AVERAGED = 3  # stretches of text that mean ablation averages over
STRETCH = 128  # tokens of a stretch
PERIOD = 32  # tokens after which random tokens repeat
QUESTIONS, ANSWER = 3, 4  # prompts whose answers are shown, and the tokens of an answer


@dataclass(frozen=True)
class Behaviour:
    """What is measured, named by a hash of everything it depends on; mean ablation averages over `reference`."""

    name: str
    measure: Callable[[Any], dict[str, Float[Tensor, " units"]]]
    reference: Int[Tensor, "B T"]
    questions: Questions | None = None
    longest: int = 0  # tokens of the longest binding prompt


@dataclass(frozen=True)
class Questions:
    """Prompts whose answers are shown: `ask` returns the tokens that a model answers, `decode` their text."""

    prompts: tuple[Prompt, ...]
    ask: Callable[[Any], Int[Tensor, "P answer"]]
    decode: Callable[[list[int]], str]


def behaviour_of(
    opened: OpenedModel,
    pairs: int,
    samples: int,
    text: str | None,
    seed: int,
    stretch: int | None = None,
    period: int = PERIOD,
) -> Behaviour:
    """What a model is measured on: its own task for a model of the lab, else that of `of_language_model`."""
    if not isinstance(opened.model, Transformer):
        tokenizer, sizes = opened.tokenizer, {"pairs": pairs, "samples": samples}
        return of_language_model(opened.model, tokenizer, **sizes, text=text, stretch=stretch, period=period, seed=seed)
    if opened.task not in TASKS:
        raise BadInput(f"no task {opened.task!r} to measure the model on: {', '.join(TASKS)}")
    return of_task(opened.task, samples, seed)


def check_sizes(pairs: int, samples: int | None, seed: int) -> None:
    """Refuse, before a model is loaded, what no model can be measured on."""
    if samples is not None and samples < 2:
        raise BadInput(f"samples must be at least 2, got {samples}")
    check_seed(seed)
    check_binding(pairs, samples or 2, "color", "plain")


def of_language_model(
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    pairs: int = 8,
    samples: int = 32,
    text: str | None = None,
    stretch: int | None = None,
    period: int = PERIOD,
    seed: int = 0,
) -> Behaviour:
    """Binding, induction and copying on random tokens, and next-token loss on a text (by default an included story).

    Random tokens repeat after `period` tokens. Mean ablation averages over the first stretches of the text, of
    `stretch` tokens (128); loss is measured on the following ones.
    """
    text = text or included_story()
    context = stated_context(model) or 2048
    stretch = stretch or min(STRETCH, context)
    asked = binding(tokenizer, pairs, samples, seed)
    repeated = repeats(tokenizer, min(period, context // 2 - 2), samples, seed)
    stretches = plain_text(tokenizer, text, tokens=stretch, samples=AVERAGED + samples)
    if len(stretches) < 2:
        raise BadInput(
            f"the text needs at least two stretches of {stretch} tokens, one to average over; "
            "for a short text, give a smaller --stretch"
        )
    content = json.dumps([asdict(prompt) for prompt in (*asked, *repeated, *stretches)])
    device = entry_device(model)
    twice = torch.tensor([[*prompt.ids, prompt.answer] for prompt in repeated], device=device)
    written = torch.tensor([[*prompt.ids, prompt.answer] for prompt in stretches], device=device)
    average, written = written.tensor_split([min(AVERAGED, len(written) - 1)])
    period = len(repeated[0].blocks)
    start = repeated[0].blocks[0][0]
    doubled = torch.cat(
        [twice[:, :start], twice[:, start : start + period].repeat_interleave(2, 1)], 1
    )  # each token twice in a row

    def measure(model: PreTrainedModel) -> dict[str, Tensor]:
        right, probability = answers(model, asked)
        copies = losses(model, twice)[:, start:]  # starting with the prediction of the second token
        first, second = copies[:, : period - 1].mean(1), copies[:, period:].mean(1)
        again = losses(model, doubled)[:, start:][:, period + period % 2 :: 2].mean(1)
        return {
            "binding_accuracy": right,
            "binding_probability": probability,
            "induction": first - second,
            "repeat_loss": second,
            "copy_loss": again,
            "text_loss": losses(model, written).mean(1),
        }

    shown = tuple(asked[:QUESTIONS])
    questions = Questions(shown, lambda model: continuations(model, shown), tokenizer.decode)
    longest = max(len(prompt.ids) for prompt in asked)
    return Behaviour(hashlib.sha256(content.encode()).hexdigest(), measure, average, questions, longest)


def of_task(name: str, samples: int = 400, seed: int = 0) -> Behaviour:
    """Answers of a model of the lab to sequences of its task, with all numbers of hops equally often."""
    task = TASKS[name]()
    sequences = task.sample(samples, seed + 1)

    def measure(model: Transformer) -> dict[str, Tensor]:
        with torch.no_grad():
            probabilities = model(sequences.tokens, last=True)[:, 0].softmax(-1)
        right = (probabilities.argmax(-1) == sequences.answers).float()
        return {"accuracy": right, "probability": probabilities.gather(1, sequences.answers[:, None])[:, 0]}

    def ask(model: Transformer) -> Tensor:
        with torch.no_grad():
            return model(sequences.tokens[:QUESTIONS], last=True).argmax(-1)

    shown = tuple(prompts_of(task, sequences)[:QUESTIONS])
    questions = Questions(shown, ask, lambda ids: " ".join(task.symbols[one] for one in ids))
    return Behaviour(f"{name} {samples} {seed}", measure, sequences.tokens, questions)


def continuations(model: PreTrainedModel, prompts: Sequence[Prompt], tokens: int = ANSWER) -> Int[Tensor, "P answer"]:
    """The most likely next tokens after each prompt, one at a time."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt.ids], device=entry_device(model))
        for _ in range(tokens):
            with quiet_evaluation(model):
                logits = model(input_ids=ids, use_cache=False, **last_logits_only(model)).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        answers.append(ids[0, len(prompt.ids) :].cpu())
    return torch.stack(answers)


def answers(model: PreTrainedModel, prompts: list[Prompt]) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Whether the answer to each prompt is right, and the probability of the right answer."""
    found: dict[int, tuple[float, float]] = {}
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at].ids))
    for tokens, group in groupby(order, key=lambda at: len(prompts[at].ids)):
        for some in torch.tensor(list(group)).split(max(1, BATCH // tokens)):
            ids = torch.tensor([prompts[at].ids for at in some], device=entry_device(model))
            with quiet_evaluation(model):
                logits = model(input_ids=ids, use_cache=False, **last_logits_only(model)).logits[:, -1].float()
            for at, row in zip(some.tolist(), logits.softmax(-1).cpu(), strict=True):
                answer = prompts[at].answer
                assert answer is not None
                found[at] = (float(row.argmax() == answer), float(row[answer]))
    right, probability = torch.tensor([found[at] for at in range(len(prompts))]).unbind(1)
    return right, probability


def losses(model: PreTrainedModel, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B S"]:
    """The loss on every token but the first, in nats."""
    rows = []
    for some in ids.split(max(1, BATCH // ids.shape[1])):
        with quiet_evaluation(model):
            logits = model(input_ids=some[:, :-1], use_cache=False).logits.float()
        loss = cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="none")
        rows.append(loss.view(len(some), -1).cpu())
    return torch.cat(rows)
