"""`ww.capture`: one forward pass, of which the queries asked for and all keys are kept."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from ..core.trace import Trace
from ..errors import BadInput, NotMeasurable
from .check import certify
from .hook import Recorder, last_logits_only, recording
from .offload import entry_device

# A capture changes the model while it runs, and torch's own attention function for Falcon: never two at once.
_one_at_a_time = RLock()


@runtime_checkable
class Traceable(Protocol):
    """A model that shows its queries and keys itself, as those of the lab do."""

    def trace(self, input_ids: Int[Tensor, "B T"], positions: Sequence[int]) -> Trace: ...

    def get_input_embeddings(self) -> nn.Embedding: ...


def capture(
    model: PreTrainedModel | Traceable,
    input_ids: Int[Tensor, "B T"],
    queries: Sequence[int] = (-1,),
    *,
    level: str = "keys",
    check: bool = False,
    past: Cache | None = None,
) -> Trace:
    """Run the model once over prompts of equal length and keep what its attention layers were given.

    `queries` are the token positions to look from, the last token unless asked otherwise; `trace.at(position)`
    chooses among several. The model is checked once (`check=True`: again) and refused with a reason if it cannot be
    measured right; level "prompt" also takes models whose positions live in the residual stream. `past` holds the
    keys and values of the first tokens of these prompts, which are then not run again; the others join it.

    >>> trace = ww.capture(model, tokenizer(text, return_tensors="pt").input_ids)      # doctest: +SKIP
    >>> ww.score(trace).symbolic[0, 12, 3]                                             # doctest: +SKIP
    """
    if level not in ("keys", "prompt"):
        raise BadInput(f'level is "keys" or "prompt", got {level!r}')
    check_input(model, input_ids)
    tokens = input_ids.shape[1]
    try:
        positions = [range(tokens)[position] for position in queries]
    except (TypeError, IndexError) as error:
        raise BadInput(f"queries must be positions 1 to {tokens - 1} of the prompt, got {queries}") from error
    if not positions or 0 in positions:
        raise BadInput(f"queries must be positions 1 to {tokens - 1} of the prompt, got {list(queries)}")
    if isinstance(model, Traceable):
        trace = model.trace(input_ids, positions)
        if trace.absolute and level == "keys":
            raise NotMeasurable('positions are added to its embeddings: it can be measured at level "prompt" only')
        return trace
    known = 0 if past is None else past.get_seq_length()
    if min(positions) < known:
        raise BadInput(f"query {min(positions)} is among the {known} tokens of the past, which are not run again")
    with _one_at_a_time:
        try:
            return _capture(model, input_ids, positions, level, check, past)
        except (IndexError, RuntimeError) as error:
            context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
            if isinstance(error, NotMeasurable) or context is None or tokens <= context:
                raise
            raise BadInput(f"the prompt has {tokens} tokens, the model takes {context}") from error


def _capture(
    model: PreTrainedModel, input_ids: Tensor, positions: list[int], level: str, check: bool, past: Cache | None
) -> Trace:
    certificate = certify(model, input_ids.shape[1], again=check)
    if certificate.absolute and level == "keys":
        raise NotMeasurable(
            f"{model.config.model_type} adds positions to its embeddings: they travel with the contents, "
            'so it can be measured at level "prompt" only'
        )
    known, caching = (0, {}) if past is None else (past.get_seq_length(), {"past_key_values": past})
    recorder = Recorder(positions, known)
    with recording(model, recorder):
        output = model(input_ids=input_ids[:, known:], use_cache=past is not None, **caching, **last_logits_only(model))
    if len(recorder.records) != len(certificate.positions):
        raise NotMeasurable(
            f"{len(recorder.records)} attention calls captured, {len(certificate.positions)} in the self-check"
        )
    layers = []
    for number, (record, where) in enumerate(zip(recorder.records, certificate.positions, strict=True)):
        # One read: a sum is finite only if every term is.
        if not (record.queries.sum(dtype=torch.float32) + record.keys.sum(dtype=torch.float32)).isfinite():
            raise NotMeasurable(f"attention layer {number} gives NaN or infinite queries or keys on this prompt")
        layers.append(where.layer(record, number))
    return Trace(
        attention=tuple(layers),
        positions=tuple(positions),
        query=positions[-1],
        output=output.logits[:, -1].float(),
        check=certificate.deviation,
        absolute=certificate.absolute,
    )


def check_input(model: PreTrainedModel | Traceable, input_ids: Tensor) -> None:
    """One clear sentence for each way in which a prompt can be wrong."""
    if not isinstance(model, (PreTrainedModel, Traceable)):
        raise BadInput(f"expected a Hugging Face causal language model, got {type(model).__name__}")
    if not isinstance(input_ids, Tensor) or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise BadInput(f"input_ids must be a tensor of whole numbers (batch, tokens), got {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise BadInput(f"input_ids must have the shape (batch, tokens), got {tuple(input_ids.shape)}")
    if input_ids.shape[0] == 0 or input_ids.shape[1] == 0:
        raise BadInput("the prompt is empty")
    if input_ids.shape[1] == 1:
        raise BadInput("the prompt has one token: a query needs keys before it")
    device = entry_device(model)
    if input_ids.device != device:
        raise BadInput(f"the prompt is on {input_ids.device}, the model on {device}: move one to the other")
    embeddings = model.get_input_embeddings().weight
    assert isinstance(embeddings, Tensor)
    vocabulary = embeddings.shape[0]
    if not 0 <= int(input_ids.min()) <= int(input_ids.max()) < vocabulary:
        raise BadInput(f"token ids must lie in 0 to {vocabulary - 1}")
