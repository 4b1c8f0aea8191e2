"""Endpoints: transformers' own server gives the answers of the local model, and no fault loses or repeats one."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from email.utils import formatdate
from urllib.request import urlopen

import pandas as pd
import pytest

import wherewhat as ww
from conftest import weights
from loopback import Front, completion, free_port, passed_on
from test_text_lengths import solve
from wherewhat.errors import BadInput
from wherewhat.studies.lengths.endpoint import Endpoint, checked_url
from wherewhat.studies.lengths.local_model import LocalModel
from wherewhat.studies.lengths.text_lengths import measure_text_lengths

SOME = {"windows": (12, 24), "prompts": 2, "seeds": (0, 1)}  # 16 questions
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
KEY = "sk-not-to-be-seen"


def by_rule(body: bytes) -> bytes:
    """A server that knows the answers."""
    sequence = json.loads(body)["messages"][-1]["content"].removeprefix("Sequence: ")
    task = "number" if sequence.split()[-1].isdigit() else "letter"
    return json.dumps(completion(solve(task, sequence))).encode()


def asked(url, **options):
    return Endpoint(url, "m", **{"first_pause": 0.02, "timeout": 30.0, **options})


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """The small real model with a chat template in a file beside it."""
    folder = shutil.copytree(weights("stories260K"), tmp_path_factory.mktemp("served") / "stories260K")
    folder.chmod(0o755)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def served(chatty):
    """transformers serve, with the model loaded."""
    from transformers.cli.serve import Serve

    port = free_port()
    server = Serve(str(chatty), device="cpu", host="127.0.0.1", port=port, non_blocking=True, log_level="error")
    for name in ("uvicorn", "uvicorn.access"):  # they would write to a stream that pytest has closed
        logging.getLogger(name).handlers.clear()
    for _ in range(200):
        try:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/v1"
    server.kill_server()


@pytest.fixture(scope="module")
def local(chatty):
    """The answers of the model itself, without a server."""
    return measure_text_lengths(LocalModel(ww.load(chatty), ww.load_tokenizer(chatty)), **SOME)


@pytest.mark.weights
@pytest.mark.slow
def test_an_endpoint_gives_the_answers_of_the_model_behind_it(served, chatty, local):
    found = measure_text_lengths(Endpoint(served, str(chatty)), **SOME)
    pd.testing.assert_frame_equal(found.answers, local.answers)  # texts and counts of tokens, too
    assert found.answers["text"].nunique() > 1
    with pytest.raises(BadInput, match=r"rejects the request \(400: Server is pinned"):
        measure_text_lengths(Endpoint(served, "another"), **SOME)


@pytest.mark.weights
@pytest.mark.slow
def test_no_fault_changes_or_repeats_an_answer(served, chatty, local, tmp_path):
    """Timeout, 429, 500, half an answer, no answer, a closed connection on the way to the same model."""

    def late(request):
        time.sleep(4.5)
        return False

    def cut(request):
        request.connection.close()
        return True

    faults = [
        late,
        lambda request: request.give(429, {"error": {"message": "slow down"}}, Retry_After="1"),
        lambda request: request.give(500, {"error": "oops"}),
        None,
        lambda request: request.give(200, b'{"choices": [{"mess'),
        lambda request: request.give(200, {"choices": []}),
        lambda request: request.give(200, b"[]"),
        cut,
        lambda request: request.give(503, b"<html>busy</html>"),
    ]
    with Front(passed_on(served), faults=faults) as front:
        endpoint = Endpoint(front.url, str(chatty), timeout=4.0, first_pause=0.02, concurrency=2)
        found = measure_text_lengths(endpoint, tmp_path, **SOME)
        pd.testing.assert_frame_equal(found.answers, local.answers)
        assert len(front.arrivals) >= 16 + 8
        late_one = len(front.answered) - len(set(front.answered))  # an answer that arrived too late was asked for again
        assert len(set(front.answered)) == 16
        assert late_one <= 1
        before = len(front.arrivals)
        pd.testing.assert_frame_equal(measure_text_lengths(endpoint, tmp_path, **SOME).answers, local.answers)
        assert len(front.arrivals) == before


@pytest.mark.weights
@pytest.mark.slow
def test_a_server_that_dies_and_restarts(served, chatty, local, tmp_path):
    port, fronts = free_port(), []

    def up():
        fronts.append(Front(passed_on(served), port))

    def down(request):
        """It dies in the middle of a request, and restarts a little later."""
        request.connection.close()
        threading.Thread(target=lambda: (fronts[0].die(), time.sleep(0.5), up())).start()
        return True

    up()
    fronts[0].faults = [None, None, None, down]
    endpoint = Endpoint(fronts[0].url, str(chatty), timeout=30.0, first_pause=0.1, concurrency=1)
    found = measure_text_lengths(endpoint, tmp_path, **SOME)
    fronts[1].die()
    pd.testing.assert_frame_equal(found.answers, local.answers)
    assert len(fronts[0].answered) == 3
    assert sorted(fronts[0].answered + fronts[1].answered) == sorted(
        f"Sequence: {one}" for one in local.answers["sequence"]
    )


def test_a_run_that_gave_up_resumes(tmp_path):
    answered = []
    for stop in (5, 4, None):
        failing = [] if stop is None else [None] * stop + [lambda request: request.give(500, {})] * 99
        with Front(by_rule, faults=failing) as front:
            endpoint = asked(front.url, retries=0, concurrency=1)
            endpoint.identity = "the same endpoint"  # which has another port each time
            if stop is None:
                found = measure_text_lengths(endpoint, tmp_path, **SOME)
            else:
                with pytest.raises(BadInput, match=r"no answer after 1 attempts \(500 Internal Server Error\)"):
                    measure_text_lengths(endpoint, tmp_path, **SOME)
            answered += front.answered
    assert len(answered) == len(set(answered)) == 16
    assert (found.answers["outcome"] == "right").all()
    assert found.tokens == (1600, 32)


def test_pending_answers_are_kept_after_a_failure(tmp_path):
    refused_one = threading.Event()

    def slowly(request):
        refused_one.wait(30)
        time.sleep(0.2)
        return False

    def refuse(request):
        request.give(401, {"error": {"message": f"bad key {KEY}"}})
        refused_one.set()
        return True

    with Front(by_rule, faults=[slowly, refuse]) as front:
        with pytest.raises(BadInput, match=r"rejects the API key \(401\)") as refused:
            measure_text_lengths(asked(front.url, key=KEY, concurrency=2), tmp_path, **SOME)
        assert KEY not in str(refused.value)
        assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == len(front.answered) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_all_wait_as_long_as_the_endpoint_asks(form):
    def wait(request):
        after = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)  # dates have whole seconds
        return request.give(429, {}, Retry_After=after)

    with Front(by_rule, faults=[wait]) as front:
        measure_text_lengths(asked(front.url, concurrency=1), windows=(12,), prompts=1, seeds=(0,))
        first, second, *_ = (at for at, *_ in front.arrivals)
        assert second - first >= 0.95
    with (
        Front(by_rule, faults=[lambda request: request.give(429, {}, Retry_After="86400")]) as front,
        pytest.raises(BadInput, match="asks to wait 86400 seconds"),
    ):
        measure_text_lengths(asked(front.url), **SOME)


@pytest.mark.slow
def test_rate_and_concurrency_are_respected():
    def slow(request):
        time.sleep(0.1)
        return False

    with Front(by_rule, faults=[slow] * 16) as front:
        measure_text_lengths(asked(front.url, concurrency=3), **SOME)
        assert max(front.at_once) == 3
    with Front(by_rule) as front:
        measure_text_lengths(asked(front.url, per_minute=1200.0), windows=(12,), prompts=3, seeds=(0, 1))
        times = [at for at, *_ in front.arrivals]
        assert times[-1] - times[0] >= 11 * 0.05 - 0.04


def test_requests_adapt_to_the_endpoint():
    """Newer models take another name for the limit, and no temperature."""

    def picky(request):
        sent = request.server.arrivals[-1][3]
        for name, said in (("max_tokens", "use max_completion_tokens instead"), ("temperature", "temperature: only 1")):
            if name in sent:
                return request.give(400, {"error": {"message": said}})
        return False

    with Front(by_rule, faults=[picky] * 99) as front:
        found = measure_text_lengths(asked(front.url, key=KEY, concurrency=1, extra={"seed": 3}), **SOME)
        assert (found.answers["outcome"] == "right").all()
        assert len(front.arrivals) == 16 + 2
        _, path, headers, body = front.arrivals[-1]
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert {name: body[name] for name in body if name != "messages"} == {
        "model": "m",
        "max_completion_tokens": 8,
        "seed": 3,
    }


def test_malformed_answers_and_prompts_that_do_not_fit_are_distinguished():
    def strange(request):
        sequence = request.server.arrivals[-1][3]["messages"][-1]["content"]
        if len(sequence.split()) > 20:
            return request.give(400, {"error": {"code": "context_length_exceeded", "message": "too many tokens"}})
        return request.give(200, completion(None if sequence[-1].isdigit() else "I cannot tell"))

    with Front(by_rule, faults=[strange] * 99) as front:
        found = measure_text_lengths(asked(front.url, concurrency=1), windows=(12, 24, 32), prompts=2, seeds=(0,))
        assert len(front.arrivals) == 4 + 2  # one question per task shows that longer ones do not fit
    assert found.accuracy["malformed"].tolist() == [2, 0, 0] * 2
    assert found.accuracy["unfit"].tolist() == [0, 2, 2] * 2
    assert found.accuracy["accuracy"].isna().tolist() == [False, True, True] * 2


@pytest.mark.slow
def test_the_command(run, refuse, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Front(by_rule) as front:
        code, out, err = run(
            "lengths", "owner/name", "--endpoint", front.url, "-o", tmp_path, "--prompts", 1,
            "--longest", 16, "--price-in", 2, "--price-out", 10,
        )  # fmt: skip
        assert code == 0
        assert "name: one hop as text, 5 prompts per task and window, 5 seeds" in out
        assert "this one would be kept" in " ".join(out.split())
        assert "Tokens: 2,000 read, 40 written; cost: 0.0044." in " ".join(out.split())
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())
    assert KEY not in out + err
    monkeypatch.delenv("OPENAI_API_KEY")
    for code, words in {
        401: "requires an API key",
        404: "no model 'm' here",
        400: "because of this",
        301: "rejects",
    }.items():
        fault = lambda request, code=code: request.give(code, {"error": {"message": "because\nof this"}})  # noqa: E731
        with Front(by_rule, faults=[fault] * 99) as front:
            refuse(words, "lengths", "m", "--endpoint", front.url, "-o", tmp_path)
    there = ("lengths", "m", "--endpoint", front.url, "-o", tmp_path)
    refuse("variable NO_SUCH holds no API key", *there, "--api-key-env", "NO_SUCH")
    refuse("--extra must be a JSON object", *there, "--extra", "[1]")
    refuse("extra cannot set model", *there, "--extra", '{"model": "other"}')
    refuse("extra cannot be written as JSON", *there, "--extra", '{"top_p": NaN}')
    refuse("concurrency must be at least 1, got 0", *there, "--concurrency", 0)
    refuse("timeout must be at least 0.1", *there, "--timeout", "nan")


def test_the_function_saves_what_it_returns_and_never_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", KEY)
    with Front(by_rule) as front:
        found = ww.lengths(
            "m", endpoint=front.url, api_key_env="OTHER_KEY", extra={"seed": 3}, price_in=2.0, longest=12, prompts=1,
            runs=1, folder=tmp_path,
        )  # fmt: skip
        assert front.arrivals[0][2]["Authorization"] == f"Bearer {KEY}"
        with pytest.raises(BadInput, match="must not be part of"):
            ww.lengths("m", endpoint=front.url, api_key_env="OTHER_KEY", extra={"api_key": KEY})
    loaded = ww.TextLengths.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.answers, found.answers)
    pd.testing.assert_frame_equal(loaded.accuracy, found.accuracy)
    assert loaded.about == found.about
    assert found.about["endpoint"] == front.url
    assert found.about["extra"] == {"seed": 3}
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_addresses():
    assert (
        checked_url("https://api.openai.com")
        == checked_url("https://api.openai.com/v1/")
        == "https://api.openai.com/v1"
    )
    assert checked_url("http://localhost:8000/v1/chat/completions", KEY) == "http://localhost:8000/v1"
    for url, words in {
        "localhost:8000": "expected http", "ftp://a/v1": "expected http", "https://user:word@a/v1": "must not contain",
        "https://a/v1?key=1": "must not contain", "http://10.0.0.1/v1": "unencrypted", "http://": "expected http",
    }.items():  # fmt: skip
        with pytest.raises(BadInput, match=words) as refused:
            checked_url(url, KEY)
        assert "word@" not in str(refused.value)
    with pytest.raises(BadInput, match="cannot be sent"):
        Endpoint("https://a/v1", "m", "key\nkey")
    assert KEY not in repr(Endpoint("https://a/v1", "m", KEY))


def test_a_url_without_a_server_fails_soon():
    began = time.monotonic()
    with pytest.raises(BadInput, match="no answer after 3 attempts"):
        measure_text_lengths(asked(f"http://127.0.0.1:{free_port()}/v1", first_pause=0.05), **SOME)
    assert time.monotonic() - began < 10
