"""What cannot be measured is refused, with one sentence that says what was given and what would work."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import wherewhat as ww
from known_layers import random_layer, trace_of
from wherewhat.core.trace import Trace
from wherewhat.results import MOST, check_count

VOCABULARY = 64


@pytest.fixture(autouse=True)
def as_users_call_it(monkeypatch):
    """Users have no run-time checks of shapes and types: what they see is the library's own refusal."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def refused():
    """Refused with a message of one line that matches."""

    def with_words(match: str, *also: type[Exception]):
        return pytest.raises((ww.BadInput, *also), match=rf"(?s)\A(?=[^\n]+\Z).*{match}")

    return with_words


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return small_llama()


@pytest.fixture
def trace() -> Trace:
    return trace_of(random_layer(tokens=9, kv_heads=2))


PROMPT = torch.arange(1, 13)[None]

BAD_PROMPTS = {
    "empty": (torch.empty(1, 0, dtype=torch.long), "the prompt is empty"),
    "no prompt at all": (torch.empty(0, 5, dtype=torch.long), "the prompt is empty"),
    "one token": (torch.tensor([[3]]), "one token"),
    "one axis": (torch.tensor([1, 2, 3]), r"\(batch, tokens\), got \(3,\)"),
    "three axes": (torch.ones(1, 2, 3, dtype=torch.long), r"\(batch, tokens\), got \(1, 2, 3\)"),
    "beyond the vocabulary": (torch.tensor([[1, 2, VOCABULARY]]), f"0 to {VOCABULARY - 1}"),
    "negative": (torch.tensor([[1, -1, 2]]), f"0 to {VOCABULARY - 1}"),
    "another device": (torch.ones(1, 4, dtype=torch.long, device="meta"), "the prompt is on meta, the model on cpu"),
    "words": ("Alice likes red.", "input_ids"),
    "a list": ([[1, 2, 3]], "input_ids"),
    "fractions": (torch.rand(1, 4), "input_ids"),
}


