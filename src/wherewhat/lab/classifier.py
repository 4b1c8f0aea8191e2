"""One small Transformer that classifies sequences, with any positional encoding.

Pre-norm blocks, attention then MLP, as in torch.nn.TransformerEncoder with `norm_first`; then a mean over the tokens
that are not padding, and a linear read-out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer, Trace
from ..errors import BadInput, NotMeasurable
from .encodings import BUCKETS, FARTHEST, NOPE, Encoding, alibi, sinusoids, t5_buckets
from .transformer import Drop, TokenModel, phasors, rotate

PAD = 0  # the token that pads short sequences


def keep(values: Tensor) -> Tensor:
    """No dropout."""
    return values


@dataclass(frozen=True)
class Design:
    """Sizes of a classifier, and its positional encoding.

    Two flaws of a published implementation can be switched on: with `unmasked`, padding is attended to and counted in
    the mean; with `fixed_keys`, every layer computes its keys and values from the embeddings.
    """

    vocabulary: int
    classes: int
    tokens: int
    encoding: Encoding = NOPE
    layers: int = 3
    heads: int = 8
    width: int = 64
    hidden: int = 128
    causal: bool = False
    unmasked: bool = False
    fixed_keys: bool = False

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise BadInput(f"width must be a multiple of 2 * heads, got {self.width} for {self.heads} heads")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def rotary_dim(self) -> int:
        """The number of dimensions of a head that can be rotary."""
        return self.encoding.decoupled if self.encoding.latent else self.head_dim


class BatchContext(NamedTuple):
    """What all layers share for a batch of sequences: which tokens are not padding (None: all of them), the additive
    attention mask, and with `fixed_keys` the stream from which keys and values are computed."""

    seen: Bool[Tensor, "B T"] | None
    mask: Float[Tensor, "#B 1 #T T"] | None
    source: Float[Tensor, "B T W"] | None


class AttentionInputs(NamedTuple):
    """Inputs of attention in one layer: rotated queries and keys, values, and what is added to the logits."""

    queries: Float[Tensor, "B H T D"]
    keys: Float[Tensor, "B H T D"]
    values: Float[Tensor, "B H T E"]
    bias: Float[Tensor, "1 H T T"] | None
    mask: Float[Tensor, "#B 1 #T T"] | None

    def logits(self) -> Float[Tensor, "B H T T"]:
        logits = self.queries * self.queries.shape[-1] ** -0.5 @ self.keys.mT
        for part in (self.bias, self.mask):
            logits = logits if part is None else logits.add_(part)
        return logits

    def attended(self, drop: Drop = keep) -> Float[Tensor, "B T W"]:
        """The outputs of all heads, concatenated."""
        return (drop(self.logits().softmax(-1)) @ self.values).transpose(1, 2).flatten(2)


Watch = Callable[[int, AttentionInputs], None]


def no_watch(layer: int, inputs: AttentionInputs) -> None:
    """The default of every `watch` parameter."""


class Attention(nn.Module):
    """Queries, keys and values of all heads from one matrix product."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.heads = design.heads
        self.inward = nn.Linear(design.width, 3 * design.width)

    def forward(
        self,
        stream: Float[Tensor, "B T W"],
        source: Float[Tensor, "B T W"],
        rotations: Complex[Tensor, "T _ P"] | None,
    ) -> tuple[Float[Tensor, "B H T D"], ...]:
        if source is stream:
            made = self.inward(stream)
        else:
            parts = zip((stream, source, source), self.inward.weight.chunk(3), self.inward.bias.chunk(3), strict=True)
            made = torch.cat([F.linear(*part) for part in parts], -1)
        made = made.unflatten(-1, (3, self.heads, -1))
        pair, values = made[:, :, :2], made[:, :, 2]
        queries, keys = (pair if rotations is None else rotate(pair, rotations)).permute(2, 0, 3, 1, 4)
        return queries, keys, values.transpose(1, 2)

    def head_gradients(self) -> list[Float[Tensor, "H D W"]]:
        """The gradients of the weights of each head's queries and keys, which determine its logits."""
        assert self.inward.weight.grad is not None
        return [part.unflatten(0, (self.heads, -1)) for part in self.inward.weight.grad.chunk(3)[:2]]


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values from a small latent vector, position in separate dimensions."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.heads, self.latent, self.head_dim = design.heads, design.encoding.latent, design.head_dim
        self.decoupled = design.encoding.decoupled
        self.asking = nn.Linear(design.width, self.heads * (self.head_dim + self.decoupled), bias=False)
        self.squeeze = nn.Linear(design.width, self.latent + self.decoupled, bias=False)
        self.norm = nn.RMSNorm(self.latent, eps=1e-6)
        self.spread = nn.Linear(self.latent, 2 * design.width, bias=False)

    def forward(
        self,
        stream: Float[Tensor, "B T W"],
        source: Float[Tensor, "B T W"],
        rotations: Complex[Tensor, "T _ P"] | None,
    ) -> tuple[Float[Tensor, "B H T _"], ...]:
        sizes = (self.head_dim, self.decoupled)
        still, moving = self.asking(stream).unflatten(-1, (self.heads, -1)).split(sizes, -1)
        squeezed, shared = self.squeeze(source).split((self.latent, self.decoupled), -1)
        contents, values = self.spread(self.norm(squeezed)).unflatten(-1, (self.heads, -1)).chunk(2, -1)
        pair = torch.stack([moving, shared[:, :, None].expand_as(moving)], 2)
        moving, shared = (pair if rotations is None else rotate(pair, rotations)).unbind(2)
        queries, keys = torch.cat([still, moving], -1), torch.cat([contents, shared], -1)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)

    def head_gradients(self) -> list[Float[Tensor, "H _ _"]]:
        asking, spread = self.asking.weight.grad, self.spread.weight.grad
        assert asking is not None
        assert spread is not None
        return [asking.unflatten(0, (self.heads, -1)), spread.unflatten(0, (self.heads, -1))[:, : self.head_dim]]


