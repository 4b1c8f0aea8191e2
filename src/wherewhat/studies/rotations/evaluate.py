"""What a model loses under a plan: divergence from the unmodified model, loss on text, copying, binding."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...prompts import Prompt, binding, repeats
from ...prompts.binding import MOST_PAIRS
from ...prompts.request import longest, pairs_that_fit
from ...tracing.gate import gate
from ...tracing.hook import last_logits_only, quiet_evaluation
from ...tracing.offload import entry_device
from ..ablation.measures import answers
from .calibrate import Calibration
from .plan import Kept, frozen

MEASURES = {  # by column of the tables: in words
    "kl": "KL",
    "loss": "loss",
    "copy_loss": "copy loss",
    "binding_loss": "binding loss",
    "binding": "binding",
}
POSITIONS = 512  # at which next-token distributions are compared in one pass, evenly spaced


@dataclass(frozen=True)
class Material:
    """What a model is tested on at one length: documents, random tokens repeated once, lists with a question. Every
    `questions` neighbouring ones of `asked` have the same list."""

    documents: Int[Tensor, "B T"] | None = None
    copies: Int[Tensor, "B T"] | None = None
    asked: tuple[Prompt, ...] = ()
    questions: int = 1

    @property
    def digest(self) -> str:
        parts = [None if one is None else one.tolist() for one in (self.documents, self.copies)]
        return hashlib.sha256(repr((parts, [(one.ids, one.answer) for one in self.asked])).encode()).hexdigest()


@dataclass(frozen=True)
class TrialCell:
    """Some plans on one material; both are named by their digests."""

    weights: str
    dtype: str
    material: str
    plans: str
    version: int = 1


def copies(tokenizer: Any, length: int, samples: int, seed: int) -> Int[Tensor, "B T"]:
    """Random tokens and their copy, together `length` tokens."""
    repeated = repeats(tokenizer, (length - 2) // 2, samples, seed)
    return torch.tensor([[*prompt.ids, prompt.answer] for prompt in repeated])


def lists_that_fit(tokenizer: Any, length: int, samples: int, seed: int, questions: int = 1) -> tuple[Prompt, ...]:
    """Lists of as many pairs as fit into `length` tokens, each with some questions; empty if
    even two pairs are too long."""

    def lists(pairs: int) -> list[Prompt]:
        return binding(tokenizer, pairs, samples, seed, questions=questions)

    asked = lists(pairs_that_fit(lists, length, min(MOST_PAIRS, max(2, length // 3))))  # 3 tokens per pair or more
    return tuple(asked) if longest(asked) <= length else ()


def digest_of_plans(plans: Sequence[Kept]) -> str:
    return hashlib.sha256(b"".join(plan.numpy().tobytes() for plan in plans)).hexdigest()


def measure_plans(
    model: Any, material: Material, plans: Sequence[Kept], found: Calibration
) -> dict[str, Float[Tensor, "P units"]]:
    """Every measure of the unmodified model, first, and under every plan, for each document, sequence or prompt.

    KL is that of the unmodified model's next-token distribution to the modified one's, in nats per token.
    """
    plain, own = _measure(model, material)
    measured = [plain]
    for kept in plans:
        with gate(model, freeze=frozen(kept, found.present, found.layers, found.groups)):
            measured.append(_measure(model, material, own)[0])
    return {name: torch.stack([one[name] for one in measured]).cpu().double() for name in plain}


def _measure(
    model: Any, material: Material, own: Float[Tensor, "B P V"] | None = None
) -> tuple[dict[str, Tensor], Float[Tensor, "B P V"] | None]:
    """Every measure, and the predictions on text; `own` are those of the unmodified model, unless it is this one."""
    values: dict[str, Tensor] = {}
    predicted = None
    if material.documents is not None:
        ids, positions = _spaced(material.documents)
        predicted = log_probabilities(model, ids, positions)
        own = predicted if own is None else own
        pairs = zip(own.unbind(1), predicted.unbind(1), strict=True)  # position by position, to save memory
        values["kl"] = torch.stack([(one.exp() * (one - two)).sum(-1) for one, two in pairs]).mean(0)
        values["loss"] = next_token_loss(predicted, ids, positions)
    if material.copies is not None:
        ids, positions = _spaced(material.copies, material.copies.shape[1] // 2 + 1)
        values["copy_loss"] = next_token_loss(log_probabilities(model, ids, positions), ids, positions)
    if material.asked:
        probability = probabilities(model, material.asked, material.questions)
        values |= {"binding": probability, "binding_loss": -probability.clamp(min=1e-30).log()}
    return values, predicted


def probabilities(model: Any, prompts: Sequence[Prompt], questions: int) -> Float[Tensor, " P"]:
    """The probability of the right answer to each prompt. Every `questions` neighbouring prompts have the same list,
    which is read once, up to where they differ."""
    if questions == 1:
        return answers(model, list(prompts))[1]
    device, found = entry_device(model), [0.0] * len(prompts)
    for start in range(0, len(prompts), questions):
        ids = [prompt.ids for prompt in prompts[start : start + questions]]
        columns = enumerate(zip(*ids, strict=False))
        shared = next((at for at, column in columns if len(set(column)) > 1), min(map(len, ids)) - 1)
        with quiet_evaluation(model):
            first = torch.tensor([ids[0][:shared]], device=device)
            read = model(input_ids=first, use_cache=True, **last_logits_only(model)).past_key_values
        for length in {len(one) for one in ids}:
            at = [start + number for number, one in enumerate(ids) if len(one) == length]
            cache = deepcopy(read)
            cache.batch_repeat_interleave(len(at))
            rest = torch.tensor([prompts[one].ids[shared:] for one in at], device=device)
            places = torch.arange(shared, length, device=device).expand(len(at), -1)
            with quiet_evaluation(model):
                logits = model(
                    input_ids=rest, past_key_values=cache, position_ids=places, **last_logits_only(model)
                ).logits[:, -1]
            for one, row in zip(at, logits.float().softmax(-1).cpu(), strict=True):
                answer = prompts[one].answer
                assert answer is not None
                found[one] = float(row[answer])
    return torch.tensor(found)


def _spaced(ids: Int[Tensor, "B T"], start: int = 0) -> tuple[Int[Tensor, "B T"], Int[Tensor, " P"]]:
    """The ids, and the evenly spaced positions from `start` on at which their predictions are compared."""
    last = ids.shape[1] - 2
    number = min(last - start + 1, max(1, POSITIONS // len(ids)))
    return ids, torch.linspace(start, last, number).round().long()


def log_probabilities(model: Any, ids: Int[Tensor, "B T"], positions: Int[Tensor, " P"]) -> Float[Tensor, "B P V"]:
    """Of the token after each of these positions."""
    device = entry_device(model)
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    with quiet_evaluation(model):
        kept: dict[str, Any] = {"logits_to_keep": positions.to(device)} if takes else {}
        logits = model(input_ids=ids.to(device), use_cache=False, **kept).logits
    return (logits if takes else logits[:, positions]).float().log_softmax(-1)


def next_token_loss(
    predicted: Float[Tensor, "B P V"], ids: Int[Tensor, "B T"], positions: Int[Tensor, " P"]
) -> Float[Tensor, " B"]:
    """The mean loss on the tokens after these positions, in nats."""
    wanted = ids[:, positions + 1].to(predicted.device)
    return -predicted.gather(-1, wanted[..., None])[..., 0].mean(1)
