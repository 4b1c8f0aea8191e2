"""One request to an endpoint, with limits on the size of its answer and on the time that it may take."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from threading import Lock, Timer, local
from typing import Any, NamedTuple

import httpx2

MOST_BYTES = 4 * 2**20  # of an answer, as sent and decompressed


class Transient(Exception):
    """A failed attempt that may be repeated, after `after` seconds if the endpoint asks for a wait."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Response(NamedTuple):
    """What an endpoint answered."""

    code: int
    phrase: str
    text: str
    retry_after: str


class Sender:
    """Sends requests from several threads, each over a connection of its own.

    `timeout` seconds are for the whole answer: a connection that takes longer is closed, even if bytes still arrive.
    """

    def __init__(self, headers: Mapping[str, str], timeout: float) -> None:
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._timeout, self._of_thread = timeout, local()
        self._clients: list[httpx2.Client] = []
        self._lock, self._certificates = Lock(), httpx2.create_ssl_context()

    def post(self, url: str, body: Mapping[str, Any]) -> Response:
        """The answer to a request; one that is too large or too slow is a failed attempt."""
        client = self.client()
        late = Timer(self._timeout, client.close)
        late.daemon = True
        late.start()
        try:
            with client.stream("POST", url, json=body) as response:
                text = self._content(response, time.monotonic() + self._timeout).decode("utf-8", "replace")
                after = response.headers.get("retry-after", "")
                return Response(response.status_code, response.reason_phrase, text, after)
        except httpx2.HTTPError as error:
            if client.is_closed:
                raise Transient(f"no complete answer within {self._timeout:g} seconds") from error
            raise
        except (RuntimeError, OSError, ValueError) as error:  # the connection was closed in between
            raise Transient(f"no complete answer ({type(error).__name__})") from error
        finally:
            late.cancel()
            if client.is_closed:
                del self._of_thread.client

    def close(self) -> None:
        with self._lock:
            for client in self._clients:
                client.close()

    def client(self) -> httpx2.Client:
        """The connection of this thread; opening one takes some time."""
        if not hasattr(self._of_thread, "client"):
            self._of_thread.client = httpx2.Client(
                headers=self._headers, timeout=self._timeout, verify=self._certificates
            )
            with self._lock:
                self._clients = [client for client in self._clients if not client.is_closed]
                self._clients.append(self._of_thread.client)
        return self._of_thread.client

    def _content(self, response: httpx2.Response, deadline: float) -> bytes:
        """The body, decompressed."""
        received = bytearray()
        for chunk in response.iter_raw():
            received += chunk
            if len(received) > MOST_BYTES:
                raise Transient(f"the answer is longer than {MOST_BYTES / 2**20:g} MB")
            if time.monotonic() > deadline:
                raise Transient(f"no complete answer within {self._timeout:g} seconds")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):  # although it was not asked for
            try:
                content = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(received, MOST_BYTES + 1)
            except zlib.error as error:
                raise Transient("the answer is not valid gzip") from error
        elif encoding in ("identity", ""):
            content = bytes(received)
        else:
            raise Transient(f"the answer is encoded as {encoding[:20]}")
        if len(content) > MOST_BYTES:
            raise Transient(f"the answer is longer than {MOST_BYTES / 2**20:g} MB")
        return content
