"""A model that is asked live: one captured forward pass per prompt, from which everything shown is computed."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..core.scores import ENTROPY, block_index, block_spans, swap_measure
from ..core.swaps import Weighting
from ..core.trace import Trace
from ..core.walk import Measure, every_layer
from ..errors import BadInput
from ..lab import Transformer
from ..lab.gptj import to_gptj
from ..prompts import Prompt
from ..prompts.prompt import Span
from ..studies.profile.attention import stacked_layers
from ..studies.profile.cell import PromptCell, measure_signature, measure_trace, signature_cell
from ..studies.profile.profile import make_profile, measure_settings, prompts_hash
from ..studies.profile.result import Profile
from ..studies.profile.tables import head_table
from ..tracing import capture
from ..tracing.fingerprint import dtype_name, model_hash
from ..tracing.hook import layer_lists
from ..tracing.load import OpenedModel
from ..tracing.offload import entry_device
from ..tracing.self_check import stated_context
from .reader import Reader, SymbolReader, TextReader, propose_blocks

TAU, SEED = 1e-4, 0
MOST_TOKENS = 2048
SHOWN = 10  # most probable next tokens
ATTENTION = Measure(lambda tables: (tables.attention(),))
LARGEST_KEPT, MOST_KEPT = 2**29, 4  # bytes of a trace that is kept, and how many are


@dataclass(frozen=True)
class Asked:
    """A prompt as a page asks for it: its tokens, the query and the blocks before it."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    text: str
    query: int
    blocks: tuple[Span, ...]
    cut: str  # statements, lines, tokens or drawn
    answer: int | None = None

    def prompt(self, target: int | None, labels: Sequence[str]) -> Prompt:
        """The prompt up to the query, as a profile takes it."""
        ids = self.ids[: self.query + 1]
        answer = self.answer if self.query == len(self.ids) - 1 else None
        tokens = self.tokens[: self.query + 1]
        return Prompt(ids, self.blocks, self.text, answer, target, labels=tuple(labels), tokens=tokens)


@dataclass
class Kept:
    """What is kept of a prompt, so that another query or other blocks need no second forward pass."""

    trace: Trace
    profiles: dict[Any, Profile] = field(default_factory=dict)