@pytest.mark.parametrize(("prompt", "words"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_a_prompt_that_cannot_be_run(model, refused, prompt, words):
    with refused(words):
        ww.capture(model, prompt)


@pytest.mark.parametrize("queries", [(), (0,), (12,), (-12,), (-13,), (3, 40)])
def test_queries_outside_the_prompt(model, refused, queries):
    with refused("must be positions 1 to 11"):
        ww.capture(model, PROMPT, queries=queries)


@pytest.mark.parametrize("level", ["heads", "", None])
def test_an_unknown_level(model, refused, level):
    with refused('level is "keys" or "prompt"'):
        ww.capture(model, PROMPT, level=level)


@pytest.mark.parametrize("thing", ["llama", None, torch.nn.Linear(2, 2)], ids=["text", "nothing", "module"])
def test_what_is_no_model(refused, thing):
    with refused(f"causal language model, got {type(thing).__name__}"):
        ww.capture(thing, PROMPT)


def test_a_model_without_weights(refused):
    with torch.device("meta"):
        model = small_llama()
    with refused("meta device"):
        ww.capture(model, PROMPT)


@pytest.mark.parametrize("name", ["q_proj", "k_proj"])
@pytest.mark.parametrize("seen_before", [False, True])
def test_weights_that_are_not_numbers(refused, name, seen_before):
    model = small_llama()
    if seen_before:
        ww.capture(model, PROMPT)
    getattr(model.model.layers[1].self_attn, name).weight.data[0, 0] = torch.nan
    with refused("attention layer 1 gives NaN or infinite queries or keys", ww.NotMeasurable):
        ww.capture(model, PROMPT)


def test_a_refused_capture_leaves_the_model_as_it_was():
    model = small_llama().train()
    before = model.config._attn_implementation
    model.model.layers[0].self_attn.q_proj.weight.data.fill_(torch.inf)
    with pytest.raises(ww.NotMeasurable):
        ww.capture(model, PROMPT)
    assert model.config._attn_implementation == before
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


BAD_BLOCKS = {
    "overlapping": ([(0, 3), (2, 5)], r"\(0, 3\) and \(2, 5\) overlap"),
    "twice the same": ([(0, 3), (0, 3)], "overlap"),
    "overlapping in another order": ([(4, 6), (0, 2), (5, 7)], r"\(4, 6\) and \(5, 7\) overlap"),
    "beyond the prompt": ([(0, 3), (9, 12)], r"\(9, 12\) exceeds the prompt: 8 tokens"),
    "with the query": ([(0, 3), (6, 9)], r"\(6, 9\) contains the query, which stands at 8"),
    "empty": ([(0, 2), (3, 3)], r"\(3, 3\) is empty"),
    "backwards": ([(0, 2), (5, 3)], r"\(5, 3\) is empty"),
    "before the prompt": ([(-2, 0), (3, 5)], r"\(-2, 0\) is empty or starts before the prompt"),
    "of different lengths": ([(0, 2), (3, 6)], r"different lengths \[2, 3\]"),
    "one": ([(0, 2)], r"1 block\(s\) to swap; at least two"),
    "none": ([], r"0 block\(s\) to swap; at least two"),
    "no pairs": ([(0, 1, 2), (3, 4, 5)], "block"),
    "plain numbers": ([0, 2, 4], "block"),
}


@pytest.mark.parametrize(("blocks", "words"), BAD_BLOCKS.values(), ids=BAD_BLOCKS)
def test_blocks_that_cannot_change_places(trace, refused, blocks, words):
    for measure in (ww.score, ww.score_frequencies):
        with refused(words):
            measure(trace, blocks=blocks)


def test_one_block_left_without_the_first_key(trace, refused):
    with refused(r"1 block\(s\) to swap"):
        ww.score(trace, blocks=[(0, 3), (3, 6)], without_first=True)


def test_a_prompt_with_one_key_has_nothing_to_swap(refused):
    with refused(r"1 block\(s\) to swap"):
        ww.score(trace_of(random_layer(tokens=2)))


@pytest.mark.parametrize("tau", [0, 0.0, -1e-4, float("nan"), float("-inf")])
def test_a_tau_that_is_not_positive(trace, refused, tau):
    for measure in (ww.score, ww.score_frequencies):
        with refused("tau must be positive, got"):
            measure(trace, tau=tau)


@pytest.mark.parametrize(
    ("layer", "head", "words"),
    [(1, 0, "layer 1: the model has 1"), (-2, 0, "layer -2"), (0, 2, "head 2: layer 0 has 2"), (0, -3, "head -3")],
)
def test_a_head_that_the_model_does_not_have(trace, refused, layer, head, words):
    with refused(words):
        trace.placement(layer, head)


def test_a_query_that_was_not_captured(trace, refused):
    with refused(r"position 5 was not captured; captured queries: \[8\]"):
        trace.at(5)


def test_a_path_that_leads_nowhere(tmp_path, refused):
    with refused("neither a folder, a .gguf file nor a hub id"):
        ww.load(tmp_path / "missing")


def test_a_gguf_file_that_is_missing(tmp_path, refused):
    with refused("missing.gguf: no such file"):
        ww.load(tmp_path / "missing.gguf")


def test_a_folder_without_a_config(tmp_path, refused):
    with refused("nor a language model"):
        ww.load(tmp_path)


def test_a_folder_without_weights(tmp_path, refused):
    small_llama().config.save_pretrained(tmp_path)
    with refused("cannot be loaded"):
        ww.load(tmp_path)


def test_a_config_that_is_no_json(tmp_path, refused):
    (tmp_path / "config.json").write_text("{")
    with refused("cannot be loaded"):
        ww.load(tmp_path)


def test_corrupt_weights(tmp_path, refused):
    small_llama().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with refused("cannot be loaded"):
        ww.load(tmp_path)


def test_a_corrupt_gguf_file(tmp_path, refused):
    small_llama().config.save_pretrained(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"no gguf at all")
    with refused("cannot be loaded"):
        ww.load(tmp_path / "model.gguf")


def test_weights_that_do_not_fit_the_config(tmp_path, refused):
    model = small_llama()
    model.save_pretrained(tmp_path)
    model.config.update({"hidden_size": 32})
    model.config.save_pretrained(tmp_path)
    with refused("cannot be loaded"):
        ww.load(tmp_path)


def test_weights_of_which_some_are_missing(tmp_path, refused):
    """Transformers would draw them at random, and every score of that layer would be noise."""
    model = small_llama()
    kept = {name: tensor for name, tensor in model.state_dict().items() if "layers.1.self_attn.q_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    with refused("q_proj"):
        ww.load(tmp_path)


def test_a_hub_id_that_nobody_has(monkeypatch, refused):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refused("nobody/nothing-of-that-name: cannot be loaded"):
        ww.load("nobody/nothing-of-that-name")


def test_a_loaded_model_is_ready_to_measure(tmp_path):
    small_llama().save_pretrained(tmp_path)
    model = ww.load(tmp_path)
    assert isinstance(model, transformers.PreTrainedModel)
    assert not model.training
    assert ww.score(ww.capture(model, PROMPT)).positional.shape == (1, 2, 2)


def test_the_smallest_and_the_largest_number_that_are_accepted() -> None:
    for count in (1, MOST):
        check_count(count, "samples")
    check_count(2, "pairs", least=2)
    for count, least in ((0, 1), (1, 2), (MOST + 1, 1)):
        with pytest.raises(ww.BadInput, match="samples must be at"):
            check_count(count, "samples", least)
