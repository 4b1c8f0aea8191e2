"""`ww.capture`: one forward pass, of which the requested queries and all keys are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock, get_ident
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from ..core.memory import keep_freed_memory
from ..core.trace import Trace
from ..errors import BadInput, NotMeasurable
from .check_prompt import angles_depend_on_length
from .confirm import probing
from .hook import Recorder, last_logits_only, layer_lists, recording
from .offload import entry_device
from .self_check import certify
from .unwrap import as_written, describe, unwrap

Inputs = Int[Tensor, "B T"] | str | Sequence[str] | Mapping[str, Any]
# A capture changes the model while it runs (for Falcon, even torch's attention function): never two at once.
_one_at_a_time = RLock()


@runtime_checkable
class Traceable(Protocol):
    """A model that returns its own trace, as the models of the lab do."""

    def trace(self, input_ids: Int[Tensor, "B T"], positions: Sequence[int]) -> Trace: ...

    def get_input_embeddings(self) -> nn.Embedding: ...


def capture(
    model: PreTrainedModel | Traceable | Any,
    input_ids: Inputs,
    queries: Sequence[int] = (-1,),
    *,
    tokenizer: Any = None,
    level: str = "keys",
    check: bool = False,
    past: Cache | None = None,
) -> Trace:
    """Run the model once and keep the queries, keys and angles of every attention layer.

    `input_ids` are token ids (batch, tokens), the output of a tokenizer, or, with `tokenizer`, a text or a list of
    texts, tokenized as `tokenizer(text)` does. All prompts of a batch must have the same number of tokens, without
    padding.

    `queries` are the token positions to look from, by default the last; `trace.at(position)` chooses among several.
    The model is checked once (`check=True`: again) and refused with a reason if it cannot be measured correctly.
    Level "prompt" also takes models that add positions to their embeddings. `past` holds the keys and values of the
    first tokens of the prompts; these tokens are not run again, and the others are added to it. While a model is being
    captured, other threads cannot run it.

    Wrappers are opened: PEFT with its adapters in force, nnsight, torch.compile, DataParallel.

    >>> trace = ww.capture(model, tokenizer(text, return_tensors="pt"))                # doctest: +SKIP
    >>> trace = ww.capture(model, "Alice likes", tokenizer=tokenizer)                  # doctest: +SKIP
    >>> ww.score(trace).symbolic[0, 12, 3]                                             # doctest: +SKIP
    """
    if level not in ("keys", "prompt"):
        raise BadInput(f'level is "keys" or "prompt", got {level!r}')
    model = unwrap(model)
    check_model(model)
    ids = token_ids(input_ids, tokenizer, entry_device(model))
    check_input(model, ids)
    tokens = ids.shape[1]
    try:
        positions = [range(tokens)[position] for position in queries]
    except (TypeError, IndexError) as error:
        raise BadInput(f"queries must be positions 1 to {tokens - 1} of the prompt, got {queries}") from error
    if not positions or 0 in positions:
        raise BadInput(f"queries must be positions 1 to {tokens - 1} of the prompt, got {list(queries)}")
    if isinstance(model, Traceable):
        trace = model.trace(ids, positions)
        if trace.absolute and level == "keys":
            raise NotMeasurable('positions are added to its embeddings: it can be measured at level "prompt" only')
        return trace
    known = 0 if past is None else past.get_seq_length()
    if min(positions) < known:
        raise BadInput(f"query {min(positions)} is among the {known} tokens of the past, which are not run again")
    if past is not None:
        check_past(model, past, level)
    with _one_at_a_time, alone(model), as_written(model):
        try:
            return _capture(model, ids, positions, level, check, past)
        except (IndexError, RuntimeError) as error:
            if known and not isinstance(error, NotMeasurable):
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BadInput(f"the model cannot continue from this cache of {known} tokens ({reason})") from error
            context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
            if isinstance(error, NotMeasurable) or context is None or tokens <= context:
                raise
            raise BadInput(f"the prompt has {tokens} tokens, the model takes {context}") from error


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """Refuse calls of the model, or of its layers, by other threads: they would run into the hooks of a capture."""
    owner = get_ident()

    def enter(*_: object) -> None:
        if get_ident() != owner:
            raise BadInput("another thread is capturing this model: wait until it is done, or give each thread a copy")

    with ExitStack() as stack:
        for module in (model, *(layer for layers in layer_lists(model) for layer in layers)):
            stack.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
        yield


def token_ids(inputs: Inputs, tokenizer: Any, device: torch.device) -> Tensor:
    """The token ids (B, T) of texts or of a tokenizer's output; a tensor is returned as it is."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    if isinstance(texts, (list, tuple)) and texts and all(isinstance(text, str) for text in texts):
        if tokenizer is None:
            raise BadInput("to capture a text, pass its tokenizer as tokenizer=; without one, give input_ids")
        inputs = {"input_ids": [tokenizer(text)["input_ids"] for text in texts]}
    if not isinstance(inputs, Mapping):
        return cast(Tensor, inputs)  # whatever else it is, check_input refuses it
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None:
        raise BadInput(f"the output of a tokenizer holds input_ids, got {', '.join(map(str, inputs)) or 'nothing'}")
    if mask is not None and not all(torch.as_tensor(row, device="cpu").all() for row in mask):
        raise BadInput("the prompts are padded (attention_mask has zeros): give prompts of equal length in tokens")
    if isinstance(ids, Tensor):
        return ids
    rows = [list(row) if hasattr(row, "__len__") else row for row in ids]
    rows = rows if rows and isinstance(rows[0], list) else [rows]  # a single prompt comes without a batch axis
    if len(lengths := sorted({len(row) for row in rows})) > 1:
        raise BadInput(f"prompts of one capture must have equal length, got {', '.join(map(str, lengths))} tokens")
    return torch.tensor(rows, dtype=torch.long, device=device)


