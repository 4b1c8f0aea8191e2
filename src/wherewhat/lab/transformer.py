"""One small Transformer: pre-norm, attention and MLP in parallel as in GPT-J, positions through rotation alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from ..core.rotation import Rotation
from ..core.trace import AttentionLayer, Trace
from .dropout import Dropout
from .fused import Product, fused_block

Drop = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Drop], Tensor]  # queries, keys, values, dropout
INIT_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and the angles by which its positions rotate queries and keys.

    `angles` are those of the planes of every head, fastest first; unless given, they are RoPE's with this `base`. A
    plane of angle 0 does not rotate, and no plane does in the layers from `still_from` on (NoPE layers). `gelu` is
    torch's `approximate`.

    >>> Shape(vocabulary=137).frequencies()[:2]
    (1.0, 0.8659643233600653)
    """

    vocabulary: int
    layers: int = 12
    heads: int = 1
    width: int = 128
    hidden: int = 512
    base: float = 10_000.0
    angles: tuple[float, ...] | None = None
    still_from: int | None = None
    gelu: str = "tanh"  # the approximation, or "none": exact

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def frequencies(self, layer: int = 0) -> tuple[float, ...]:
        """The angle of every plane of a layer."""
        planes = self.head_dim // 2
        if self.still_from is not None and layer >= self.still_from:
            return (0.0,) * planes
        if self.angles is not None:
            return (*self.angles, *(0.0,) * (planes - len(self.angles)))
        return tuple(self.base ** (-plane / planes) for plane in range(planes))


class TokenModel(nn.Module):
    """A model that reads token ids."""

    embedding: nn.Embedding

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding


