"""`ww.serve` and `ww.explore`: the live page of a model, in a browser or inside a notebook."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from ..errors import BadInput
from ..explorer.data import profile_data
from ..explorer.notebook import HEIGHT
from ..explorer.page import page_html
from ..remote import local_copy
from ..results import Progress, Say, ignore_progress, ignore_sentence
from ..studies.profile.result import Profile
from ..tracing.load import AnyModel, Loading, open_model
from .answers import MOST_NEW_TOKENS, examples
from .live import LiveModel
from .worker import Worker

FIRST_PORT, PORTS = 8420, 20  # where a free port is searched


@dataclass
class LivePage:
    """A running server. Displays itself in a notebook; `close` ends it."""

    address: str
    live: LiveModel
    worker: Worker
    _server: Any = field(repr=False)
    _sockets: list[socket.socket] = field(repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    def start(self) -> LivePage:
        """Answer requests in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="wherewhat-serve", daemon=True)
        self._thread.start()
        return self

    def run(self) -> None:
        """Answer requests until Control-C, or until `close`."""
        try:
            self._server.run(sockets=self._sockets)
        except KeyboardInterrupt:
            pass
        finally:
            self.worker.close()
            self.live.close()

    def close(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _repr_html_(self) -> str:
        title = f"{self.live.name}: where or what?"
        return (
            f'<iframe src="{escape(self.address)}" title="{escape(title)}" width="100%" height="{HEIGHT}" '
            f'style="border: 0" sandbox="allow-scripts allow-same-origin allow-downloads"></iframe>'
        )


def serve(
    model: AnyModel,
    *,
    profile: Profile | str | Path | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    open: bool = False,
    tokenizer: Any = None,
    progress: Progress = ignore_progress,
    say: Say = ignore_sentence,
    **loading: Unpack[Loading],
) -> None:
    """Serve a live page of a model until Control-C: type a prompt, see every head, swap blocks, ablate heads.

    `model` is anything that `ww.profile` takes. `profile` is a profile of the same model, or its folder, to compare
    with. The page listens on this machine only, unless `host` says otherwise, at `port` (the first free one from 8420
    on); `open` opens it in a browser. Only the address that is printed, which contains a random token, gives access.

    >>> ww.serve("models/SmolLM2.Q4_1.gguf", open=True)                 # doctest: +SKIP
    """
    page = make_page(model, profile, host, port, tokenizer, progress=progress, **loading)
    say(f"Live page of {page.live.name}: {page.address}")
    say("Anyone with this address can use it. Press Control-C to stop.")
    if open:
        webbrowser.open(page.address)
    page.run()
    say("Stopped.")


def explore(
    model: AnyModel,
    *,
    profile: Profile | str | Path | None = None,
    port: int | None = None,
    tokenizer: Any = None,
    **loading: Unpack[Loading],
) -> LivePage:
    """Show the live page of a model in a notebook cell; it runs in the background until `.close()`.

    While the page measures a prompt, the model cannot be captured elsewhere.

    >>> ww.explore("number")                                             # doctest: +SKIP
    """
    return make_page(model, profile, "127.0.0.1", port, tokenizer, framed=True, **loading).start()


def make_page(
    model: AnyModel,
    profile: Profile | str | Path | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    tokenizer: Any = None,
    framed: bool = False,
    progress: Progress = ignore_progress,
    **loading: Unpack[Loading],
) -> LivePage:
    """A server that listens but does not answer yet; wrong arguments are refused before the model is loaded."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadInput("the live page needs starlette and uvicorn: pip install 'wherewhat[serve]'")
    import uvicorn

    from ..studies.ablation.selections import check_profile
    from .app import make_app

    if isinstance(profile, (str, Path)):
        profile = Profile.load(local_copy(profile))
    listener, worker = listen(host, port), Worker()
    try:
        if isinstance(model, (str, Path)):
            progress(f"loading {model}", 0, 1)
        live = LiveModel(open_model(model, tokenizer, **loading), worker.check)
        if profile is not None:
            check_profile(profile, live.model)
    except BaseException:
        listener.close()
        worker.close()
        raise
    progress("checking the model", 0, 1)
    worker.submit(lambda _: live.prepare(), "", "start")
    token = secrets.token_urlsafe(24)
    html = page_html(page_data(live, profile, token), f"{live.name}: where or what?", live=True)
    app = make_app(live, worker, html, token, host, framed)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, timeout_graceful_shutdown=1, server_header=False,
        limit_concurrency=200, h11_max_incomplete_event_size=2**16, lifespan="off",
    )  # fmt: skip
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/?token={token}"
    return LivePage(address, live, worker, uvicorn.Server(config), [listener])


def page_data(live: LiveModel, profile: Profile | None, token: str) -> dict[str, Any]:
    """What the page knows before it asks anything."""
    return {
        "sources": [] if profile is None else [profile_data(profile, f"{profile.name} (profile)")],
        "comparisons": {},
        "live": {
            "name": live.name, "token": token, "examples": examples(live), "chats": live.reader.chats,
            "tokens": live.most_tokens, "new_tokens": MOST_NEW_TOKENS,
        },
    }  # fmt: skip


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at this port, or at the first free one."""
    if port is not None and not 0 <= port < 2**16:
        raise BadInput(f"port must lie in 0 to 65535, got {port}")
    tried = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else (port,)
    try:
        family = socket.getaddrinfo(host, None)[0][0]
    except OSError as error:
        raise BadInput(f"host {host}: not an address of this machine") from error
    reason = ""
    for one in tried:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, one))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            reason = error.strerror or "cannot be used"
    where = f"ports {tried[0]} to {tried[-1]}" if port is None else f"port {port}"
    raise BadInput(f"{where} of {host}: {reason.lower()}; give another one with --port")
