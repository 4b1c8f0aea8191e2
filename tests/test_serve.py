"""The live page's server: who may ask, what is refused, and that one request never harms another."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx2
import pytest
import torch

from conftest import weights
from live_page import Client, served
from wherewhat.errors import BadInput
from wherewhat.serve.reader import TextReader, pieces, propose_blocks
from wherewhat.serve.server import LivePage, listen
from wherewhat.serve.worker import Busy, Stopped, Worker

TEXT = "as u m bf bv m dn m 5 7 10 1 10 5 1 10 16"
HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \u202e \x00 {{ 7 * 7 }}"


@pytest.fixture(scope="module")
def page() -> Iterator[LivePage]:
    with served("number") as running:
        yield running


@pytest.fixture
def client(page) -> Client:
    return Client(page)


def raw(page: LivePage, request: str) -> str:
    """The response to a request as it stands, headers that no library would send included."""
    with socket.create_connection(("127.0.0.1", int(page.address.split(":")[2].split("/")[0]))) as connection:
        connection.sendall(request.encode())
        connection.settimeout(10)
        response = b""
        while chunk := connection.recv(65536):
            response += chunk
    return response.decode()


def test_the_page_needs_the_token_and_forbids_everything_that_it_does_not_need(page, client):
    assert client.http.get("/").status_code == 403
    assert client.http.get("/", params={"token": "x" * 32}).status_code == 403
    shown = client.http.get("/", params={"token": client.token})
    assert shown.status_code == 200
    assert shown.headers["cache-control"] == "no-store"
    assert shown.headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors" in shown.headers["content-security-policy"]
    (policy,) = (line for line in shown.text.splitlines() if "Content-Security-Policy" in line)
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("token", ["", "wrong", "é" * 8])
def test_a_question_without_the_token_is_refused(client, token):
    answer = client.http.post("/api/measure", json={"text": TEXT}, headers=[(b"x-wherewhat-token", token.encode())])
    assert (answer.status_code, "token" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_forged_host_is_refused_even_with_the_token(page, client, host):
    request = f"GET /?token={client.token} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert raw(page, request).startswith("HTTP/1.1 403")
    assert raw(page, request.replace(f"Host: {host}", "Host: localhost:1")).startswith("HTTP/1.1 200")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused_even_with_the_token(client, origin):
    assert client.post("measure", {"text": TEXT}, origin=origin).status_code == 403
    assert client.post("measure", {"text": TEXT}, sec_fetch_site="cross-site").status_code == 403
    assert client.post("measure", {"text": TEXT}, origin=client.base).status_code == 200


def test_no_file_of_the_machine_is_reachable(client):
    for path in ("/etc/passwd", "/../../etc/passwd", "/static/explorer.js", "/api/../etc/passwd", "/api/measure"):
        assert client.http.get(path, headers={"x-wherewhat-token": client.token}).status_code in (404, 405)
    assert client.refused("ablate", text=TEXT, choose="@/etc/passwd") == (
        400,
        "heads are listed here, not read from a file",
    )
    assert client.post("passwd", {}).status_code == 404


def test_a_body_of_ten_megabytes_is_refused_whether_or_not_it_says_so(page, client):
    status, reason = client.refused("measure", text="x" * 10_000_000)
    assert (status, reason) == (413, "the request is larger than 1 MB: give a shorter prompt")
    port = page.address.split(":")[2].split("/")[0]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.sendall(
            f"POST /api/measure HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nx-wherewhat-token: {client.token}\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
        )
        with suppress(OSError):  # the server closes the connection
            for _ in range(160):
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        connection.settimeout(5)
        with suppress(ConnectionError):
            assert b" 413 " in connection.recv(100)
    assert client.ask("measure", text=TEXT)["note"] == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a text, or a list of token ids"),
        ({"text": ""}, "empty"),
        ({"text": "as"}, "one token"),
        ({"text": "as \ud800"}, "not valid Unicode"),
        ({"text": HOSTILE}, "not a symbol"),
        ({"ids": [1, 2, 10**9]}, "token ids must lie in 0 to"),
        ({"ids": [True, 2]}, "a text, or a list"),
        ({"ids": [5] * 129}, "129 tokens; at most 128"),
        ({"text": TEXT, "query": 17}, "from 1 to 16, got 17"),
        ({"text": TEXT, "query": "0"}, "got '0'"),
        ({"text": TEXT, "blocks": "words"}, "blocks are auto"),
        ({"text": TEXT, "blocks": [[0, 2], [1, 3]]}, "overlap"),
        ({"text": TEXT, "blocks": [[0, 2], [3, 4]]}, "different lengths"),
        ({"text": TEXT, "blocks": [[0, 2], [15, 17]]}, "contains the query"),
        ({"text": TEXT, "blocks": [[0, 2], [3, 4], ["a", 2]]}, "a pair"),
        ({"text": TEXT, "answer": "x"}, "token id"),
    ],
)
def test_a_wrong_prompt_is_refused_with_one_sentence(client, given, words):
    body = json.dumps({"page": "tab"} | given).encode()
    answer = client.http.post("/api/measure", content=body, headers={"x-wherewhat-token": client.token})
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"choose": ""}, "choose heads"),
        ({"choose": "99.0"}, "attention is in layers 0 to 11"),
        ({"choose": "0.7"}, "head 7"),
        ({"choose": "slowest half"}, "chooses frequencies"),
        ({"choose": "loudest half", "how": "drop"}, "no band"),
        ({"choose": "0.0", "how": "explode"}, "an ablation is"),
        ({"choose": "0.0", "draw": -1}, "draw"),
        ({"choose": "10 most retrieving heads"}, "no single block contains the answer"),
        ({"choose": "500 most positional heads"}, "has scores for"),
    ],
)
def test_a_wrong_ablation_is_refused_with_one_sentence(client, given, words):
    status, reason = client.refused("ablate", text=TEXT, **given)
    assert status == 400
    assert words in reason


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"text": 1e999}'])
def test_a_body_that_is_not_an_object_is_refused(client, body):
    answer = client.http.post("/api/measure", content=body, headers={"x-wherewhat-token": client.token})
    assert answer.status_code == 400


def test_two_tabs_at_once_are_both_answered(page):
    tabs = [Client(page, name) for name in ("one", "two")]
    found: dict[str, list[int]] = {}

    def use(tab: Client) -> None:
        found[tab.name] = [tab.post("measure", {"text": TEXT, "query": 16 - at}).status_code for at in range(8)]

    threads = [threading.Thread(target=use, args=(tab,)) for tab in tabs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {"one": [200] * 8, "two": [200] * 8}


@pytest.mark.slow
def test_twenty_clients_at_once_are_all_answered_or_told_to_wait(page):
    statuses: list[int] = []

    def use(number: int) -> None:
        tab = Client(page, f"tab {number}")
        prompts = ([5 + number, *range(1, 12 + at)] for at in range(5))
        statuses.extend(tab.post("measure", {"ids": ids}).status_code for ids in prompts)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(statuses) == 100
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 50


def test_a_closed_connection_stops_its_work_and_the_server_goes_on(page, client):
    port = int(page.address.split(":")[2].split("/")[0])
    started, release = threading.Event(), threading.Event()

    def slow(job):
        started.set()
        while not release.wait(0.01):
            job.check()

    held = page.worker.submit(slow, "another page", "measure")
    assert started.wait(10)
    body = json.dumps({"page": "closing", "text": TEXT})
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            f"POST /api/measure HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nx-wherewhat-token: {client.token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        until(lambda: any(job.page == "closing" for job in page.worker.jobs))
    until(lambda: any(job.page == "closing" and job.reason == "the page was closed" for job in page.worker.jobs))
    release.set()
    held.future.result(10)
    assert client.ask("measure", text=TEXT)["note"] == ""


def until(true) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError


def test_a_newer_prompt_stops_an_older_one_in_the_middle_of_the_model(stories260k):
    tokenizer_page = served(stories260k, tokenizer=_tokenizer())
    with tokenizer_page as page:
        seen = []

        def old(job):
            for layer in range(10_000):
                seen.append(layer)
                page.live.model(torch.tensor([[1, 2, 3]]))  # every layer asks whether to go on
                time.sleep(0.001)

        job = page.worker.submit(old, "tab", "measure")
        until(lambda: len(seen) > 2)
        assert Client(page).ask("measure", text="Once upon a time there was a")["passes"] == 1
        with pytest.raises(Stopped, match="replaced by a newer request"):
            job.future.result(10)
        assert len(seen) < 10_000


def _tokenizer():
    import wherewhat as ww

    return ww.load_tokenizer(weights("stories260K"))


def test_a_worker_refuses_more_than_its_queue_holds_ends_slow_work_and_survives_failures():
    worker = Worker(most=2, seconds=0.2)
    release, started = threading.Event(), threading.Event()

    def wait(job):
        started.set()
        while not release.wait(0.005):
            job.check()

    slow = worker.submit(wait, "a", "measure")
    assert started.wait(5)
    waiting = [worker.submit(lambda _: 1, page, "measure") for page in "bc"]
    with pytest.raises(Busy, match="2 requests are waiting"):
        worker.submit(lambda _: 1, "d", "measure")
    replaced, newer = waiting[1], worker.submit(lambda _: 2, "c", "measure")  # does not count twice
    with pytest.raises(Stopped, match=r"longer than 0\.2 seconds"):
        slow.future.result(5)
    assert waiting[0].future.result(5) == 1
    with pytest.raises(Stopped, match="newer"):
        replaced.future.result(5)
    assert newer.future.result(5) == 2
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda _: 1 // 0, "a", "measure").future.result(5)
    assert worker.submit(lambda _: 3, "a", "measure").future.result(5) == 3
    worker.close()
    with pytest.raises(Busy, match="stopping"):
        worker.submit(lambda _: 1, "a", "measure")


def test_a_port_in_use_is_refused_and_the_next_free_one_is_found():
    first = listen("127.0.0.1", None)
    second = listen("127.0.0.1", None)
    port = first.getsockname()[1]
    assert second.getsockname()[1] > port
    with pytest.raises(BadInput, match=f"port {port} of 127.0.0.1: address already in use; give another"):
        listen("127.0.0.1", port)
    with pytest.raises(BadInput, match="not an address"):
        listen("no.such.host.invalid", None)
    first.close()
    second.close()


def test_statements_of_equal_length_become_blocks():
    text = "A list. Ann likes red. Bob likes tan. Cyd likes sky.\nAnn likes"
    said = ["A list.", " Ann likes red.", " Bob likes tan.", " Cyd likes sky.", "Ann likes"]
    assert [text[start:stop] for start, stop in pieces(text, "statements")] == said
    characters = [(at, at + 1) for at in range(len(text))]  # every character a token
    blocks, cut = propose_blocks(text, characters, len(text) - 1)
    assert (cut, [text[start:stop] for start, stop in blocks]) == ("statements", said[1:4])
    assert propose_blocks("a b c", [(0, 1), (1, 3), (3, 5)], 2)[1] == "tokens"


@pytest.mark.weights
def test_a_text_that_begins_with_bos_is_read_with_one_bos():
    reader = TextReader(_tokenizer())
    assert reader.read("<s>Once upon")[0].count(reader.tokenizer.bos_token_id) == 1
    assert reader.read("Once upon")[0].count(reader.tokenizer.bos_token_id) == 1


@pytest.mark.slow
def test_memory_stays_flat_over_two_hundred_requests(page, client):
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def ask(number: int) -> None:
        client.ask("measure", ids=[5 + number, *range(1, 20)])
        client.ask("details", ids=[5 + number, *range(1, 20)])

    for number in range(20):
        ask(number)
    before = resident()
    for number in range(100):  # two requests each
        ask(number)
    assert resident() - before < 20 * 2**20


@pytest.mark.slow
def test_the_command_prints_the_address_and_control_c_ends_it_cleanly():
    command = [sys.executable, "-m", "wherewhat", "serve", "letter", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            lines = iter(running.stderr.readline, "")
            address = next(line for line in lines if "http://" in line).split()[-1]
            assert httpx2.get(address, timeout=60).status_code == 200
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0
            assert "Stopped." in running.stderr.read()
        finally:
            running.kill()