class ClassifierBlock(nn.Module):
    """Attention, then an MLP, each after a norm, with their outputs added to the residual stream."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.attention_norm, self.hidden_norm = nn.LayerNorm(design.width), nn.LayerNorm(design.width)
        self.attention = LatentAttention(design) if design.encoding.latent else Attention(design)
        self.attention_out = nn.Linear(design.width, design.width)
        self.hidden_in = nn.Linear(design.width, design.hidden)
        self.hidden_out = nn.Linear(design.hidden, design.width)

    def mlp(self, stream: Float[Tensor, "B T W"], drop: Drop = keep) -> Float[Tensor, "B T W"]:
        """The stream with the output of the MLP added."""
        hidden = drop(F.relu(self.hidden_in(self.hidden_norm(stream))))
        return stream + drop(self.hidden_out(hidden))


class Classifier(TokenModel):
    """Token ids, padded with 0, to the logits of the classes.

    >>> model = Classifier(Design(vocabulary=66, classes=18, tokens=30, encoding=Encoding(rotary=True)), seed=0)
    >>> model(torch.randint(1, 66, (4, 17))).shape
    torch.Size([4, 18])
    """

    name = ""  # what profiles call it

    def __init__(self, design: Design, seed: int = 0) -> None:
        super().__init__()
        self.design = design
        encoding = design.encoding
        self.embedding = nn.Embedding(design.vocabulary, design.width)
        if encoding.added == "learned":
            self.places = nn.Embedding(design.tokens, design.width)
        if encoding.bias.startswith("t5"):
            rows = 2 * FARTHEST + 1 if encoding.bias == "t5-plain" else BUCKETS
            self.distances = nn.Embedding(rows, design.heads)  # one table for all layers, as in T5
        self.blocks = nn.ModuleList(ClassifierBlock(design) for _ in range(design.layers))
        self.norm = nn.LayerNorm(design.width)
        self.readout = nn.Linear(design.width, design.classes)
        self._initialise(torch.Generator().manual_seed(seed))
        self._constants: dict[tuple[object, ...], Tensor] = {}

    def _initialise(self, draw: torch.Generator) -> None:
        """Standard normal embeddings, Glorot-uniform matrices, zero biases; the table of T5's bias as in T5."""
        for name, part in self.named_modules():
            if isinstance(part, nn.Embedding):
                nn.init.normal_(
                    part.weight, std=self.design.width**-0.5 if name == "distances" else 1.0, generator=draw
                )
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight, generator=draw)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(
        self, tokens: Int[Tensor, "B T"], *, drop: Drop = keep, watch: Watch = no_watch
    ) -> Float[Tensor, "B C"]:
        """The logits of the classes; `watch` is called with the attention inputs of each layer."""
        stream, context = self.begin(tokens)
        return self.proceed(0, drop(stream), context, drop, watch)

    def begin(self, tokens: Int[Tensor, "B T"]) -> tuple[Float[Tensor, "B T W"], BatchContext]:
        """The embeddings of these sequences, and what all layers share."""
        seen = mask = None
        if not self.design.unmasked and not bool((tokens != PAD).all()):
            seen = tokens != PAD
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(~seen, -math.inf)
            mask = mask[:, None, None]
        if self.design.causal:
            future = self._constant("causal", tokens.shape[1])
            mask = future if mask is None else mask + future
        stream = self.embedding(tokens)
        return stream, BatchContext(seen, mask, self.add_position(0, stream) if self.design.fixed_keys else None)

    def add_position(self, layer: int, stream: Float[Tensor, "B T W"]) -> Float[Tensor, "B T W"]:
        """The stream with positions added, before the first layer that has the encoding; otherwise unchanged."""
        encoding = self.design.encoding
        if encoding.added and layer == self.first_layer:
            tokens = stream.shape[1]
            stream = stream + (
                self.places.weight[:tokens] if encoding.added == "learned" else self._constant("sinusoids", tokens)
            )
        return stream

    @property
    def first_layer(self) -> int:
        """The first layer that has the encoding."""
        return range(self.design.layers)[slice(*self.design.encoding.layers)][0]

    def project(
        self, layer: int, stream: Float[Tensor, "B T W"], context: BatchContext, positions: bool = True
    ) -> AttentionInputs:
        """Queries, keys and values of a layer; without `positions`, neither rotated nor biased."""
        block, encoding, tokens = self.block(layer), self.design.encoding, stream.shape[1]
        normed = block.attention_norm(stream)
        source = normed if context.source is None else block.attention_norm(context.source)
        rotations = bias = None
        if positions and encoding.within(layer, self.design.layers):
            rotations = self._constant("phasors", tokens) if encoding.rotary else None
            bias = self._bias(tokens) if encoding.bias else None
        queries, keys, values = block.attention(normed, source, rotations)
        return AttentionInputs(queries, keys, values, bias, context.mask)

    def proceed(
        self,
        layer: int,
        stream: Float[Tensor, "B T W"],
        context: BatchContext,
        drop: Drop = keep,
        watch: Watch = no_watch,
    ) -> Float[Tensor, "B C"]:
        """From the stream before a layer to the logits of the classes."""
        for number in range(layer, self.design.layers):
            stream, block = self.add_position(number, stream), self.block(number)
            inputs = self.project(number, stream, context)
            watch(number, inputs)
            stream = block.mlp(stream + drop(block.attention_out(inputs.attended(drop))), drop)
        return self.finish(stream, context)

    def finish(self, stream: Float[Tensor, "B T W"], context: BatchContext) -> Float[Tensor, "B C"]:
        """From the final stream to the logits of the classes: a mean over tokens, then the read-out."""
        if context.seen is None:
            pooled = self.norm(stream).mean(1)
        else:
            pooled = (self.norm(stream) * context.seen[..., None]).sum(1) / context.seen.sum(1, keepdim=True)
        return self.readout(pooled)

    def block(self, layer: int) -> ClassifierBlock:
        block = self.blocks[layer]
        assert isinstance(block, ClassifierBlock)
        return block

    def rotation(self, layer: int) -> Rotation:
        """How position rotates the queries and keys of a layer, in the layout that `trace` uses."""
        design, encoding = self.design, self.design.encoding
        still = design.head_dim if encoding.latent else 0
        if not (encoding.rotary and encoding.within(layer, design.layers)):
            return Rotation.none(still + design.rotary_dim, self.device)
        angles = encoding.angles(design.heads, design.rotary_dim)[0].float().to(self.device)
        extra = design.head_dim if encoding.heads is not None else 0
        return Rotation.interleaved(angles, still + design.rotary_dim + extra, start=still)

    @torch.no_grad()
    def trace(self, input_ids: Int[Tensor, "B T"], positions: Sequence[int]) -> Trace:
        """One forward pass that keeps the queries at these positions and all keys.

        Where only some heads are rotary, each head gets a second, non-rotary set of dimensions, which holds the queries
        and keys of the other heads: this way one rotation describes the whole layer.
        """
        last = input_ids.shape[1] - 1
        if not self.design.causal and set(positions) != {last}:
            raise NotMeasurable(f"attention is bidirectional: only the last position, {last}, can be the query")
        layers: list[AttentionLayer] = []
        known = max(positions) + 1

        def watch(layer: int, inputs: AttentionInputs) -> None:
            queries, keys = inputs.queries, inputs.keys
            scaling, rotation = queries.shape[-1] ** -0.5, self.rotation(layer)
            if rotation.head_dim > queries.shape[-1]:
                rotary = torch.arange(self.design.heads, device=keys.device) < (self.design.encoding.heads or 0)
                queries, keys = (
                    torch.cat([part * rotary[:, None, None], part * ~rotary[:, None, None]], -1)
                    for part in (queries, keys)
                )
            parts = [
                part.expand(*part.shape[:2], last + 1, -1) for part in (inputs.bias, inputs.mask) if part is not None
            ]
            bias = sum(parts[1:], parts[0])[:, :, list(positions), :known] if parts else None
            layers.append(
                AttentionLayer(layer, queries[:, :, list(positions)], keys[:, :, :known], rotation, scaling, bias=bias)
            )

        logits = self(input_ids, watch=watch)
        absolute = bool(self.design.encoding.added)
        return Trace(tuple(layers), tuple(positions), positions[-1], logits, absolute=absolute)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def _bias(self, tokens: int) -> Float[Tensor, "1 H T T"]:
        if self.design.encoding.bias.startswith("alibi"):
            return self._constant("alibi", tokens)
        return self.distances(self._constant("buckets", tokens)).permute(2, 0, 1)[None]

    def _constant(self, what: str, tokens: int) -> Tensor:
        """A tensor that depends on the number of tokens only, cached."""
        key = (what, tokens, self.dtype, self.device)
        if key not in self._constants:
            design, encoding = self.design, self.design.encoding
            match what:
                case "causal":
                    made = torch.full((tokens, tokens), -math.inf, dtype=self.dtype).triu(1)[None, None]
                case "sinusoids":
                    made = sinusoids(tokens, design.width, encoding.base).to(self.dtype)
                case "alibi":
                    made = alibi(design.heads, tokens, encoding.bias == "alibi-exponential").to(self.dtype)[None]
                case "buckets":
                    made = t5_buckets(tokens, design.causal, encoding.bias == "t5-plain")
                case _:
                    made = phasors(encoding.angles(design.heads, design.rotary_dim), tokens, self.dtype)
            self._constants[key] = made.to(self.device)
        return self._constants[key]
