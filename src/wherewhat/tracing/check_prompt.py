"""The prompt of the self-check, and what a model's configuration states about lengths and angles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import NotMeasurable
from .hook import last_logits_only, quiet_evaluation
from .modules import modules_of
from .offload import entry_device
from .rotation_probe import stated_angles

# A prime number, so that no head dimension is mistaken for the length of the prompt.
TOKENS = 23


@dataclass(frozen=True)
class CheckPrompt:
    """The self-check's own prompt.

    Where angles depend on the prompt length, one more token is placed at the last position of the user's prompt. It
    brings the angles of that length into force; no other token attends to it.
    """

    ids: Tensor  # 1 T, or 1 T+1 with the extra token
    positions: Tensor | None
    tokens: int

    def run(self, model: PreTrainedModel, copies: int = 1, shifts: Tensor | None = None) -> Tensor:
        """Logits (1, T, V) after every token of a single copy; copy c starts `shifts[c]` positions later.

        After every token, because the last one attends to all others: its logits alone would not reveal lost causality.
        """
        positions = self.positions
        if shifts is not None:
            start = torch.arange(self.tokens, device=self.ids.device) if positions is None else positions[0]
            positions = start + shifts[:, None]
            positions[:, self.tokens :] = start[self.tokens :]
        inputs: dict[str, Any] = {} if positions is None else {"position_ids": positions.expand(copies, -1)}
        if copies > 1:  # several copies are run for their keys, not for their logits
            inputs |= last_logits_only(model)
        return forward(model, self.ids.expand(copies, -1), **inputs)[:, : self.tokens]


def make_prompt(model: PreTrainedModel, length: int) -> CheckPrompt:
    """A fixed sequence of random tokens; the lowest ids are avoided, since they are often padding and the like."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens = min(TOKENS, (stated_context(model) or TOKENS + 1) - 1)  # one position is left for a shift
    scaled = angles_depend_on_length(model)
    if scaled:  # not longer than the user's prompt: models with dynamic scaling return to their first angles for that
        tokens = min(tokens, max(length - 1, 3))
    generator = torch.Generator("cpu").manual_seed(0)
    ids = torch.randint(min(10, vocabulary // 2), vocabulary, (1, tokens + 1), generator=generator, device="cpu")
    ids = ids.to(entry_device(model))
    if not scaled:
        return CheckPrompt(ids[:, :tokens], None, tokens)
    places = torch.arange(tokens + 1, device=ids.device)
    places[-1] = max(length - 1, tokens)
    return CheckPrompt(ids, places[None], tokens)


def forward(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    """Logits (B, T, V); any error of the model's own code on a plain prompt becomes NotMeasurable."""
    try:
        return model(input_ids=ids, use_cache=False, **inputs).logits.float()
    except (NotMeasurable, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise NotMeasurable(
            f"{model.config.model_type}: the model does not run on a plain prompt ({reason})"
        ) from error


def stated_context(model: PreTrainedModel) -> int | None:
    """The number of positions that the configuration states; None if it states none (or -1, for any number)."""
    stated = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return stated if isinstance(stated, int) and stated > 0 else None


def angles_in_force(model: PreTrainedModel, length: int) -> tuple[float, ...]:
    """The angles with which the model would run a prompt of this length, as its buffers state them.

    The length alone does not determine them: models with dynamic scaling keep the angles of the longest prompt so far.
    """
    if angles_depend_on_length(model):
        with quiet_evaluation(model):
            make_prompt(model, length).run(model)
    return tuple(angle for stated in stated_angles(model) for angle in stated.flatten().tolist())


def angles_depend_on_length(model: nn.Module) -> bool:
    """Whether the model's RoPE type scales its angles with the length of the prompt."""
    kinds = (vars(module).get("rope_type") for module in modules_of(model))
    return any(re.search("dynamic|longrope", str(kind)) for kind in kinds if kind is not None)
