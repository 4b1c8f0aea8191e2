"""A live page that runs in this process, and a client that asks it as a page does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np

import wherewhat as ww
from wherewhat.serve.server import LivePage


class Client:
    """Asks the server of a live page."""

    def __init__(self, page: LivePage, name: str = "tab") -> None:
        self.base, self.token = page.address.split("/?token=")
        self.name = name
        self.http = httpx2.Client(base_url=self.base, timeout=60)

    def post(self, question: str, given: dict[str, Any], **headers: str) -> httpx2.Response:
        headers = {"x-wherewhat-token": self.token} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(f"/api/{question}", json={"page": self.name} | given, headers=headers)

    def ask(self, question: str, **given: Any) -> dict[str, Any]:
        answer = self.post(question, given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, question: str, **given: Any) -> tuple[int, str]:
        answer = self.post(question, given)
        return answer.status_code, answer.json()["error"]


@contextmanager
def served(model: Any, **options: Any) -> Iterator[LivePage]:
    page = ww.explore(model, **options)
    try:
        yield page
    finally:
        page.close()


def decoded(array: dict[str, str]) -> np.ndarray:
    import base64

    return np.frombuffer(base64.b64decode(array["base64"]), np.dtype(array["type"]).newbyteorder("<"))
