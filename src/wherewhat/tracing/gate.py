"""`ww.gate`: run a model without some of its frequencies or heads, or with heads that see part of the tokens only,
through the hook that capture uses."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, StaticCache

from ..core.bands import band
from ..errors import BadInput, NotMeasurable
from ..lab.transformer import Attend, Drop, Transformer
from .hook import as_gated, gating, last_logits_only, quiet_evaluation
from .interventions import Change, Intervention, Site
from .legacy_families import ways_into
from .self_check import TOKENS, angles_depend_on_length, confirmed
from .unwrap import as_written, describe, uncompiled, unwrap
from .windows import RECENT, SINK, Run, Window, check_window, with_mask

# Layer, head, and frequency ID or band; None, or a missing part at the end, stands for all.
HeadSpec = Sequence[int | str | None]
_numbers = count(1)


@runtime_checkable
class Plan(Protocol):
    """Which rotations of a model are dropped, such as `RotationPlan`."""

    def frozen_in(self, model: Any, /) -> Iterable[HeadSpec]:
        """(layer, head, frequency) of every dropped rotation; a plan that was made for another model is refused."""
        ...


@contextmanager
def gate(
    model: PreTrainedModel | Transformer | Any,
    plan: Plan | None = None,
    *,
    keep: Iterable[HeadSpec] = (),
    drop: Iterable[HeadSpec] = (),
    freeze: Iterable[HeadSpec] = (),
    ablate: Iterable[HeadSpec] = (),
    mean_of: Int[Tensor, "B T"] | Sequence[Float[Tensor, "H E"]] | None = None,
    stream: Iterable[HeadSpec] = (),
    sink: int = SINK,
    recent: int = RECENT,
) -> Iterator[None]:
    """Context in which a model runs without some of its frequencies or heads; afterwards it is restored.

    `drop` removes the contribution of a frequency to the attention logits of a head. `keep` drops all other frequencies
    of the heads that it names, and does not change any other head. `freeze` stops the rotation of a frequency, so that
    it no longer carries position. `ablate` sets the output of whole heads to zero or, with `mean_of`, to its mean over
    these prompts and their positions (or to the result of `mean_outputs` for them). A `plan` of `ww.rotations` freezes
    every rotation that it does not keep. `stream` lets heads see the first `sink` and the last `recent` tokens only, as
    with a bounded key-value cache.

    A choice is (layer, head, frequency); None, or a part missing at the end, stands for all of an axis. Layers are
    numbered as in `trace.layers`, heads are query heads, and a frequency is an ID (1 is the fastest, 0 stands for the
    non-rotary dimensions) or a band such as "fastest quarter". Gates may be nested; their effects combine.

    >>> with ww.gate(model, drop=[(3, 1, 5), (None, None, "slowest quarter")]):        # doctest: +SKIP
    ...     model(input_ids).logits
    >>> with ww.gate(model, freeze=[(None, None, "slowest half")]):  # p-RoPE            # doctest: +SKIP
    ...     model.generate(input_ids)
    """
    model = unwrap(model)
    if not isinstance(model, (PreTrainedModel, Transformer)):
        raise BadInput(describe(model))
    if plan is not None and not isinstance(plan, Plan):
        raise BadInput(
            f"a plan is the result of ww.rotations or ww.RotationPlan.load(folder), got {type(plan).__name__}"
        )
    keeper = _keepers.get(model) or Gatekeeper(model)
    freeze = [*freeze, *(() if plan is None else plan.frozen_in(model))]
    changes = keeper.changes(*(list(some) for some in (keep, drop, freeze, ablate)))
    if stream := list(stream):
        windows = keeper.windows(stream, sink, recent)
        changes = [replace(change, window=window) for change, window in zip(changes, windows, strict=True)]
    if mean_of is not None:
        means = keeper.means(mean_of) if isinstance(mean_of, Tensor) else mean_of
        changes = [replace(change, outputs=mean) for change, mean in zip(changes, means, strict=True)]
    with keeper.active(changes):
        yield


def mean_outputs(model: PreTrainedModel | Transformer | Any, prompts: Int[Tensor, "B T"]) -> list[Float[Tensor, "H E"]]:
    """The mean output of the heads of every layer over these prompts, for use in several gates.

    >>> with ww.gate(model, ablate=[(3, 1)], mean_of=mean_outputs(model, prompts)): ...       # doctest: +SKIP
    """
    model = unwrap(model)
    return (_keepers.get(model) or Gatekeeper(model)).means(prompts)


class Gatekeeper:
    """All active gates of one model, combined into one visitor of its attention."""

    def __init__(self, model: PreTrainedModel | Transformer) -> None:
        self.model = model
        self.layer: int | None = None
        self.positions: Tensor | None = None
        self.run = Run()
        self.gates: dict[int, list[Change]] = {}
        self.interventions: list[Intervention] = []
        self.listener: Callable[[int, Tensor], None] | None = None
        self.stack = ExitStack()
        self.at: dict[tuple[nn.Module, int | None], int] = {}
        if isinstance(model, Transformer):
            self.sites = [
                Site(number, model.shape.heads, model.rotation(number)) for number in range(len(model.blocks))
            ]
        else:
            with as_gated(model), as_written(model):
                certificate = confirmed(model, TOKENS + 1)
            self.at = {(module, layer): number for number, (module, layer, _) in enumerate(certificate.calls)}
            self.sites = [
                Site(number if layer is None else layer, heads, where.rotation, where.stretch)
                for number, ((_, layer, heads), where) in enumerate(
                    zip(certificate.calls, certificate.positions, strict=True)
                )
            ]
        self.modules: Set[nn.Module] = {module for module, _ in self.at}

    @property
    def frozen_by(self) -> tuple[int, ...]:
        """The gates that change the rotation: to a capture, the model is a different one under each of them."""
        return tuple(number for number, changes in self.gates.items() if any(c.frozen.any() for c in changes))

    def changes(
        self, keep: list[HeadSpec], drop: list[HeadSpec], freeze: list[HeadSpec], ablate: list[HeadSpec]
    ) -> list[Change]:
        """The changes at every site; a choice that selects nothing is refused."""
        if freeze and isinstance(self.model, PreTrainedModel) and angles_depend_on_length(self.model):
            raise NotMeasurable(
                "its angles depend on the length of the prompt: frequencies can be dropped, but not frozen"
            )
        if any(len(choice) > 2 and choice[2] is not None for choice in ablate):
            raise BadInput("heads are ablated as a whole: give (layer, head)")
        kept, dropped, frozen, ablated = (self._chosen(some) for some in (keep, drop, freeze, ablate))
        named = [table.any(-1, keepdim=True) for table in kept]
        return [
            Change(gone | (some & ~stay), still, head.any(-1))
            for stay, some, gone, still, head in zip(kept, named, dropped, frozen, ablated, strict=True)
        ]

    def windows(self, stream: list[HeadSpec], sink: int, recent: int) -> list[Window | None]:
        """The heads that stream at every site; None where none does."""
        check_window(sink, recent)
        if any(len(choice) > 2 and choice[2] is not None for choice in stream):
            raise BadInput("heads stream as a whole: give (layer, head)")
        if isinstance(self.model, Transformer) or ways_into(self.model):
            raise NotMeasurable(
                f"heads of {type(self.model).__name__} cannot stream: its attention does not use the attention "
                "interface of transformers, which takes a mask for each head"
            )
        tables = [table.any(-1) for table in self._chosen(stream)]
        return [Window(heads, sink, recent) if heads.any() else None for heads in tables]

    def means(self, prompts: Tensor) -> list[Tensor]:
        """The mean output of the heads at every site over these prompts."""
        means: dict[int, Tensor] = {}

        def listen(site: int, output: Tensor) -> None:
            means[site] = output.float().mean((0, 2))

        nothing = self.changes([], [], [], [])
        with self.active(nothing), quiet_evaluation(self.model), as_written(self.model):
            self.listener = listen
            try:
                if isinstance(self.model, Transformer):
                    self.model(prompts)
                else:
                    self.model(input_ids=prompts, use_cache=False, **last_logits_only(self.model))
            finally:
                self.listener = None
        return [means[number] for number in range(len(self.sites))]

    @contextmanager
    def active(self, changes: list[Change]) -> Iterator[None]:
        """Context in which these changes are active, whichever other gates open or close in the meantime."""
        number = next(_numbers)
        if not self.gates:
            self._install()
        try:
            self.gates[number] = changes
            self._lay_out()
            yield
        finally:
            del self.gates[number]
            if self.gates:
                self._lay_out()
            else:
                _keepers.pop(self.model, None)
                self.stack.close()

    def enter(self, module: nn.Module, query: Tensor, key: Tensor, /, **_: Any) -> tuple[Tensor, Tensor]:
        return self.interventions[self._site(module)].enter(query, key, self.positions)

    def mask(
        self, name: str, module: nn.Module, query: Tensor, key: Tensor, args: tuple[Any, ...], given: dict[str, Any], /
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        windows = self.interventions[self._site(module)].windows
        return with_mask(name, windows, query, key, self.run, args, given) if windows else (args, given)

    def leave(self, module: nn.Module, output: Tensor, /) -> Tensor:
        return self._leave(self._site(module), output)

    def _leave(self, site: int, output: Tensor) -> Tensor:
        output = self.interventions[site].leave(output)
        if self.listener is not None:
            self.listener(site, output)
        return output

    def _site(self, module: nn.Module) -> int:
        if (module, self.layer) not in self.at:
            raise NotMeasurable(
                f"{type(module).__name__} attends in layer {self.layer}, which the self-check has not seen"
            )
        return self.at[module, self.layer]

    def _install(self) -> None:
        if isinstance(self.model, Transformer):
            self.stack.enter_context(self.model.attending(self._attending))
        else:
            self.stack.callback(self.model.register_forward_pre_hook(self._note_positions, with_kwargs=True).remove)
            self.stack.enter_context(gating(self.model, self))
            self.stack.enter_context(uncompiled())
        _keepers[self.model] = self

    def _attending(self, layer: int, attend: Attend) -> Attend:
        def gated(queries: Tensor, keys: Tensor, values: Tensor, drop: Drop, /) -> Tensor:
            return self._leave(layer, attend(*self.interventions[layer].enter(queries, keys), values, drop))

        return gated

    def _lay_out(self) -> None:
        at_each_site = zip(*self.gates.values(), strict=True)
        self.interventions = [Intervention(site, some) for site, some in zip(self.sites, at_each_site, strict=True)]

    def _note_positions(self, _: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        """Record the positions of the tokens, if they are given: frozen planes are rotated back by them."""
        self.positions = inputs.get("position_ids")
        if any(one.windows for one in self.interventions):
            inputs = dict(zip(inspect.signature(self.model.forward).parameters, args, strict=False)) | inputs
            if isinstance(inputs.get("past_key_values"), StaticCache):
                raise NotMeasurable("heads cannot stream with a static cache: its keys do not end with the query")
            self.run = Run.of(inputs)
        if not self.frozen_by:
            return
        if self.positions is not None and self.positions.dim() != 2:
            raise NotMeasurable("frequencies cannot be frozen where a token has more than one position")
        if isinstance(inputs.get("past_key_values"), StaticCache):
            raise NotMeasurable("frequencies cannot be frozen with a static cache: its keys do not end with the query")

    def _chosen(self, choices: list[HeadSpec]) -> list[Bool[Tensor, "H F"]]:
        """The selected entries of the F axis of every head, at every site."""
        tables = [
            torch.zeros(site.heads, len(site.frequency_ids), dtype=torch.bool, device="cpu") for site in self.sites
        ]
        for choice in choices:
            layer, head, frequency = _parsed(choice)
            sites = [number for number, site in enumerate(self.sites) if layer in (None, site.layer)]
            if not sites:
                raise BadInput(f"layer {layer}: attention is in layers {_listed(site.layer for site in self.sites)}")
            most = max(self.sites[number].heads for number in sites)
            if head is not None and not 0 <= head < most:
                raise BadInput(f"head {head}: {_of_layer(layer)} has heads 0 to {most - 1}")
            found = [(number, self._entries(self.sites[number], frequency)) for number in sites]
            if not any(entries for _, entries in found):
                ids = sorted({one for number in sites for one in self.sites[number].frequency_ids})
                raise BadInput(f"frequency {frequency}: {_of_layer(layer)} has the frequency IDs {_listed(ids)}")
            for number, entries in found:
                heads = range(self.sites[number].heads) if head is None else [head]
                for one in heads:
                    if one < self.sites[number].heads:
                        tables[number][one, entries] = True
        return tables

    def _entries(self, site: Site, frequency: int | str | None) -> list[int]:
        ids = site.frequency_ids
        if frequency is None:
            return list(range(len(ids)))
        chosen = (band(frequency, site.planes) if site.planes else ()) if isinstance(frequency, str) else (frequency,)
        return [ids.index(one) for one in chosen if one in ids]


_keepers: WeakKeyDictionary[nn.Module, Gatekeeper] = WeakKeyDictionary()


def _parsed(choice: Sequence[Any]) -> tuple[int | None, int | None, int | str | None]:
    """A choice with all three parts; numbers of any integer type become ints."""
    try:
        layer, head, frequency = (*choice, *(None,) * (3 - len(choice)))
        layer, head = (None if part is None else operator.index(part) for part in (layer, head))
        return layer, head, frequency if frequency is None or isinstance(frequency, str) else operator.index(frequency)
    except (TypeError, ValueError) as error:
        raise BadInput(f"a choice is (layer, head, frequency), with None for all of an axis; got {choice!r}") from error


def _of_layer(layer: int | None) -> str:
    return "every layer" if layer is None else f"layer {layer}"


def _listed(numbers: Iterable[int]) -> str:
    distinct = sorted(set(numbers))
    if len(distinct) > 2 and distinct == list(range(distinct[0], distinct[-1] + 1)):
        return f"{distinct[0]} to {distinct[-1]}"
    return ", ".join(map(str, distinct))
