"""The server of the live page at its edges: memory, contexts, timeouts, and how it leaves the model."""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import pytest
import torch

import wherewhat as ww
from conftest import weights
from live_page import Client, decoded, served
from tiny import tiny_model
from wherewhat.core import compiled
from wherewhat.serve import live as live_module
from wherewhat.serve.app import is_own_name, refusal
from wherewhat.serve.worker import Stopped, TooSlow, Worker

TEXT = "Ben has a dog. Tom has a cow. Sam has a car. Ben has a"


def tokenizer() -> Any:
    return ww.load_tokenizer(weights("stories260K"))


def hooks(model: torch.nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.weights
def test_a_page_that_is_closed_leaves_the_model_as_it_was():
    model = ww.load(weights("stories260K"))
    with served(model, tokenizer=tokenizer()) as page:
        Client(page).ask("measure", text=TEXT)
        assert hooks(model) > 0
    assert hooks(model) == 0
    assert not page.live.kept
    copy.deepcopy(model)


@pytest.mark.weights
def test_a_trace_that_is_too_large_to_keep_is_captured_once_and_counted(stories260k, monkeypatch):
    with served(stories260k, tokenizer=tokenizer()) as page:
        client = Client(page)
        first = client.ask("measure", text=TEXT)
        monkeypatch.setattr(live_module, "LARGEST_KEPT", 0)
        page.live.kept.clear()
        before = page.live.passes
        again = client.ask("measure", text=TEXT)
        assert again["passes"] == page.live.passes - before == 1
        assert again["arrays"] == first["arrays"]
        assert not page.live.kept


@pytest.mark.weights
def test_a_bias_per_head_is_not_captured_for_all_queries_of_a_long_prompt(monkeypatch):
    model = tiny_model("bloom", vocab_size=512)
    with served(model, tokenizer=tokenizer()) as page:
        client = Client(page)
        whole = client.ask("measure", text=TEXT, query=20)
        page.live.kept.clear()
        monkeypatch.setattr(live_module, "LARGEST_KEPT", 1000)
        alone = client.ask("measure", text=TEXT, query=20)
        for name in ("positional", "symbolic", "token_attention"):
            ours, expected = (torch.tensor(decoded(one["arrays"][name]).copy()).double() for one in (alone, whole))
            torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
        asked = page.live.read({"text": TEXT, "query": 20})
        trace = page.worker.submit(lambda _: page.live.trace(asked), "test", "trace").future.result(60)
        assert trace.positions == (20,)


@pytest.mark.weights
def test_a_continuation_ends_with_the_context(stories260k):
    with served(stories260k, tokenizer=tokenizer()) as page:
        client, context = Client(page), stories260k.config.max_position_embeddings
        assert len(client.ask("continue", ids=[1] + [300] * (context - 3), number=16)["ids"]) <= 2
        status, reason = client.refused("continue", ids=[1] + [300] * (context - 1), number=16)
        assert (status, "fills the context" in reason) == (400, True)


@pytest.mark.weights
@pytest.mark.parametrize("answer", [-1, 512, 10**9])
def test_an_answer_that_is_no_token_is_refused(stories260k, answer):
    with served(stories260k, tokenizer=tokenizer()) as page:
        for question in ("measure", "ablate"):
            status, reason = Client(page).refused(question, text=TEXT, answer=answer, choose="1.1")
            assert (status, "answer is a token id from 0 to 511" in reason) == (400, True)


def test_a_timeout_is_told_apart_from_a_request_that_was_replaced():
    assert refusal(TooSlow("this took longer than 120 seconds")).status_code == 504
    assert refusal(Stopped("replaced by a newer request")).status_code == 409


def test_a_cancelled_request_does_not_end_the_worker():
    worker, begun, release = Worker(), threading.Event(), threading.Event()
    worker.submit(lambda _: (begun.set(), release.wait(10)), "a", "measure")
    assert begun.wait(10)
    cancelled, after = (worker.submit(lambda _: 1, page, "measure") for page in "bc")
    assert cancelled.future.cancel()
    release.set()
    assert after.future.result(10) == 1
    worker.close()


@pytest.mark.parametrize(
    ("name", "host", "own"),
    [
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("evil.example", "127.0.0.2", False),
        ("192.168.1.7", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
    ],
)
def test_a_server_answers_to_its_own_names_only(name, host, own):
    assert is_own_name(name, host) is own


def test_scores_do_not_need_a_folder_for_compiled_functions(monkeypatch):
    class NoFolder:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "wherewhat.core.kernels":
                raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.delitem(sys.modules, "wherewhat.core.kernels", raising=False)
    monkeypatch.delattr("wherewhat.core.kernels", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoFolder(), *sys.meta_path])
    compiled._kernels.cache_clear()
    try:
        assert compiled.compiled(torch.zeros(2)) is None
    finally:
        compiled._kernels.cache_clear()
