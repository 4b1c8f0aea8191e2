"""A server on loopback that misbehaves: the study ends with the right answers, or with one line, within its limits."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopback import Fault, Faulty, Front, completion
from test_endpoint import by_rule
from wherewhat.errors import BadInput
from wherewhat.studies.lengths.endpoint import Endpoint
from wherewhat.studies.lengths.text_lengths import TextLengths, measure_text_lengths

SOME = {"windows": (12,), "prompts": 2, "seeds": (0,)}  # 4 questions
MB = 2**20


def study(url: str, folder: Path | None = None, **options: Any) -> TextLengths:
    settings = {"first_pause": 0.01, "timeout": 2.0, "concurrency": 2, **options}
    return measure_text_lengths(Endpoint(url, "m", **settings), folder, **SOME)


def body(content: bytes, **headers: str) -> Fault:
    return lambda request: request.give(200, content, **headers)


def stream(piece: bytes, pause: float, header: bool = True) -> Fault:
    """Bytes without end, slowly or not."""

    def answer(request: Faulty) -> bool:
        request.leave()
        if header:
            request.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        ends = time.monotonic() + 15
        while time.monotonic() < ends:
            request.wfile.write(piece)
            request.wfile.flush()
            time.sleep(pause)
        return True

    return answer


def text(content: Any) -> Callable[[Faulty], bool]:
    return body(json.dumps(completion(content)).encode())


FAULTS: dict[str, Fault] = {
    "an endless stream": stream(b" " * MB, 0),
    "one byte at a time": stream(b" ", 0.2),
    "a header one byte at a time": stream(b"H", 0.2, header=False),
    "a header without end": stream(b"X-Header: " + b"x" * 1000 + b"\r\n", 0, header=False),
    "a gzip bomb": body(gzip.compress(bytes(200 * MB)), content_encoding="gzip"),
    "invalid gzip": body(b"not gzip", content_encoding="gzip"),
    "an unknown encoding": body(b"xx", content_encoding="br"),
    "deep nesting": body(b"[" * 200_000),
    "deep nesting in an error": lambda request: request.give(500, b'{"error":' * 50_000),
    "no JSON": body(b"<html>"),
    "a list": body(b"[]"),
    "null": body(b"null"),
    "no choices": body(b'{"choices": []}'),
    "invalid UTF-8": body(b"\xff\xfe\xfa"),
    "nothing": lambda request: bool(request.connection.close()) or True,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_asked_again_within_limits(fault: str, tmp_path: Path, tried: Any) -> None:
    with Front(by_rule, faults=[FAULTS[fault]]) as server:
        tracemalloc.start()
        start = time.monotonic()
        found = study(server.url, tmp_path)
        seconds, (_, peak) = time.monotonic() - start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.answers["outcome"].tolist() == ["right"] * 4
    assert seconds < 12
    assert peak < 300 * MB  # the bomb itself is made by the server, in this process
    tried("bad replies")


@pytest.mark.parametrize("tokens", [1e40, 1e999, -5, "many", None, [], True, 2**64])
def test_token_counts_that_cannot_be_believed_count_as_none(tokens: Any, tmp_path: Path, tried: Any) -> None:
    def answer(content: bytes) -> bytes:
        reply = json.loads(by_rule(content))
        reply["usage"] = {"prompt_tokens": tokens, "completion_tokens": tokens}
        return json.dumps(reply).encode()

    with Front(answer) as server:
        found = study(server.url, tmp_path)
        found.save(tmp_path)
        assert study(server.url, tmp_path).answers.equals(found.answers)  # read from disk
    assert found.answers["outcome"].tolist() == ["right"] * 4
    assert set(found.answers["read"]) <= {0, 1}
    tried("bad replies")


@pytest.mark.parametrize("content", ["\ud800", "A\udfff", "\x00", "\x1b[2J", ["A"], {"a": 1}, 7])
def test_odd_texts_can_be_saved_and_read_again(content: Any, tmp_path: Path, tried: Any) -> None:
    with Front(lambda _: json.dumps(completion(content)).encode()) as server:
        found = study(server.url, tmp_path)
        found.save(tmp_path)
        assert TextLengths.load(tmp_path).answers.equals(found.answers)
        assert study(server.url, tmp_path).answers.equals(found.answers)
    assert set(found.answers["outcome"]) <= {"malformed", "wrong"}
    tried("bad replies")


def test_a_key_that_the_server_echoes_is_not_saved(tmp_path: Path) -> None:
    key = "sk-a-secret-of-some-length"
    with Front(lambda _: json.dumps(completion(f"your key is {key}")).encode()) as server:
        study(server.url, tmp_path, key=key).save(tmp_path)
    assert key.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "[key]" in TextLengths.load(tmp_path).answers["text"][0]


@pytest.mark.slow
def test_a_server_that_never_answers_in_time_ends_the_study_with_one_line(tmp_path: Path, tried: Any) -> None:
    with Front(by_rule, faults=[stream(b" ", 0.1)] * 50) as server:
        start = time.monotonic()
        with pytest.raises(BadInput, match=r"no answer after 2 attempts \(no complete answer within 1 seconds\)"):
            study(server.url, tmp_path, timeout=1.0, retries=1)
        assert time.monotonic() - start < 10
    tried("bad replies", 4)