class LiveModel:
    """Answers the questions of the page. All methods but `read` run the model, in the worker's thread."""

    def __init__(self, opened: OpenedModel, check: Callable[[], None] = lambda: None) -> None:
        lab = isinstance(opened.model, Transformer)
        if lab and not opened.task:
            raise BadInput(f"{opened.name}: the task of this model is not known, so it cannot read text")
        self.model: PreTrainedModel = to_gptj(opened.model) if lab else opened.model
        self.reader: Reader = SymbolReader(opened.task or "") if lab else TextReader(opened.tokenizer)
        self.opened, self.check = opened, check
        self.name = opened.short_name
        self.device = entry_device(self.model)
        self.context = stated_context(self.model) or sys.maxsize
        self.most_tokens = min(MOST_TOKENS, self.context)
        self.vocabulary = len(cast(nn.Embedding, self.model.get_input_embeddings()).weight)
        self.weights = model_hash(self.model)
        self.kept: OrderedDict[tuple[int, ...], Kept] = OrderedDict()
        self.passes = 0  # forward passes so far
        self._signature: dict[str, Tensor] | None = None
        self._bias_per_token: int | None = None  # bytes of the biases of one query, per key
        self._hooks = [self.model.register_forward_pre_hook(self._count)]
        for layers in layer_lists(self.model):
            self._hooks += [layer.register_forward_pre_hook(lambda *_: self.check()) for layer in layers]

    def close(self) -> None:
        """Leave the model as it was given."""
        while self._hooks:
            self._hooks.pop().remove()
        self.kept.clear()

    def read(self, given: dict[str, Any]) -> Asked:
        """The prompt of a request: `text` or `ids`, and optionally `query`, `blocks` and `answer`."""
        text, ids = given.get("text"), given.get("ids")
        if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
            self._check_length(ids)
            if not all(0 <= one < self.vocabulary for one in ids):
                raise BadInput(f"token ids must lie in 0 to {self.vocabulary - 1}")
            tokens = self.reader.texts(ids, "", [])
            text, spans = "".join(tokens), _spans(tokens)
        elif isinstance(text, str):
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise BadInput("the text is not valid Unicode: it contains half of a surrogate pair")
            if not text.strip():
                raise BadInput("the prompt is empty: type some text, or choose an example")
            ids, spans = self.reader.read(text)
            self._check_length(ids)
            tokens = self.reader.texts(ids, text, spans)
        else:
            raise BadInput("a prompt has a text, or a list of token ids")
        query = given.get("query")
        query = len(ids) - 1 if query is None else query
        if type(query) is not int or not 1 <= query < len(ids):
            raise BadInput(f"the query is a token from 1 to {len(ids) - 1}, got {query!r:.40}")
        blocks, answer = given.get("blocks") or "auto", given.get("answer")
        if isinstance(blocks, str):
            found, cut = propose_blocks(text, spans, query, blocks)
        else:
            found, cut = block_spans(_pairs(blocks), query), "drawn"
            block_index(found, query)  # refuses blocks of different lengths
        if answer is not None and (type(answer) is not int or not 0 <= answer < self.vocabulary):
            raise BadInput(f"answer is a token id from 0 to {self.vocabulary - 1}, got {answer!r:.40}")
        return Asked(tuple(ids), tokens, text, query, tuple(found), cut, answer)

    def _check_length(self, ids: Sequence[int]) -> None:
        if len(ids) > self.most_tokens:
            raise BadInput(f"the prompt has {len(ids):,} tokens; at most {self.most_tokens:,} are measured here")
        if len(ids) < 2:
            raise BadInput("the prompt has one token: a query needs tokens before it")

    def trace(self, asked: Asked) -> Trace:
        """The captured forward pass of a prompt with all its queries, seen from the query asked for."""
        return up_to(self._kept(asked).trace, asked.query)

    def _kept(self, asked: Asked) -> Kept:
        if asked.ids not in self.kept:
            ids = torch.tensor([asked.ids], device=self.device)
            queries = range(1, len(asked.ids)) if self._fits(len(asked.ids)) else [asked.query]
            trace = capture(self.model, ids, queries, level="prompt")
            kept = Kept(trace)
            if len(queries) == 1 or _bytes(trace) > LARGEST_KEPT:
                return kept
            self.kept[asked.ids] = kept
            while len(self.kept) > MOST_KEPT:
                self.kept.popitem(last=False)
        self.kept.move_to_end(asked.ids)
        return self.kept[asked.ids]

    def _fits(self, tokens: int) -> bool:
        """Whether all queries of a prompt can be captured: a bias per head, as ALiBi's, has a row of keys for each."""
        if self._bias_per_token is None:
            trace = capture(self.model, torch.zeros(1, 4, dtype=torch.long, device=self.device), [3], level="prompt")
            biases = [layer.bias for layer in trace.attention if layer.bias is not None and layer.bias.shape[1] > 1]
            self._bias_per_token = sum(bias.nbytes // bias.shape[-1] for bias in biases)
        return self._bias_per_token * tokens**2 <= LARGEST_KEPT

    def seen(self, asked: Asked, trace: Trace) -> tuple[Float[Tensor, "L H T"], dict[str, Tensor], str]:
        """The attention of every head on every token, its scores, and why there are none if there are none; in one walk
        over the layers."""
        if trace.absolute:
            note = "this model adds positions to its embeddings: wherewhat profile --level prompt measures it"
            return stacked_layers(trace, trace.attention_rows), {}, note
        if len(asked.blocks) < 2:
            note = "there are fewer than two blocks of equal length before the query: draw some, or take tokens"
            return every_layer(trace, ATTENTION)[0][0][0], {}, note
        swaps = swap_measure(trace, asked.blocks, [Weighting(TAU)])
        (rows,), (positional, symbolic, _), (entropy,) = every_layer(trace, ATTENTION, swaps, ENTROPY)
        self.check()
        return rows[0], {"positional": positional[0], "symbolic": symbolic[0], "entropy": entropy[0]}, ""

    def profile(self, asked: Asked, thorough: bool = False) -> Profile:
        """The profile of this one prompt, from the forward pass that was captured."""
        kept, key = self._kept(asked), (asked.query, asked.blocks, asked.answer, thorough)
        if key not in kept.profiles:
            trace = up_to(kept.trace, asked.query)
            prompt = asked.prompt(self.target(asked, trace), [self.label(asked, block) for block in asked.blocks])
            dtype = dtype_name(self.model)
            cell = PromptCell(
                self.weights, dtype, prompt.ids, prompt.blocks, prompt.answer, prompt.target, prompt.answer_at, TAU,
                table=True, shown=True, every_query=True,
            )  # fmt: skip
            results = [measure_trace(trace, cell, thorough)]
            self.check()
            settings = {"weights": self.weights, **measure_settings("keys", None, TAU, SEED, dtype)}
            settings["prompts"] = prompts_hash([prompt])
            about = {"model": self.opened.name, "command": "\n".join(self.python(asked))}
            heads = head_table(results, self.signature(), SEED)
            kept.profiles = {key: make_profile(self.model, [prompt], results, heads, settings, about)}
        return kept.profiles[key]

    def prepare(self) -> None:
        """Compute what no prompt changes, and with it the self-check."""
        self.signature()
        self._fits(1)

    def signature(self) -> dict[str, Tensor]:
        """Attention on repeated tokens, which is the same for every prompt."""
        if self._signature is None:
            self._signature = measure_signature(self.model, signature_cell(self.model, self.weights, SEED))
        return self._signature

    def target(self, asked: Asked, trace: Trace) -> int | None:
        """The only block that contains the right answer or, if it is not known, the answer that the model gives."""
        if asked.query < len(asked.ids) - 1:
            return None
        assert trace.output is not None
        answer = int(trace.output[0].argmax()) if asked.answer is None else asked.answer
        holding = [at for at, (start, stop) in enumerate(asked.blocks) if answer in asked.ids[start:stop]]
        return holding[0] if len(holding) == 1 else None

    def label(self, asked: Asked, block: Span) -> str:
        return "".join(asked.tokens[slice(*block)]).strip()

    def next_tokens(self, logits: Tensor, answer: int | None = None) -> list[dict[str, Any]]:
        """The most probable next tokens, and the right answer wherever it stands."""
        chances = logits.float().softmax(-1)
        order = chances.topk(min(SHOWN, len(chances))).indices.tolist()
        if answer is not None and answer not in order and answer < len(chances):
            order.append(answer)
        return [
            {"id": one, "text": self.reader.decode([one]), "p": float(chances[one]), "right": one == answer}
            for one in order
        ]

    def python(self, asked: Asked, ablated: str = "") -> list[str]:
        """The lines of Python that repeat what is shown."""
        name, logits = self.opened.name, "model(ids).logits[0, -1]"
        load = f"ww.load({name!r})"
        if isinstance(self.reader, SymbolReader):
            load = f"ww.Run.load({name!r}).model()" if Path(name).exists() else f"ww.embedded({name!r})"
            logits = "model(ids)[0, -1]"
        lines = ["import torch", "import wherewhat as ww", "", f"model = {load}"]
        lines += [
            f"ids = torch.tensor([{list(asked.ids)}])",
            f"blocks = {list(asked.blocks)}",
            f"trace = ww.capture(model, ids, queries=[{asked.query}])",
            "scores = ww.score(trace, blocks=blocks)",
            "scores.positional, scores.symbolic",
        ]
        if ablated:
            lines += [f"with ww.gate(model, {ablated}), torch.no_grad():", f"    logits = {logits}"]
        return lines

    def _count(self, *_: object) -> None:
        self.passes += 1


def _bytes(trace: Trace) -> int:
    parts = [part for layer in trace.attention for part in (layer.queries, layer.keys, layer.bias)]
    return sum(part.nbytes for part in parts if part is not None)


def up_to(trace: Trace, query: int) -> Trace:
    """The trace of the prompt that ends at this query: a causal model sees nothing of the later tokens."""
    if query == trace.positions[-1]:
        return trace
    rows, tokens = trace.positions.index(query) + 1, query + 1
    layers = tuple(
        replace(
            layer,
            queries=layer.queries[:, :, :rows],
            keys=layer.keys[:, :, :tokens],
            bias=None if layer.bias is None else layer.bias[:, :, :rows, :tokens],
        )
        for layer in trace.attention
    )
    return replace(trace, attention=layers, positions=trace.positions[:rows], query=query)


def _spans(tokens: Sequence[str]) -> list[Span]:
    """The characters of every token in the joined text."""
    spans, at = [], 0
    for token in tokens:
        spans.append((at, at + len(token)))
        at += len(token)
    return spans


def _pairs(blocks: Any) -> list[Span]:
    for one in blocks if isinstance(blocks, list) else [blocks]:
        if not isinstance(one, list) or len(one) != 2 or not all(type(end) is int for end in one):
            raise BadInput(f"a block is a pair [start, stop] of token positions, got {one!r:.60}")
    return [(start, stop) for start, stop in blocks]
