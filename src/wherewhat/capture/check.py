"""The self-check: before any score, prove on this very model that what is captured is what the model does.

1. Every attention layer that shows itself in the model's own eager pass was captured, with the same logits after it.
2. The attention rows rebuilt from captured queries and keys are the model's own.
3. Keys captured at p, turned to p + s, are the keys captured at p + s.
4. Contents exchanged by hand before a layer, and the layer run again, give what the placement table foretells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer
from ..errors import NotMeasurable
from .hook import Record, Recorder, gates, implementation, last_logits_only, quiet_evaluation, recording
from .offload import entry_device
from .probe import Turn, hypotheses_of, measure, shifts_within, stated_angles, stretches_of

# What is tolerated: differences of attention logits as a share of their spread, of keys as a share of the largest, of
# the model's logits as a share of their norm.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# Attention logits that vary less than this are compared as if they varied by this: the rest is the number type's noise.
FLATTEST = {torch.float64: 3e-2, torch.float32: 3e-2, torch.float16: 2e-1, torch.bfloat16: 5e-1}
# Attention below this is not told apart: half precision has no digits left there.
FAINTEST = {torch.float64: 1e-12, torch.float32: 1e-12, torch.float16: 1e-4, torch.bfloat16: 1e-12}
# A prime number, lest a head dimension be taken for the length of the prompt.
TOKENS = 23


@dataclass(frozen=True)
class Position:
    """How position acts on one call of attention: a rotation, of keys divided by `stretch` where there is one.

    A family that scales each dimension after turning it shows stretched keys. Dividing keys and multiplying queries
    by the stretch leaves every logit as it is and makes the turn a rotation.
    """

    rotation: Rotation
    stretch: Tensor | None = None

    def layer(self, record: Record, number: int = 0) -> AttentionLayer:
        queries, keys = record.queries, record.keys
        if self.stretch is not None:
            stretch = self.stretch.to(keys.device).float()
            queries, keys = queries.float() * stretch, keys.float() / stretch
        return AttentionLayer(
            index=number if record.layer is None else record.layer,
            queries=queries,
            keys=keys,
            rotation=self.rotation,
            scaling=record.scaling,
            softcap=record.softcap,
            bias=record.bias,
            sinks=record.sinks,
        )


@dataclass(frozen=True)
class Certificate:
    """What the self-check found: how position acts on each attention call, in order, and the largest deviations.

    `calls` tells them apart: the module, the layer that was running, and the number of query heads.
    """

    positions: tuple[Position, ...]
    deviation: dict[str, float]
    absolute: bool
    calls: tuple[tuple[nn.Module, int | None, int], ...]


@dataclass(frozen=True)
class Prompt:
    """The self-check's own prompt. Where angles depend on the length of a prompt, one more token stands at the far
    end of the prompt in use: it sets the angles in force, and no other token sees it.
    """

    ids: Tensor  # 1 T, or 1 T+1 with the token at the far end
    positions: Tensor | None
    tokens: int

    def run(self, model: PreTrainedModel, copies: int = 1, shifts: Tensor | None = None) -> Tensor:
        """The logits (1, T, V) after all tokens of a single copy; copy c stands `shifts[c]` positions further on.

        After all tokens: the last sees every other one, so it alone would not tell if causality were lost.
        """
        positions = self.positions
        if shifts is not None:
            start = torch.arange(self.tokens, device=self.ids.device) if positions is None else positions[0]
            positions = start + shifts[:, None]
            positions[:, self.tokens :] = start[self.tokens :]
        inputs: dict[str, Any] = {} if positions is None else {"position_ids": positions.expand(copies, -1)}
        if copies > 1:  # many copies are run for their keys
            inputs |= last_logits_only(model)
        return forward(model, self.ids.expand(copies, -1), **inputs)[:, : self.tokens]


_certificates: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Certificate]] = WeakKeyDictionary()


def certify(model: PreTrainedModel, length: int, again: bool = False) -> Certificate:
    """The certificate of a model, from memory if implementation, dtype, device, angles and gates are as they were.

    Angles that depend on the length of the prompt are those in force at this one.
    """
    frozen = gates[model].frozen_by if model in gates else ()
    key = (model.config._attn_implementation, model.dtype, model.device, frozen, *angles_in_force(model, length))
    known = _certificates.setdefault(model, {})
    if again or key not in known:
        known[key] = examine(model, length)
    return known[key]


def examine(model: PreTrainedModel, length: int) -> Certificate:
    """Run the whole self-check; raises NotMeasurable with one clear sentence at the first thing that is not right."""
    family = model.config.model_type
    if model.dtype not in TOLERANCE:
        raise NotMeasurable(
            f"{family}: weights of type {model.dtype} are not supported; use float32, bfloat16, float16"
        )
    prompt = make_prompt(model, length)
    recorder = Recorder([prompt.tokens - 1])
    with recording(model, recorder):
        logits = prompt.run(model)
    records = recorder.records
    contents = entering_contents(model, prompt, records)
    own_rows, own_logits = eager_pass(model, prompt, records, contents)
    _same_layers(model, own_rows, records)
    for number, record in enumerate(records):
        if not (record.queries.isfinite().all() and record.keys.isfinite().all()):
            raise NotMeasurable(f"{family}: attention layer {number} gives NaN or infinite queries or keys")

    # By their norm: half precision leaves single logits of a large vocabulary far from where they were.
    deviation = {"logits": _largest([float((logits - own_logits).norm() / own_logits.norm())])}
    calls = tuple((record.module, record.layer, record.queries.shape[1]) for record in records)
    nowhere = tuple(Position(Rotation.none(record.keys.shape[-1], record.keys.device)) for record in records)
    deviation["attention"] = _largest(
        _row_difference(where.layer(record), prompt.tokens, own, model.dtype)
        for where, record, (_, own) in zip(nowhere, records, own_rows, strict=True)
    )
    _accept(model, deviation, "attention", "attention rows rebuilt from queries and keys differ from the model's own")
    _accept(model, deviation, "logits", "the model's logits change when its attention is captured")
    if embeds_positions(model, own_rows[0][0], prompt):
        return Certificate(nowhere, deviation, absolute=True, calls=calls)

    positions, deviation["keys"] = measure_positions(model, prompt, length, records)
    _accept(model, deviation, "keys", "keys turned by the measured angles differ from the model's own")
    deviation["swap"] = exchange_by_hand(model, prompt, records, positions)
    _accept(
        model, deviation, "swap",
        "logits are more than query times key of one token each, as contents exchanged by hand show: they differ from "
        "the placement table",
    )  # fmt: skip
    return Certificate(positions, deviation, absolute=False, calls=calls)


def measure_positions(
    model: PreTrainedModel, prompt: Prompt, length: int, records: list[Record]
) -> tuple[tuple[Position, ...], float]:
    """How position acts on every attention call, and the largest deviation of a key turned from p to p + s.

    Every layer is given the same contents at all shifts, so nothing that happens before it can disturb its turn.
    """
    family, tokens = model.config.model_type, prompt.tokens
    context = length if prompt.positions is not None else min(stated_context(model) or length, 8192)
    shifts = shifts_within(max(context, tokens + 1), tokens)
    recorder = Recorder([tokens - 1])

    def same_contents(states: Tensor, _: int) -> Tensor:
        return states[:1].expand_as(states).contiguous()

    with recording(model, recorder), contents_changed(records, same_contents):
        try:
            prompt.run(model, len(shifts) + 1, torch.tensor([0, *shifts], device=prompt.ids.device))
        except NotMeasurable as error:
            if not isinstance(error.__cause__, (TypeError, ValueError)):
                raise
            recorder.records.clear()
            prompt.run(model, len(shifts) + 1)  # the family takes no positions: what turns is then left to the swap
    hypotheses = hypotheses_of(model)
    positions: list[Position] = []
    worst: list[float] = []
    for number, record in enumerate(recorder.records):
        keys = record.keys[:, :, :tokens].float()
        turn = Turn(keys[0], {shift: keys[1 + at] for at, shift in enumerate(shifts)})
        rest = 0.0
        for stretch in [None, *stretches_of(record.module, keys.shape[-1])]:
            rotation, left = measure(turn if stretch is None else turn.divided_by(stretch), hypotheses, model.dtype)
            rest = left if stretch is None else rest
            if rotation is not None:
                positions.append(Position(rotation, stretch))
                worst.append((turn if stretch is None else turn.divided_by(stretch)).worst_key(rotation))
                break
        else:
            raise NotMeasurable(
                f"{family}: positions do not act on attention layer {number} as a rotation (unexplained: {rest:.2g}), "
                'so it cannot be measured at level "keys"'
            )
    return tuple(positions), _largest(worst)


def exchange_by_hand(
    model: PreTrainedModel, prompt: Prompt, records: list[Record], positions: tuple[Position, ...]
) -> float:
    """Reverse all contents before each layer, run it again, compare with the table: the largest deviation of a logit.

    One pass for all layers: the prompt is repeated once a layer, and layer l exchanges only in copy l.
    """
    query = prompt.tokens - 1
    order = torch.cat([torch.arange(query).flip(0), torch.arange(query, prompt.ids.shape[1])]).to(prompt.ids.device)
    exchanged = Recorder([query], own_copy=True)

    def reverse(states: Tensor, call: int) -> Tensor:
        states = states.clone()
        states[call] = states[call, order.to(states.device)]
        return states

    with recording(model, exchanged), contents_changed(records, reverse):
        prompt.run(model, len(records))
    worst: list[float] = []
    for call, (record, again, where) in enumerate(zip(records, exchanged.records, positions, strict=True)):
        placement = where.layer(record).placement(0, query)
        foretold, real = placement.logits(), where.layer(again).placement(0, query).logits()[0]
        foretold[..., :query] = placement.table()[..., order[:query], torch.arange(query, device=order.device)]
        # A layer may take its keys from an earlier one: then it is there that the contents were exchanged.
        source = next((at for at in range(call) if torch.equal(records[at].keys, record.keys)), None)
        if source is not None:
            taken = replace(record, keys=exchanged.records[source].keys)
            real = where.layer(taken).placement(0, query).logits()[0]
        worst.append(_logit_difference(foretold[0], real, model.dtype))
    return _largest(worst)


@contextmanager
def contents_changed(records: list[Record], change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Change the hidden states that enter attention; `change` is told which call of attention it is."""
    calls = iter(range(len(records)))

    def enter(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = next(calls, None)
        states = args[0] if args else kwargs.get("hidden_states")
        if call is None:
            return args, kwargs
        if not isinstance(states, Tensor):
            raise NotMeasurable(f"{type(module).__name__} is given no hidden states to exchange")
        states = change(states, call)
        return ((states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": states})

    with ExitStack() as stack:
        for module in {id(record.module): record.module for record in records}.values():
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        yield


def entering_contents(model: PreTrainedModel, prompt: Prompt, records: list[Record]) -> list[Tensor]:
    """The hidden states that enter each call of attention when it is captured."""
    contents: list[Tensor] = []

    def keep(states: Tensor, _: int) -> Tensor:
        contents.append(states)
        return states

    with recording(model, Recorder([0])), contents_changed(records, keep):
        prompt.run(model)
    return contents


def eager_pass(
    model: PreTrainedModel, prompt: Prompt, records: list[Record], contents: list[Tensor]
) -> tuple[list[tuple[nn.Module, Tensor]], Tensor]:
    """The model's own eager attention: the last row of every attention call that shows one, and the logits.

    Each call is given the contents that it had when it was captured, so that rounding does not add up over layers.
    Layers that hand the matrix of their attention module on are not counted again: modules end from the inside out.
    """
    tokens, width = prompt.tokens, prompt.ids.shape[1]
    seen: list[tuple[nn.Module, Tensor]] = []
    shown: set[nn.Module] = set()

    def look(module: nn.Module, _: object, output: object) -> None:
        for part in output[1:] if isinstance(output, tuple) else ():
            if not (isinstance(part, Tensor) and part.dim() == 4 and part.shape[-2] == width <= part.shape[-1]):
                continue
            if not any(inner is not module and inner in shown for inner in module.modules()):
                shown.add(module)
                seen.append((module, part[:, :, tokens - 1, :tokens].float()))
            return

    with ExitStack() as stack:
        stack.enter_context(quiet_evaluation(model))
        stack.enter_context(implementation(model, "eager"))
        stack.enter_context(contents_changed(records, lambda _, call: contents[call]))
        for module in model.modules():
            stack.callback(module.register_forward_hook(look).remove)
        logits = prompt.run(model)
    return seen, logits


def embeds_positions(model: PreTrainedModel, attention: nn.Module, prompt: Prompt) -> bool:
    """Whether positions are added to the embeddings: one token repeated then enters the first layer in many ways."""
    first = _first_layer(model, attention)
    entered: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs.get("hidden_states")
        if isinstance(states, Tensor) and not entered:
            entered.append(states.detach().float())

    handle = first.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with quiet_evaluation(model):
            replace(prompt, ids=prompt.ids[:, :1].expand_as(prompt.ids).contiguous()).run(model)
    finally:
        handle.remove()
    return bool(entered) and not _difference(entered[0], entered[0][..., :1, :].expand_as(entered[0])) <= 1e-3


def forward(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    """The logits (B, T, V); whatever a family's own code raises on a plain prompt becomes one sentence."""
    try:
        return model(input_ids=ids, use_cache=False, **inputs).logits.float()
    except (NotMeasurable, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise NotMeasurable(
            f"{model.config.model_type}: the model does not run on a plain prompt ({reason})"
        ) from error


def make_prompt(model: PreTrainedModel, length: int) -> Prompt:
    """Random tokens, always the same; the lowest ids are left to padding and the like."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens = min(TOKENS, (stated_context(model) or TOKENS + 1) - 1)  # one position is left for a shift
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(10, vocabulary // 2), vocabulary, (1, tokens + 1), generator=generator)
    ids = ids.to(entry_device(model))
    if not angles_depend_on_length(model):
        return Prompt(ids[:, :tokens], None, tokens)
    places = torch.arange(tokens + 1, device=ids.device)
    places[-1] = max(length - 1, tokens)
    return Prompt(ids, places[None], tokens)


def stated_context(model: PreTrainedModel) -> int | None:
    """How many positions the configuration promises; some say -1 for any number."""
    stated = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return stated if isinstance(stated, int) and stated > 0 else None


def angles_in_force(model: PreTrainedModel, length: int) -> tuple[float, ...]:
    """The angles that a prompt of this length would meet, as the model states them.

    The length alone does not tell: models with dynamic scaling keep the angles of the longest prompt so far.
    """
    if angles_depend_on_length(model):
        with quiet_evaluation(model):
            make_prompt(model, length).run(model)
    return tuple(angle for stated in stated_angles(model) for angle in stated.flatten().tolist())


def angles_depend_on_length(model: nn.Module) -> bool:
    kinds = (getattr(module, "rope_type", None) for module in model.modules())
    return any(re.search("dynamic|longrope", str(kind)) for kind in kinds if kind is not None)


def _same_layers(model: PreTrainedModel, own: list[tuple[nn.Module, Tensor]], records: list[Record]) -> None:
    family = model.config.model_type
    if not records:
        names = sorted({type(module).__name__ for module in model.modules()})
        attention = [name for name in names if re.search("attention|attn", name, re.IGNORECASE)]
        if not own and not attention:
            raise NotMeasurable(f"{family}: the model has no attention layers")
        raise NotMeasurable(f"{family}: its attention ({', '.join(attention)}) does not use the attention interface")
    if len(own) != len(records):
        raise NotMeasurable(
            f"{family}: {len(records)} attention calls captured, but {len(own)} attention matrices shown by the model "
            "to compare them with"
        )
    for (module, row), record in zip(own, records, strict=True):
        if row.shape[-1] != record.keys.shape[2]:
            raise NotMeasurable(f"{family}: keys are not one a token")
        if module is not record.module or row.shape[1] != record.queries.shape[1]:
            raise NotMeasurable(f"{family}: the captured calls of attention are not those that the model shows")


def _first_layer(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The first element of the list of layers that the attention module sits in."""
    name = next(name for name, module in model.named_modules() if module is attention)
    parts = name.split(".")
    for end in range(len(parts)):
        holder = model.get_submodule(".".join(parts[:end]))
        if isinstance(holder, nn.ModuleList):
            return holder[0]
    return attention


def _accept(model: PreTrainedModel, deviation: dict[str, float], name: str, otherwise: str) -> None:
    tolerance = TOLERANCE[model.dtype]
    if not deviation[name] <= tolerance:
        raise NotMeasurable(
            f"{model.config.model_type}: {otherwise} by {deviation[name]:.2g} (tolerated: {tolerance:.0e})"
        )


def _row_difference(layer: AttentionLayer, tokens: int, own: Tensor, dtype: torch.dtype) -> float:
    """Rows are compared as logarithms of shares of the keys: some families report them before a sink takes its part."""
    row = layer.placement(0, tokens - 1).log_attention().exp()
    row, own = (part / part.sum(-1, keepdim=True) for part in (row, own))
    return _logit_difference(row.clamp(min=FAINTEST[dtype]).log(), own.clamp(min=FAINTEST[dtype]).log(), dtype)


def _logit_difference(logits: Tensor, real: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of two rows of logits, as a share of how much the real one varies."""
    if not torch.equal(logits.isneginf(), real.isneginf()):
        return torch.inf
    seen = ~real.isneginf()
    spread = real.masked_fill(~seen, -torch.inf).amax(-1) - real.masked_fill(~seen, torch.inf).amin(-1)
    difference = (logits - real).masked_fill(~seen, 0).abs().amax(-1) / spread.clamp(min=FLATTEST[dtype])
    return float(difference.nan_to_num(nan=torch.inf).max())


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


def _largest(values: Iterable[float]) -> float:
    """The largest, where one that is not a number counts as infinite: Python's max would pass over it."""
    return max((value if value == value else torch.inf for value in values), default=0.0)
