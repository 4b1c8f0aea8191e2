"""What a plane's rotation does to attention, against rotations that are really removed."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import wherewhat as ww
from tiny import tiny_model
from wherewhat.core.rotation_effect import rotation_effect
from wherewhat.errors import NotMeasurable
from wherewhat.lab import Shape, Transformer

# Grouped keys, soft-capping, interleaved planes, latent attention, sinks, partial rotation, layers without rotation,
# a window, and shared norms.
FAMILIES = ("llama", "gemma2", "gptj", "deepseek_v3", "gpt_oss", "gpt_neox", "smollm3", "mistral", "phi")
TOKENS = 21


@cache
def model_of(name: str) -> PreTrainedModel:
    return tiny_model(name)


def prompt() -> Tensor:
    return torch.randint(10, 128, (2, TOKENS), generator=torch.Generator().manual_seed(3))


def logits_at(trace: ww.Trace, layer: int, query: int) -> Tensor:
    """Logits before soft-capping and bias, of one query on the keys up to it: B H n."""
    seen = trace.attention[layer]
    keys = seen.keys.repeat_interleave(seen.queries.shape[1] // seen.keys.shape[1], dim=1)[:, :, : query + 1]
    at = trace.positions.index(query)
    return (seen.queries[:, :, at, None].double() @ keys.double().mT).squeeze(2) * seen.scaling


def rows_at(trace: ww.Trace, layer: int, query: int) -> Tensor:
    return trace.at(query).attention_rows(layer).double()


def attention_at(trace: ww.Trace, layer: int, query: int) -> Tensor:
    """Attention of one query on the keys up to it and on a sink, if there is one, in float64: B H n."""
    seen, logits = trace.attention[layer], logits_at(trace, layer, query)
    if seen.softcap is not None:
        logits = seen.softcap * (logits / seen.softcap).tanh()
    if seen.bias is not None:
        logits = logits + seen.bias[:, :, trace.positions.index(query), : query + 1]
    if seen.sinks is not None:
        logits = torch.cat([logits, seen.sinks.double()[None, :, None].expand(len(logits), -1, 1)], -1)
    return logits.softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_effect_is_the_variance_of_what_freezing_changes(name: str) -> None:
    """The plane is frozen in the model itself; logits of the frozen layer are captured again, query by query."""
    model, ids = model_of(name), prompt()
    trace = ww.capture(model, ids, queries=range(1, TOKENS))
    effect = rotation_effect(trace).effect
    for number, seen in enumerate(trace.attention):
        for frequency in range(1, len(seen.rotation.rotating) + 1):
            with ww.gate(model, freeze=[(seen.index, None, frequency)]):
                frozen = ww.capture(model, ids, queries=range(1, TOKENS))
            expected = torch.zeros(effect[:, 0, :, 0].shape, dtype=torch.float64)
            for query in range(1, TOKENS):
                before, after = logits_at(trace, number, query), logits_at(frozen, number, query)
                slope = 1.0 if seen.softcap is None else 1 - (before / seen.softcap).tanh().square()
                delta, weight = (before - after) * slope, rows_at(trace, number, query)
                mean = (weight * delta).sum(-1)
                expected += (weight * delta.square()).sum(-1) - mean.square()
            heads = seen.queries.shape[1]
            found = effect[:, number, :heads, frequency - 1].double()
            assert torch.allclose(found, expected[:, :heads] / (2 * (TOKENS - 1)), rtol=2e-3, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_to_second_order_the_effect_is_the_divergence_of_attention(name: str) -> None:
    """KL between a layer's attention with and without the rotation of one plane: the slowest one that changes more than
    rounding does."""
    model, ids = model_of(name), prompt()
    trace = ww.capture(model, ids, queries=range(1, TOKENS), check=True)
    seen = trace.attention[1]
    effects = rotation_effect(trace).effect[:, 1, : seen.queries.shape[1], : len(seen.rotation.rotating)]
    plane = int((effects.amin((0, 1)) > 1e-8).nonzero().max())
    effect = effects[..., plane].double()
    with ww.gate(model, freeze=[(seen.index, None, plane + 1)]):
        frozen = ww.capture(model, ids, queries=range(1, TOKENS))
    divergence = torch.zeros_like(effect)
    for query in range(1, TOKENS):
        before, after = attention_at(trace, 1, query), attention_at(frozen, 1, query)
        divergence += torch.where(before > 0, before * (before / after).log(), 0).sum(-1)
    assert torch.allclose(divergence / (TOKENS - 1), effect, rtol=0.1, atol=0)


def test_the_placement_table_holds_what_freezing_changes() -> None:
    """Freezing a plane puts every content at distance 0: the column of the query's own position."""
    model, ids = model_of("llama"), prompt()
    trace = ww.capture(model, ids, queries=range(1, TOKENS))
    effect = rotation_effect(trace).effect[:, 1].double()
    total = torch.zeros_like(effect)
    for query in range(1, TOKENS):
        alone = trace.at(query).placements(1).by_frequency()
        table = (alone.content[..., :, None, :] * alone.place[..., None, :, :]).sum(-1).double()  # content x position
        delta = table.diagonal(dim1=-2, dim2=-1) - table[..., -1]
        weight = rows_at(trace, 1, query)[:, :, None]
        total += (weight * delta.square()).sum(-1) - (weight * delta).sum(-1).square()
    assert torch.allclose(effect, total / (2 * (TOKENS - 1)), rtol=2e-3, atol=1e-7)


def test_the_norm_is_that_of_the_two_dimensions_of_a_plane() -> None:
    """Plane by plane; llama pairs dimension k with k + D / 2."""
    trace = ww.capture(model_of("llama"), prompt(), queries=range(1, TOKENS))
    norm = rotation_effect(trace).norm
    for number, seen in enumerate(trace.attention):
        half, group = seen.queries.shape[-1] // 2, seen.queries.shape[1] // seen.keys.shape[1]
        for head in range(seen.queries.shape[1]):
            for plane in range(half):
                both = [plane, plane + half]
                queries = seen.queries[:, head][..., both].norm(dim=-1).mean(-1)
                keys = seen.keys[:, head // group][..., both].norm(dim=-1).mean(-1)
                assert torch.allclose(norm[:, number, head, plane], seen.scaling * queries * keys, rtol=1e-4)


def test_a_model_without_rotation_is_refused() -> None:
    model = Transformer(Shape(41, 2, still_from=0))
    with pytest.raises(NotMeasurable, match="no layer"):
        rotation_effect(ww.capture(model, torch.randint(41, (1, 8)), queries=range(1, 8)))


def test_long_prompts_are_worked_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = ww.capture(model_of("gemma2"), prompt(), queries=range(1, TOKENS))
    whole = rotation_effect(trace)
    monkeypatch.setattr("wherewhat.core.rotation_effect.ELEMENTS", 1000)
    for one, other in zip(whole, rotation_effect(trace), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-8, equal_nan=True)
