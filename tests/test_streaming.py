"""Heads that stream see the first and the last tokens only: against eager attention with an explicit mask, and against
a key-value cache that really drops tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache

import wherewhat as ww
from conftest import weights
from test_gate import logits, prompt
from tiny import tiny_model
from wherewhat.lab import Shape, Transformer
from wherewhat.prompts import repeats
from wherewhat.studies.ablation.patterns import distant_mass, echo_and_induction
from wherewhat.tracing.hook import gates, implementation

SINK, RECENT = 2, 5
# Plain attention, grouped keys, a window with soft-capping, learned sinks, interleaved planes.
FAMILIES = {"plain": ("llama", {"num_key_value_heads": 4}), "llama": ("llama", {})} | {
    name: (name, {}) for name in ("gemma2", "gpt_oss", "cohere", "gpt2")
}
STREAM = [(0, None), (2, 1), (2, 2), (3, 0)]


@cache
def model_of(name: str) -> PreTrainedModel:
    family, options = FAMILIES[name]
    return tiny_model(family, **options)


@contextmanager
def explicitly_masked(model: PreTrainedModel, stream: list[Any]) -> Iterator[None]:
    """Every attention module gets a mask for each of its heads, made in plain loops."""

    def hide(number: int) -> Any:
        def enter(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
            mask = given["attention_mask"]  # the model's own: causal, and its window, if it has one
            tokens = mask.shape[-1]
            mask = mask.expand(-1, 4, -1, -1).clone()
            for head in range(4):
                if (number, head) in stream or (number, None) in stream:
                    for query in range(tokens):
                        for key in range(query + 1):
                            if key >= SINK and query - key >= RECENT:
                                mask[:, head, query, key] = torch.finfo(mask.dtype).min
            return args, given | {"attention_mask": mask}

        return enter

    with ExitStack() as stack, implementation(model, "eager"):
        attending = [one for name, one in model.named_modules() if name.endswith((".self_attn", ".attn"))]
        assert len(attending) == 4
        for number, module in enumerate(attending):
            stack.callback(module.register_forward_pre_hook(hide(number), with_kwargs=True).remove)
        yield


@pytest.mark.parametrize("name", FAMILIES)
def test_streaming_heads_attend_as_with_an_explicit_mask(name: str) -> None:
    model = model_of(name)
    with explicitly_masked(model, STREAM):
        expected = logits(model, use_cache=False)
    plain = logits(model)
    assert (plain - expected).abs().max() > 1e-3
    with ww.gate(model, stream=STREAM, sink=SINK, recent=RECENT):
        assert torch.allclose(logits(model), expected, atol=2e-5)
        if name != "gpt2":
            with implementation(model, "eager"):
                assert torch.allclose(logits(model), expected, atol=2e-5)
    assert torch.equal(logits(model), plain)
    assert not gates


@pytest.mark.parametrize("name", ["plain", "llama"])
def test_all_heads_streaming_is_a_cache_that_drops_tokens(name: str) -> None:
    """One token at a time, with a cache from which everything between the sinks and the recent tokens is deleted."""
    model, ids = model_of(name), prompt(20)
    dropping, rows = DynamicCache(), []
    for at in range(20):
        with torch.no_grad():
            out = model(ids[:, at : at + 1], past_key_values=dropping, position_ids=torch.tensor([[at]]))
        rows.append(out.logits)
        for layer in dropping.layers:
            if layer.keys.shape[2] > SINK + RECENT - 1:
                keep = [*range(SINK), *range(layer.keys.shape[2] - RECENT + 1, layer.keys.shape[2])]
                layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
    with ww.gate(model, stream=[(None, None)], sink=SINK, recent=RECENT):
        assert torch.allclose(logits(model, ids), torch.cat(rows, 1), atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_with_a_cache_and_with_padding_the_same_tokens_are_seen(name: str) -> None:
    model, ids = model_of(name), prompt(30)
    with ww.gate(model, stream=STREAM, sink=SINK, recent=RECENT):
        whole = logits(model, ids)
        past, parts = DynamicCache(config=model.config), []
        for at, stop in [(0, 13), *((at, at + 1) for at in range(13, 30))]:  # past the window of gemma2
            parts.append(logits(model, ids[:, at:stop], past_key_values=past))
        assert torch.allclose(torch.cat(parts, 1), whole, atol=2e-5)
        padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
        mask = (torch.arange(33) > 2).long().expand(2, -1)
        places = (torch.arange(33) - 3).clamp(min=0).expand(2, -1)
        left = logits(model, padded, attention_mask=mask, position_ids=places)
        assert torch.allclose(left[:, 3:], whole, atol=2e-5)


def test_a_capture_sees_what_a_streaming_head_sees() -> None:
    model, ids = model_of("llama"), prompt()
    with ww.gate(model, stream=[(1, 2)], sink=SINK, recent=RECENT):
        trace = ww.capture(model, ids)
        with implementation(model, "eager"), torch.no_grad():
            shown = model(input_ids=ids, output_attentions=True).attentions
    for number in range(4):
        assert torch.allclose(trace.attention_rows(number), shown[number][:, :, -1], atol=1e-5)
    hidden = trace.attention_rows(1)[:, :, SINK:-RECENT]
    assert not hidden[:, 2].any()
    assert (hidden[:, [0, 1, 3]].sum(-1) > 0.01).all()


def test_nested_windows_hide_what_either_hides() -> None:
    model = model_of("llama")
    with ww.gate(model, stream=STREAM, sink=SINK, recent=RECENT), ww.gate(model, stream=STREAM, sink=1, recent=9):
        both = logits(model)
    with ww.gate(model, stream=STREAM, sink=1, recent=RECENT):
        narrow = logits(model)
    assert not torch.equal(both, logits(model))
    assert (both - narrow).abs().max() > 1e-6  # token 1 stays visible within 9 tokens of it
    with ww.gate(model, stream=STREAM, sink=0, recent=100):
        assert torch.allclose(logits(model), logits(model_of("llama")), atol=1e-5)


def test_what_cannot_stream_is_refused() -> None:
    model, lab = model_of("llama"), Transformer(Shape(vocabulary=128, layers=1, heads=2, width=32, hidden=64))
    for stream, options, reason in [
        ([(0, 1, 3)], {}, "heads stream as a whole"),
        ([(9, 1)], {}, "layer 9: attention is in layers 0 to 3"),
        ([(0, 1)], {"recent": 0}, "recent at least 1; got 4 and 0"),
    ]:
        with pytest.raises(ww.BadInput, match=reason), ww.gate(model, stream=stream, **options):
            pass
    for other in (lab, tiny_model("gptj")):
        with pytest.raises(ww.NotMeasurable, match="cannot stream"), ww.gate(other, stream=[(0, 0)]):
            pass
    with ww.gate(model, stream=[(0, 1)]), pytest.raises(ww.NotMeasurable, match="static cache"):
        logits(model, past_key_values=StaticCache(config=model.config, max_cache_len=40))
    refused = pytest.raises(ww.NotMeasurable, match="attn_implementation='sdpa', not 'flex_attention'")
    with implementation(model, "flex_attention"), ww.gate(model, stream=[(0, 1)]), refused:
        logits(model)


@pytest.mark.parametrize("name", ["plain", "llama"])
def test_criteria_are_the_attention_that_the_model_itself_shows(name: str) -> None:
    """Distant mass, echo and induction, from eager attention matrices in plain loops."""
    model, ids = model_of(name), prompt(30)
    once = prompt(13, batch=1)[0].tolist()
    repeated = ww.Prompt((5, *once, *once[:-1]), tuple((at, at + 1) for at in range(1, 14)))
    mass, copies = distant_mass(model, ids, SINK, RECENT), echo_and_induction(model, [repeated])
    with implementation(model, "eager"), torch.no_grad():
        shown = torch.stack(model(input_ids=ids, output_attentions=True).attentions)  # L B H Q T
        again = torch.stack(model(input_ids=torch.tensor([repeated.ids]), output_attentions=True).attentions)
    for layer in range(4):
        for head in range(4):
            hidden = [
                sum(float(row[query, key]) for key in range(SINK, query - RECENT + 1))
                for row in shown[layer, :, head]
                for query in range(SINK + RECENT, 30)
            ]
            assert abs(sum(hidden) / len(hidden) - float(mass[layer, head])) < 1e-5
            row = again[layer, 0, head]
            on_copy = [float(row[at, at - 13] + row[at, at - 12]) for at in range(14, len(repeated.ids))]
            assert abs(sum(on_copy) / len(on_copy) - float(copies[layer, head])) < 1e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[ww.Ablation, ww.Profile]:
    folder = tmp_path_factory.mktemp("stream")
    model, tokenizer = str(weights("stories260K")), ww.load_tokenizer(weights("stories260K"))
    profile = ww.profile(model, ww.binding(tokenizer, 4, 2))
    ww.export(profile, to="duo", path=folder / "pattern", sink=2, recent=16)
    words = ["need", str(folder / "pattern"), "0.*"]
    made = ww.ablate(model, profile=profile, stream=words, fraction=[0.25, 0.75], pairs=4, samples=2, draws=2)
    return made, profile


@pytest.mark.slow
@pytest.mark.weights
def test_key_heads_with_the_smallest_scores_stream_as_a_whole(found) -> None:
    made, profile = found
    trials = made.trials
    assert trials is not None
    key_of = {(row.layer, row.head): row.kv_head for row in profile.heads.itertuples()}
    size = profile.heads.groupby(["layer", "kv_head"]).size()
    score = {}
    for row in profile.heads.itertuples():
        place, own = (row.layer, row.kv_head), max(row.symbolic * row.on_blocks, row.induction)
        score[place] = max(score.get(place, 0.0), own)
    settings = made.about["settings"]
    assert (settings["sink"], settings["recent"]) == (2, 16)  # those of the pattern
    for share in (0.25, 0.75):
        (need,) = trials[trials["what"] == f"{share:.0%} by need"]["chosen"]
        (pattern,) = trials[trials["what"] == f"{share:.0%} by pattern"]["chosen"]
        assert need == pattern
        heads = [tuple(map(int, one.split("."))) for one in need.split(", ")]
        keys = [(layer, key_of[layer, head]) for layer, head in heads]
        assert all(keys.count(key) == size[key] for key in keys)
        assert len(set(keys)) == round(share * len(size))
        assert max(score[key] for key in keys) <= min(score[key] for key in score if key not in keys)
    drawn = trials[trials["what"] == "random"]
    for row in drawn.itertuples():
        (like,) = trials[trials["what"] == row.control_of.split(", ")[0]]["chosen"]
        layers = [sorted(int(one.split(".")[0]) for one in text.split(", ")) for text in (row.chosen, like)]
        assert layers[0] == layers[1]


@pytest.mark.slow
@pytest.mark.weights
def test_what_streaming_costs_is_what_the_gate_costs(found) -> None:
    made, _ = found
    model, tokenizer = ww.load(weights("stories260K")), ww.load_tokenizer(weights("stories260K"))
    (after,) = made.effects.query("what == '0.*' and measure == 'repeat_loss'")["after"]
    twice = [[*one.ids, one.answer] for one in repeats(tokenizer, 48, 2, 0)]
    with ww.gate(model, stream=[(0, None)], sink=2, recent=16):
        losses = torch.nn.functional.cross_entropy(
            logits(model, torch.tensor(twice)[:, :-1]).mT, torch.tensor(twice)[:, 1:], reduction="none"
        )
    assert abs(float(losses[:, -47:].mean()) - after) < 1e-4
    assert "give more --pairs" not in str(made.about["warnings"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stream": "need"}, "streaming by need uses the scores of a profile"),
        ({"stream": "0.1", "recent": 0}, "recent at least 1"),
        ({"heads": "0.1", "sink": 2}, "name these with --stream"),
        ({"stream": "slowest half"}, "does not choose heads"),
    ],
)
def test_streams_that_cannot_be_measured_are_refused_before_a_model_is_loaded(options, reason) -> None:
    with pytest.raises(ww.BadInput, match=reason):
        ww.ablate("no such model", **options)
    with pytest.raises(ww.BadInput, match="a model of the lab cannot stream"):
        ww.ablate("number", stream="0.1")
