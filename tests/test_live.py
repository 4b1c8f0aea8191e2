"""What the live page's server answers, compared with Hugging Face's own code, brute force and the library."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import brute_force
import wherewhat as ww
from conftest import weights
from live_page import Client, decoded, served
from wherewhat.prompts.text import own_prompts
from wherewhat.serve.server import LivePage

TEXT = "Here is a list. Ben has a dog. Tom has a cow. Sam has a car. Mom has a ball. Ben has a"
UNIT = 1 / 65535  # attention is sent as whole numbers of this


@pytest.fixture(scope="module")
def tokenizer():
    return ww.load_tokenizer(weights("stories260K"))


@pytest.fixture(scope="module")
def page(stories260k, tokenizer) -> Iterator[LivePage]:
    with served(stories260k, tokenizer=tokenizer) as running:
        yield running


@pytest.fixture(scope="module")
def client(page) -> Client:
    return Client(page)


@pytest.fixture(scope="module")
def measured(client):
    return client.ask("measure", text=TEXT)


def eager(model, ids: list[int], **options):
    """Hugging Face's own eager pass."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False, **options)
    finally:
        model.set_attn_implementation(before)


def scores_of(answer) -> np.ndarray:
    return np.stack([decoded(answer["arrays"][name]) for name in ("positional", "symbolic")])


def test_scores_shown_equal_those_of_the_library(stories260k, tokenizer, measured):
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    assert measured["ids"] == ids[0].tolist()
    blocks = [tuple(block) for block in measured["blocks"]]
    said = ["".join(measured["tokens"][start:stop]).strip() for start, stop in blocks]
    assert said == ["Ben has a dog.", "Tom has a cow.", "Sam has a car.", "Mom has a ball."]
    own = ww.score(ww.capture(stories260k, ids), blocks=blocks)
    expected = torch.stack([own.positional[0], own.symbolic[0]]).flatten(1)
    np.testing.assert_allclose(scores_of(measured), expected, atol=1e-6)
    assert measured["passes"] == 1


def test_attention_shown_equals_eager_attention_from_every_query(stories260k, client, measured):
    attentions = eager(stories260k, measured["ids"], output_attentions=True).attentions
    for query in (len(measured["ids"]) - 1, 20, 5):
        answer = client.ask("measure", text=TEXT, query=query, blocks="tokens")
        rows = decoded(answer["arrays"]["token_attention"]).reshape(-1, query + 1) * UNIT
        own = torch.cat([layer[0, :, query, : query + 1] for layer in attentions])
        np.testing.assert_allclose(rows, own, atol=UNIT)
        assert answer["passes"] == 0  # the same forward pass, seen from elsewhere


def test_another_query_is_measured_as_the_prompt_that_ends_there(stories260k, client, measured):
    answer = client.ask("measure", text=TEXT, query=20, blocks="tokens")
    ids = torch.tensor([measured["ids"][:21]])
    own = ww.score(ww.capture(stories260k, ids), blocks=[(at, at + 1) for at in range(1, 20)])
    np.testing.assert_allclose(scores_of(answer), torch.cat([own.positional, own.symbolic]).flatten(1), atol=1e-5)


def test_next_tokens_and_continuations_equal_generate(stories260k, tokenizer, client, measured):
    ids = torch.tensor([measured["ids"]])
    chances = eager(stories260k, measured["ids"]).logits[0, -1].softmax(-1)
    top = chances.topk(10)
    assert [one["id"] for one in measured["next"]] == top.indices.tolist()
    np.testing.assert_allclose([one["p"] for one in measured["next"]], top.values, atol=1e-5)
    assert [one["text"] for one in measured["next"]] == [tokenizer.decode([one]) for one in top.indices.tolist()]
    written = stories260k.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    found = client.ask("continue", text=TEXT, number=12)
    assert found["ids"] == written[0, ids.shape[1] :].tolist()
    assert found["text"] == tokenizer.decode(found["ids"])


