"""A faulty server on loopback in front of a real server or a function."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

Fault = Callable[["Faulty"], bool]  # answers the request and returns True, or returns False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Faulty(BaseHTTPRequestHandler):
    """Forwards requests; `server.faults` come first, one per request, None for no fault."""

    server: Front

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.arrivals.append((time.monotonic(), self.path, dict(self.headers), json.loads(body)))
            self.server.at_once.append(self.server.at_once[-1] + 1)
            self.here = True
            fault = self.server.faults.pop(0) if self.server.faults else None
        try:
            if fault is None or not fault(self):
                self.give(200, self.server.answer(body))
                with self.server.lock:
                    self.server.answered.append(json.loads(body)["messages"][-1]["content"])
        except OSError:
            pass  # the client has closed the connection
        finally:
            self.leave()

    def leave(self) -> None:
        """Count this request as finished, before its answer is sent: the client may send another one at once."""
        with self.server.lock:
            if self.here:
                self.server.at_once.append(self.server.at_once[-1] - 1)
            self.here = False

    def give(self, code: int, content: bytes | dict[str, Any], **headers: str) -> bool:
        self.leave()
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Front(ThreadingHTTPServer):
    """A server with faults in front of `answer`, which maps the body of a request to that of its answer."""

    daemon_threads = True

    def __init__(self, answer: Callable[[bytes], bytes], port: int = 0, faults: list[Fault | None] | None = None):
        super().__init__(("127.0.0.1", port), Faulty)
        self.answer, self.faults, self.lock = answer, list(faults or []), threading.Lock()
        self.arrivals: list[tuple[float, str, dict[str, str], Any]] = []
        self.answered: list[str] = []
        self.at_once = [0]
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def die(self) -> None:
        self.shutdown()
        self.server_close()

    def __exit__(self, *args: Any) -> None:
        self.die()


def passed_on(url: str) -> Callable[[bytes], bytes]:
    """The answers of another server."""

    def answer(body: bytes) -> bytes:
        request = Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
        with urlopen(request, timeout=60) as response:
            return response.read()

    return answer


def completion(text: str | None, read: int = 100, written: int = 2) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": read, "completion_tokens": written},
    }
