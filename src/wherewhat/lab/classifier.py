"""One small Transformer that reads a sequence and names its class, with any positional encoding.

Pre-norm blocks, attention then MLP, as torch.nn.TransformerEncoder with `norm_first`; a mean over the tokens that are
not padding, and a linear read-out.
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
from .transformer import Drop, turn, turns

PAD = 0  # the token that fills up short sequences


def keep(values: Tensor) -> Tensor:
    """No dropout."""
    return values


@dataclass(frozen=True)
class Design:
    """Sizes of a classifier and how it is told positions.

    Two flaws of a published code can be had on purpose: `unmasked`, padding is attended to and counted in the mean;
    `fixed_keys`, the keys and values of every layer are made of the embeddings.
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
            raise BadInput(f"{self.heads} heads do not share a width of {self.width} in pairs of dimensions")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def turning_dim(self) -> int:
        """The dimensions of a head among which some may turn."""
        return self.encoding.decoupled if self.encoding.latent else self.head_dim


class Reading(NamedTuple):
    """What all layers need to know of some sequences: which tokens count (None: all), what may not be attended to,
    and what fixed keys are made of."""

    seen: Bool[Tensor, "B T"] | None
    mask: Float[Tensor, "#B 1 #T T"] | None
    source: Float[Tensor, "B T W"] | None


class Asked(NamedTuple):
    """What the heads of a layer attend with: queries and keys in place, values, and what joins the logits."""

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
        """What the heads bring, side by side."""
        return (drop(self.logits().softmax(-1)) @ self.values).transpose(1, 2).flatten(2)


Watch = Callable[[int, Asked], None]


def look_away(layer: int, asked: Asked) -> None:
    """Nobody watches."""


class Attention(nn.Module):
    """Queries, keys and values of all heads from one product."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.heads = design.heads
        self.inward = nn.Linear(design.width, 3 * design.width)

    def forward(
        self,
        stream: Float[Tensor, "B T W"],
        source: Float[Tensor, "B T W"],
        wave: Complex[Tensor, "T _ P"] | None,
    ) -> tuple[Float[Tensor, "B H T D"], ...]:
        if source is stream:
            made = self.inward(stream)
        else:
            parts = zip((stream, source, source), self.inward.weight.chunk(3), self.inward.bias.chunk(3), strict=True)
            made = torch.cat([F.linear(*part) for part in parts], -1)
        made = made.unflatten(-1, (3, self.heads, -1))
        pair, values = made[:, :, :2], made[:, :, 2]
        queries, keys = (pair if wave is None else turn(pair, wave)).permute(2, 0, 3, 1, 4)
        return queries, keys, values.transpose(1, 2)

    def head_gradients(self) -> list[Float[Tensor, "H D W"]]:
        """Of the weights of each head's queries and of its keys, where its logits are decided."""
        assert self.inward.weight.grad is not None
        return [part.unflatten(0, (self.heads, -1)) for part in self.inward.weight.grad.chunk(3)[:2]]


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values from a few numbers a token, position in dimensions of its own."""

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
        wave: Complex[Tensor, "T _ P"] | None,
    ) -> tuple[Float[Tensor, "B H T _"], ...]:
        sizes = (self.head_dim, self.decoupled)
        still, moving = self.asking(stream).unflatten(-1, (self.heads, -1)).split(sizes, -1)
        squeezed, shared = self.squeeze(source).split((self.latent, self.decoupled), -1)
        contents, values = self.spread(self.norm(squeezed)).unflatten(-1, (self.heads, -1)).chunk(2, -1)
        pair = torch.stack([moving, shared[:, :, None].expand_as(moving)], 2)
        moving, shared = (pair if wave is None else turn(pair, wave)).unbind(2)
        queries, keys = torch.cat([still, moving], -1), torch.cat([contents, shared], -1)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)

    def head_gradients(self) -> list[Float[Tensor, "H _ _"]]:
        asking, spread = self.asking.weight.grad, self.spread.weight.grad
        assert asking is not None
        assert spread is not None
        return [asking.unflatten(0, (self.heads, -1)), spread.unflatten(0, (self.heads, -1))[:, : self.head_dim]]


class ClassifierBlock(nn.Module):
    """Attention, then an MLP, each behind a norm and added to the stream."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.attention_norm, self.hidden_norm = nn.LayerNorm(design.width), nn.LayerNorm(design.width)
        self.attention = LatentAttention(design) if design.encoding.latent else Attention(design)
        self.attention_out = nn.Linear(design.width, design.width)
        self.hidden_in = nn.Linear(design.width, design.hidden)
        self.hidden_out = nn.Linear(design.hidden, design.width)

    def think(self, stream: Float[Tensor, "B T W"], drop: Drop = keep) -> Float[Tensor, "B T W"]:
        """What the MLP makes of the stream."""
        hidden = drop(F.relu(self.hidden_in(self.hidden_norm(stream))))
        return stream + drop(self.hidden_out(hidden))