def test_attention_after_a_swap_is_what_the_layer_gives_when_the_swap_is_made_by_hand(stories260k, client, measured):
    ids, blocks = torch.tensor([measured["ids"]]), measured["blocks"]
    order = torch.arange(ids.shape[1])
    (a, b), (c, d) = blocks[0], blocks[2]
    order[a:b], order[c:d] = torch.arange(c, d), torch.arange(a, b)
    answer = client.ask("swap", text=TEXT, swap=[0, 2])
    assert answer["passes"] == 0
    rows = decoded(answer["arrays"]["token_attention"]).reshape(-1, ids.shape[1]) * UNIT
    before = stories260k.config._attn_implementation
    stories260k.set_attn_implementation("eager")
    try:
        modules = brute_force.attention_modules(stories260k, ids)
        own = torch.cat([brute_force.last_rows(stories260k, ids, one, order[None])[0] for one in modules])
    finally:
        stories260k.set_attn_implementation(before)
    np.testing.assert_allclose(rows, own, atol=2e-5)
    assert client.refused("swap", text=TEXT, swap=[0, 99])[0] == 400


@pytest.mark.parametrize(
    ("choose", "how", "options"),
    [
        ("1.2, 3.0", "zero", {"ablate": [(1, 2), (3, 0)]}),
        ("1.2", "mean", {"ablate": [(1, 2)]}),
        ("slowest half", "drop", {"drop": [(None, None, "slowest half")]}),
        ("fastest half of 2.1", "freeze", {"freeze": [(2, 1, "fastest half")]}),
    ],
)
def test_an_ablation_equals_a_gate(stories260k, client, measured, choose, how, options):
    ids = torch.tensor([measured["ids"]])
    if how == "mean":
        options = options | {"mean_of": ids}
    answer = client.ask("ablate", text=TEXT, choose=choose, how=how)
    with ww.gate(stories260k, **options), torch.no_grad():
        chances = stories260k(ids).logits[0, -1].softmax(-1)
    np.testing.assert_allclose([one["p"] for one in answer["after"]], chances.topk(10).values, atol=1e-6)
    assert answer["before"] == measured["next"]
    token = answer["followed"]["id"]
    assert token == measured["next"][0]["id"]
    assert answer["followed"]["after"] == pytest.approx(float(chances[token]), abs=1e-6)


def test_random_heads_are_others_of_the_same_layers_and_are_drawn_again_on_request(client):
    drawn = set()
    for draw in range(6):
        answer = client.ask("ablate", text=TEXT, choose="1.2, 3.0, 3.5", draw=draw)
        heads = answer["drawn"].split(", ")
        assert sorted(head.split(".")[0] for head in heads) == ["1", "3", "3"]
        assert not {"1.2", "3.0", "3.5"} & set(heads)
        drawn.add(answer["drawn"])
    assert len(drawn) > 1
    assert client.ask("ablate", text=TEXT, choose="1.2", draw=3) == client.ask(
        "ablate", text=TEXT, choose="1.2", draw=3
    )


def test_the_most_retrieving_heads_here_are_those_with_the_most_attention_on_the_answer(client, tokenizer):
    answer = tokenizer.convert_tokens_to_ids("▁do")  # dog
    plain = client.ask("measure", text=TEXT)
    holding = [block for block in plain["blocks"] if answer in plain["ids"][slice(*block)]]
    found = client.ask("ablate", text=TEXT, choose="3 most retrieving heads", answer=answer)
    assert len(holding) == 1
    rows = decoded(plain["arrays"]["token_attention"]).reshape(len(plain["labels"]), -1).astype(float)
    order = rows[:, slice(*holding[0])].sum(1).argsort()[::-1]
    assert sorted(found["chosen"].split(", ")) == sorted(plain["labels"][at] for at in order[:3])


