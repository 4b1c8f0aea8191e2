"""The web application: one page, the questions that it asks, and who may ask them."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..errors import BadInput, NotMeasurable
from ..files import parse_json
from .answers import ANSWERS
from .live import LiveModel
from .worker import Busy, Stopped, TooSlow, Worker

LARGEST_BODY = 2**20
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NOTEBOOKS = "http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"
NOBODY = "'none'"
TOKEN_HEADER = "x-wherewhat-token"
log = logging.getLogger("wherewhat")


class Refused(Exception):
    """A request that is not allowed: its status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def make_app(
    live: LiveModel, worker: Worker, html: str, token: str, host: str = "127.0.0.1", framed: bool = False
) -> Starlette:
    """The application, which shows one page and answers what it asks; `framed` allows notebooks to show it."""
    ancestors = {"content-security-policy": f"frame-ancestors {NOTEBOOKS if framed else NOBODY}"}

    async def show(request: Request) -> Response:
        check_token(request.query_params.get("token", ""), token)
        return HTMLResponse(html, headers=ancestors)

    async def ask(request: Request) -> Response:
        check_token(request.headers.get(TOKEN_HEADER, ""), token)
        name = request.path_params["name"]
        if name not in ANSWERS:
            raise Refused(404, f"no question {name!r:.40}: {', '.join(ANSWERS)}")
        given = await read_body(request)
        asked_by = str(given.get("page", ""))[:100]
        job = worker.submit(lambda _: ANSWERS[name](live, given), asked_by, name)
        answer = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(closed(request))
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not answer.done():
            job.cancel("the page was closed")
        return JSONResponse(await answer)

    def guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                check_sender(request, host)
                response = await handler(request)
            except Exception as error:
                response = refusal(error)
            response.headers.update(HEADERS)
            return response

        return respond

    return Starlette(
        routes=[
            Route("/", guarded(show), methods=["GET"]),
            Route("/api/{name}", guarded(ask), methods=["POST"]),
        ]
    )


HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def refusal(error: Exception) -> Response:
    """The answer to a request that failed: one sentence, and a status that says whose fault it is."""
    if isinstance(error, Refused):
        status, reason = error.status, str(error)
    elif isinstance(error, NotMeasurable):
        status, reason = 422, str(error)
    elif isinstance(error, BadInput):
        status, reason = 400, str(error)
    elif isinstance(error, Busy):
        status, reason = 503, str(error)
    elif isinstance(error, TooSlow):
        status, reason = 504, str(error)
    elif isinstance(error, (Stopped, ClientDisconnect)):
        status, reason = 409, str(error)
    else:
        log.error("A request failed: %s: %s", type(error).__name__, error)
        status, reason = 500, f"this failed ({type(error).__name__}); the server goes on"
    waiting = {"retry-after": "1"} if status == 503 else {}
    return JSONResponse({"error": reason, "status": status}, status, headers=waiting)


def check_token(given: str, token: str) -> None:
    if not secrets.compare_digest(given.encode(), token.encode()):
        raise Refused(403, "the token is missing or wrong: open the address that wherewhat serve printed")


def check_sender(request: Request, host: str) -> None:
    """Refuse names that are not this server's (DNS rebinding) and requests that another site makes."""
    named = request.headers.get("host", "")
    name = named.rsplit(":", 1)[0] if not named.endswith("]") else named
    if not is_own_name(name, host):
        raise Refused(403, f"this server is not {name[:100]!r}: open the address that wherewhat serve printed")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{named}":
        raise Refused(403, "requests of other sites are refused")
    if request.method != "GET" and request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, "requests of other sites are refused")


def is_own_name(name: str, host: str) -> bool:
    """Whether a Host header may name this server: a loopback name, or, if it listens to others, any IP address."""
    bare = name.strip("[]")
    if name in LOOPBACK or bare == host:
        return True
    if is_loopback(host):
        return False
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return bare.lower() == socket.gethostname().lower()
    return True


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; a body that is too large is refused before it is read."""
    too_large = Refused(413, f"the request is larger than {LARGEST_BODY // 2**20} MB: give a shorter prompt")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > LARGEST_BODY:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise too_large
    try:
        given = parse_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the body is not valid JSON") from error
    if not isinstance(given, dict):
        raise Refused(400, "the body is not a JSON object")
    return given


async def closed(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