def _capture(
    model: PreTrainedModel, input_ids: Tensor, positions: list[int], level: str, check: bool, past: Cache | None
) -> Trace:
    keep_freed_memory()
    certificate = certify(model, input_ids.shape[1], again=check)
    if certificate.absolute and level == "keys":
        raise NotMeasurable(
            f"{model.config.model_type} adds positions to its embeddings: they move with the contents, "
            'so it can be measured at level "prompt" only'
        )
    known, caching = (0, {}) if past is None else (past.get_seq_length(), {"past_key_values": past})
    recorder = Recorder(positions, known)
    modules, new = [module for module, _, _ in certificate.calls], input_ids.shape[1] - known
    with recording(model, recorder), probing(model, modules, recorder, new) as probe:
        output = model(input_ids=input_ids[:, known:], use_cache=past is not None, **caching, **last_logits_only(model))
    if len(recorder.records) != len(certificate.positions):
        raise NotMeasurable(
            f"{len(recorder.records)} attention calls captured, {len(certificate.positions)} in the self-check"
        )
    for number, record in enumerate(recorder.records):
        # One read: a sum is finite only if every term is.
        if not (record.queries.sum(dtype=torch.float32) + record.keys.sum(dtype=torch.float32)).isfinite():
            raise NotMeasurable(f"attention layer {number} gives NaN or infinite queries or keys on this prompt")
    if probe.contradicts(certificate, recorder.records):
        certificate = certify(model, input_ids.shape[1], again=True)
        if probe.contradicts(certificate, recorder.records):
            raise NotMeasurable(
                f"{model.config.model_type}: on this prompt, position does not act on keys as the self-check measured"
            )
    return Trace(
        attention=tuple(
            where.layer(record, number)
            for number, (record, where) in enumerate(zip(recorder.records, certificate.positions, strict=True))
        ),
        positions=tuple(positions),
        query=positions[-1],
        output=output.logits[:, -1].float(),
        check=certificate.deviation,
        absolute=certificate.absolute,
    )


def check_past(model: PreTrainedModel, past: Cache, level: str) -> None:
    """Refuse a cache whose keys are not those of the whole prompt."""
    if any(getattr(layer, "is_sliding", False) for layer in past.layers):
        raise BadInput(
            "this cache drops the keys outside a sliding window; DynamicCache() without a configuration keeps them all"
        )
    if level == "keys" and angles_depend_on_length(model):
        raise NotMeasurable(
            f"{model.config.model_type}: its angles depend on the length of the prompt, and a cache keeps those of "
            "a shorter one: capture the whole prompt, without past"
        )


def check_model(model: object) -> None:
    """Refuse anything that is not a model, such as an unknown wrapper whose `trace` means something else."""
    if isinstance(model, PreTrainedModel) or (isinstance(model, nn.Module) and isinstance(model, Traceable)):
        return
    raise BadInput(describe(model))


def check_input(model: PreTrainedModel | Traceable, input_ids: Tensor) -> None:
    """Refuse token ids with which the model cannot be run, with one sentence for each reason."""
    check_model(model)
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