def test_the_lines_of_python_run_and_give_what_is_shown(page, client, tmp_path):
    """For a model that can be loaded by its name."""
    with served(str(weights("stories260K"))) as named:
        tab = Client(named)
        answer = tab.ask("measure", text=TEXT, query=20, blocks="tokens")
        space: dict = {}
        exec("\n".join(tab.ask("details", text=TEXT, query=20, blocks="tokens")["python"]), space)
        own = torch.cat([space["scores"].positional, space["scores"].symbolic]).flatten(1)
        np.testing.assert_allclose(scores_of(answer), own, atol=1e-5)
        ablated = tab.ask("ablate", text=TEXT, choose="1.2", how="mean")
        exec("\n".join(ablated["python"]), space)
        chances = space["logits"].softmax(-1).topk(10).values
        np.testing.assert_allclose([one["p"] for one in ablated["after"]], chances, atol=1e-6)


def test_the_lines_of_python_run_for_a_model_of_the_lab():
    with served("letter") as page:
        tab = Client(page)
        made = tab.ask("example", name="letter")
        space: dict = {}
        ablated = tab.ask("ablate", choose="1.0", **made)
        exec("\n".join(ablated["python"]), space)
        chances = space["logits"].softmax(-1).topk(10).values
        np.testing.assert_allclose([one["p"] for one in ablated["after"]], chances.detach(), atol=1e-5)
        np.testing.assert_allclose(
            scores_of(tab.ask("measure", **made))[0], space["scores"].positional.flatten(), atol=1e-4
        )


def test_a_prompt_that_is_kept_is_read_back_and_profiled_with_the_same_scores(
    client, stories260k, tokenizer, measured, tmp_path
):
    file = tmp_path / "prompts.jsonl"
    line = client.ask("details", text=TEXT)["jsonl"]
    file.write_text(f"{line}\n")
    (prompt,) = own_prompts(tokenizer, file)
    assert (list(prompt.ids), [list(block) for block in prompt.blocks]) == (measured["ids"], measured["blocks"])
    made = ww.profile(stories260k, [prompt])
    np.testing.assert_allclose(scores_of(measured), made.heads[["positional", "symbolic"]].T, atol=1e-6)


def test_details_are_the_data_of_the_offline_page(client, stories260k, measured):
    found = client.ask("details", text=TEXT)
    assert found["labels"] == measured["labels"]
    np.testing.assert_allclose(scores_of(found), scores_of(measured), atol=1e-6)
    blocks = [tuple(block) for block in measured["blocks"]]
    own = ww.score_frequencies(ww.capture(stories260k, torch.tensor([measured["ids"]])), blocks=blocks)
    shown = decoded(found["arrays"]["frequency_symbolic"]).reshape(len(measured["labels"]), -1)
    np.testing.assert_allclose(shown, own.symbolic[0].flatten(0, 1), atol=1e-5)
    html = client.ask("save", text=TEXT, view="h=1.2")["html"]
    embedded = json.loads(html.split('id="data">')[1].split("</script>")[0])
    np.testing.assert_allclose(scores_of(embedded["sources"][0]), scores_of(measured), atol=1e-6)
    assert embedded["view"] == "h=1.2"
    assert "token" not in embedded


def test_a_model_that_cannot_be_measured_gives_the_reason_and_still_answers():
    from tiny import tiny_model

    with served(tiny_model("gpt2"), tokenizer=ww.load_tokenizer(weights("stories260K"))) as page:
        tab = Client(page)
        answer = tab.ask("measure", ids=[5, 7, 9, 11, 13, 15], blocks="tokens")
        assert "adds positions to its embeddings" in answer["note"]
        assert "positional" not in answer["arrays"]
        assert len(answer["next"]) == 10
        status, reason = tab.refused("details", ids=[5, 7, 9, 11, 13, 15], blocks="tokens")
        assert status == 422
        assert "level" in reason


def test_a_prompt_that_is_longer_than_the_context_is_refused(client):
    status, reason = client.refused("measure", text="a cat " * 400)
    assert status == 400
    assert "tokens; at most 512 are measured here" in reason


def test_hostile_text_is_measured_like_any_other_and_stays_inside_the_saved_page(client):
    text = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> {{ 7 * 7 }} and so on and so on"
    answer = client.ask("measure", text=text, blocks="tokens")
    assert "".join(answer["tokens"][1:]).strip() == text
    html = client.ask("save", text=text, blocks="tokens")["html"]
    assert "<script>alert(1)" not in html
    assert html.count("</script>") == 2