class Block(nn.Module):
    """Attention and MLP in parallel, one norm before both, their outputs added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.sizes = (2 * shape.width, shape.width, shape.hidden)
        self.heads, self.gelu = shape.heads, shape.gelu
        self.norm = nn.LayerNorm(shape.width)
        self.inward = nn.Linear(shape.width, sum(self.sizes), bias=False)  # queries and keys, values, hidden units
        self.hidden_bias = nn.Parameter(torch.zeros(shape.hidden))
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.hidden_out = nn.Linear(shape.hidden, shape.width)

    def forward(
        self, stream: Float[Tensor, "B T W"], phasors: Complex[Tensor, "T 1 P"], drop: Drop, last: bool = False
    ) -> Float[Tensor, "B Q W"]:
        normed = self.norm(stream)
        if last:  # everything after attention depends on the last token alone
            of_attention, of_hidden = self.inward.weight.split((sum(self.sizes[:2]), self.sizes[2]))
            queries_keys, values = F.linear(normed, of_attention).split(self.sizes[:2], -1)
            hidden = F.linear(normed[:, -1:], of_hidden)
        else:
            queries_keys, values, hidden = self.inward(normed).split(self.sizes, -1)
        rotated = rotate(queries_keys.unflatten(-1, (2, self.heads, -1)), phasors)
        queries, keys = rotated.permute(2, 0, 3, 1, 4)  # B H T D
        values = values.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if last:
            queries, stream = queries[:, :, -1:], stream[:, -1:]
        attended = self.attend(queries, keys, values, drop).transpose(1, 2).flatten(2)
        activity = F.gelu(hidden + self.hidden_bias, approximate=self.gelu)
        return stream + drop(self.attention_out(attended)) + drop(self.hidden_out(activity))

    def attend(
        self,
        queries: Float[Tensor, "B H Q D"],
        keys: Float[Tensor, "B H T D"],
        values: Float[Tensor, "B H T E"],
        drop: Drop,
        /,
    ) -> Float[Tensor, "B H Q E"]:
        """Causal attention of the last Q tokens."""
        rows, tokens = queries.shape[2], keys.shape[2]
        logits = queries * queries.shape[-1] ** -0.5 @ keys.mT
        if rows > 1:
            future = torch.ones(rows, tokens, dtype=torch.bool, device=keys.device).triu(tokens - rows + 1)
            logits = logits.masked_fill(future, -math.inf)
        return drop(logits.softmax(-1)) @ values


class Transformer(TokenModel):
    """Token ids to logits of the next token.

    >>> model = Transformer(Shape(vocabulary=137, layers=2), seed=0)
    >>> model(torch.randint(137, (4, 17))).shape
    torch.Size([4, 17, 137])
    """

    name = ""  # what profiles call it

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.unembedding = nn.Linear(shape.width, shape.vocabulary)
        draw = torch.Generator().manual_seed(seed)
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=INIT_STD, generator=draw)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
        self._phasors: dict[tuple[object, ...], Tensor] = {}
        self._changes: list[Callable[[int, Attend], Attend]] = []  # to attention, currently in force

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        *,
        last: bool = False,
        drop: Drop = lambda values: values,
        drop_embedding: Drop | None = None,
        product: Product | None = None,
    ) -> Float[Tensor, "B Q V"]:
        """The logits after every token, or after the `last` one only (B, 1, V), which is cheaper.

        Embeddings get the same dropout as everything else, unless `drop_embedding` is given. With a `product`, blocks
        are fused and use this matrix product, which is faster with gradients; `drop` must then be a `Dropout`, and
        `attending` has no effect.
        """
        stream = (drop_embedding or drop)(self.embedding(input_ids))
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            phasors, alone = self.phasors(layer, input_ids.shape[1]), last and layer == self.shape.layers - 1
            if product is not None and not alone and sum(block.sizes) % 2 == 0:  # planes lie side by side in memory
                assert isinstance(drop, Dropout)
                stream = fused_block(block, stream, phasors, drop, product)
            else:
                stream = block(stream, phasors, drop, alone)
        return self.unembedding(self.norm(stream))

    def rotation(self, layer: int) -> Rotation:
        """How position rotates the queries and keys of a layer."""
        angles = torch.tensor(self.shape.frequencies(layer), device=self.device)
        return Rotation.interleaved(angles, self.shape.head_dim)

    def phasors(self, layer: int, tokens: int) -> Complex[Tensor, "T 1 P"]:
        """The rotation of every plane at every position, cached."""
        frequencies, dtype = self.shape.frequencies(layer), self.embedding.weight.dtype
        key = (frequencies, tokens, dtype, self.device)
        if key not in self._phasors:
            made = phasors(torch.tensor([frequencies], dtype=torch.float64), tokens, dtype)
            self._phasors[key] = made.to(self.device)
        return self._phasors[key]

    @contextmanager
    def attending(self, change: Callable[[int, Attend], Attend]) -> Iterator[None]:
        """Within this context, layer l computes attention with `change(l, attend)`, where `attend` is its own function.

        Of nested contexts, the outermost is the first to see queries and keys, and the last to see outputs.
        """
        self._changes.append(change)
        try:
            self._apply_changes()
            yield
        finally:
            self._changes.remove(change)
            self._apply_changes()

    def _apply_changes(self) -> None:
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        for layer, block in enumerate(blocks):
            vars(block).pop("attend", None)
            for change in reversed(self._changes):
                block.attend = change(layer, block.attend)

    @torch.no_grad()
    def trace(self, input_ids: Int[Tensor, "B T"], positions: Sequence[int]) -> Trace:
        """One forward pass that keeps the queries at these positions and all keys."""
        layers: list[AttentionLayer] = []
        seen, tokens = max(positions) + 1, input_ids.shape[1]

        def watch(layer: int, attend: Attend) -> Attend:
            def watched(queries: Tensor, keys: Tensor, values: Tensor, drop: Drop) -> Tensor:
                first = tokens - queries.shape[2]
                kept = queries[:, :, [position - first for position in positions]]
                layers.append(
                    AttentionLayer(layer, kept, keys[:, :, :seen], self.rotation(layer), keys.shape[-1] ** -0.5)
                )
                return attend(queries, keys, values, drop)

            return watched

        with self.attending(watch):
            logits = self(input_ids, last=tuple(positions) == (tokens - 1,))
        return Trace(tuple(layers), tuple(positions), positions[-1], logits[:, -1])


def phasors(angles: Float[Tensor, "H P"], tokens: int, dtype: torch.dtype) -> Complex[Tensor, "T H P"]:
    """The rotation exp(i * position * angle) of every plane of every head, for vectors of this dtype."""
    phases = torch.arange(tokens).double()[:, None, None] * angles
    made = torch.polar(torch.ones_like(phases), phases)
    return made.to(torch.complex128 if dtype == torch.float64 else torch.complex64)


def rotate(
    vectors: Float[Tensor, "B T two H D"],
    phasors: Complex[Tensor, "T _ P"],
) -> Float[Tensor, "B T two H D"]:
    """Rotate every pair of neighbouring dimensions by the phasor of its plane and position."""
    pairs = vectors.unflatten(-1, (-1, 2))
    if any(stride % 2 for stride in pairs.stride()[:-1]):  # a part of a tensor of odd width
        pairs = pairs.contiguous()
    planes = torch.view_as_complex(pairs)
    return torch.view_as_real(planes * phasors[:, None]).flatten(-2)