class Classifier(nn.Module):
    """Token ids, filled up with 0, to the logits of the classes.

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
            self.distances = nn.Embedding(rows, design.heads)  # one table for all layers, as T5 has it
        self.blocks = nn.ModuleList(ClassifierBlock(design) for _ in range(design.layers))
        self.norm = nn.LayerNorm(design.width)
        self.readout = nn.Linear(design.width, design.classes)
        self._start(torch.Generator().manual_seed(seed))
        self._kept: dict[tuple[object, ...], Tensor] = {}

    def _start(self, draw: torch.Generator) -> None:
        """As PyTorch starts: words with spread 1, matrices by Glorot's rule, biases 0; T5's table as T5 does."""
        for name, part in self.named_modules():
            if isinstance(part, nn.Embedding):
                nn.init.normal_(
                    part.weight, std=self.design.width**-0.5 if name == "distances" else 1.0, generator=draw
                )
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight, generator=draw)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(
        self, tokens: Int[Tensor, "B T"], *, drop: Drop = keep, watch: Watch = look_away
    ) -> Float[Tensor, "B C"]:
        """The logits of the classes; `watch` sees what each layer attends with."""
        stream, reading = self.begin(tokens)
        return self.proceed(0, drop(stream), reading, drop, watch)

    def begin(self, tokens: Int[Tensor, "B T"]) -> tuple[Float[Tensor, "B T W"], Reading]:
        """The stream at its start, and what all layers need to know of these sequences."""
        seen = mask = None
        if not self.design.unmasked and not bool((tokens != PAD).all()):
            seen = tokens != PAD
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(~seen, -math.inf)
            mask = mask[:, None, None]
        if self.design.causal:
            unseen = self._constant("causal", tokens.shape[1])
            mask = unseen if mask is None else mask + unseen
        stream = self.embedding(tokens)
        return stream, Reading(seen, mask, self.tell(0, stream) if self.design.fixed_keys else None)

    def tell(self, layer: int, stream: Float[Tensor, "B T W"]) -> Float[Tensor, "B T W"]:
        """What is added to the stream before the first of the layers in which the encoding is at work."""
        encoding = self.design.encoding
        if encoding.added and layer == range(self.design.layers)[slice(*encoding.layers)][0]:
            tokens = stream.shape[1]
            stream = stream + (
                self.places.weight[:tokens] if encoding.added == "learned" else self._constant("sinusoids", tokens)
            )
        return stream

    def ask(self, layer: int, stream: Float[Tensor, "B T W"], reading: Reading) -> Asked:
        """What the heads of a layer attend with."""
        block, encoding, tokens = self.block(layer), self.design.encoding, stream.shape[1]
        normed = block.attention_norm(stream)
        source = normed if reading.source is None else block.attention_norm(reading.source)
        wave = bias = None
        if encoding.within(layer, self.design.layers):
            wave = self._constant("turns", tokens) if encoding.rotary else None
            bias = self._bias(tokens) if encoding.bias else None
        queries, keys, values = block.attention(normed, source, wave)
        return Asked(queries, keys, values, bias, reading.mask)

    def proceed(
        self,
        layer: int,
        stream: Float[Tensor, "B T W"],
        reading: Reading,
        drop: Drop = keep,
        watch: Watch = look_away,
    ) -> Float[Tensor, "B C"]:
        """From the stream before a layer to the logits of the classes."""
        for number in range(layer, self.design.layers):
            stream, block = self.tell(number, stream), self.block(number)
            asked = self.ask(number, stream, reading)
            watch(number, asked)
            stream = block.think(stream + drop(block.attention_out(asked.attended(drop))), drop)
        return self.finish(stream, reading)

    def finish(self, stream: Float[Tensor, "B T W"], reading: Reading) -> Float[Tensor, "B C"]:
        """From the last stream to the logits of the classes: the mean of the tokens that count, read out."""
        if reading.seen is None:
            pooled = self.norm(stream).mean(1)
        else:
            pooled = (self.norm(stream) * reading.seen[..., None]).sum(1) / reading.seen.sum(1, keepdim=True)
        return self.readout(pooled)

    def block(self, layer: int) -> ClassifierBlock:
        block = self.blocks[layer]
        assert isinstance(block, ClassifierBlock)
        return block

    def rotation(self, layer: int) -> Rotation:
        """How position turns the queries and keys of a layer, as `trace` lays them out."""
        design, encoding = self.design, self.design.encoding
        still = design.head_dim if encoding.latent else 0
        if not (encoding.rotary and encoding.within(layer, design.layers)):
            return Rotation.none(still + design.turning_dim, self.device)
        angles = encoding.angles(design.heads, design.turning_dim)[0].float().to(self.device)
        extra = design.head_dim if encoding.heads is not None else 0
        return Rotation.interleaved(angles, still + design.turning_dim + extra, start=still)

    @torch.no_grad()
    def trace(self, input_ids: Int[Tensor, "B T"], positions: Sequence[int]) -> Trace:
        """One forward pass, of which the queries at these positions and all keys are kept.

        Where only some heads turn, each head gets a second set of dimensions, which do not turn: the heads that stand
        still live there, so that one rotation describes the layer.
        """
        last = input_ids.shape[1] - 1
        if not self.design.causal and set(positions) != {last}:
            raise NotMeasurable(f"it looks both ways: queries are seen with all keys from the last token, {last}, only")
        layers: list[AttentionLayer] = []
        known = max(positions) + 1

        def watch(layer: int, asked: Asked) -> None:
            queries, keys = asked.queries, asked.keys
            scaling, rotation = queries.shape[-1] ** -0.5, self.rotation(layer)
            if rotation.head_dim > queries.shape[-1]:
                turning = torch.arange(self.design.heads, device=keys.device) < (self.design.encoding.heads or 0)
                queries, keys = (
                    torch.cat([part * turning[:, None, None], part * ~turning[:, None, None]], -1)
                    for part in (queries, keys)
                )
            parts = [
                part.expand(*part.shape[:2], last + 1, -1) for part in (asked.bias, asked.mask) if part is not None
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
        """What depends on the number of tokens alone, kept for the next call."""
        key = (what, tokens, self.dtype, self.device)
        if key not in self._kept:
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
                    made = turns(encoding.angles(design.heads, design.turning_dim), tokens, self.dtype)
            self._kept[key] = made.to(self.device)
        return self._kept[key]
