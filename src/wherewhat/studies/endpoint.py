"""Answers as text from any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from threading import Event, Lock
from typing import Any

import httpx2

from ..errors import BadInput
from ..prompts.one_hop import Question
from .answers import NEW_TOKENS, Keep, Reply

LONGEST_PAUSE = 60.0  # seconds between two tries
LONGEST_WAIT = 600.0  # an endpoint that asks for more than this is left for another day
TRANSIENT = {408, 409, 425, 429}  # and all from 500 on
TOO_LONG = re.compile(r"context.{0,3}(length|window|size)|maximum context|too long", re.IGNORECASE)


class Transient(Exception):
    """No answer this time; the endpoint may have said after how many seconds to try again."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Stopped(Exception):
    """Something failed elsewhere, so this is not asked."""


class Pace:
    """Turns for requests, evenly spaced where there is a limit a minute; all wait where the endpoint asks for it."""

    def __init__(self, per_minute: float | None = None) -> None:
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next, self._lock, self._stopped = 0.0, Lock(), Event()

    def turn(self) -> None:
        with self._lock:
            mine = max(time.monotonic(), self._next)
            self._next = mine + self._gap
        self.pause(mine - time.monotonic())

    def hold(self, seconds: float) -> None:
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def pause(self, seconds: float) -> None:
        if self._stopped.wait(max(0.0, seconds)):
            raise Stopped

    def stop(self) -> None:
        self._stopped.set()


@dataclass
class Endpoint:
    """A model behind an address such as https://api.openai.com/v1; `extra` are fields for every request.

    >>> Endpoint("http://localhost:8000/v1", "qwen3").ask(questions, print)            # doctest: +SKIP
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    retries: int = 8
    per_minute: float | None = None
    concurrency: int = 4
    first_pause: float = 1.0

    def __post_init__(self) -> None:
        self.url = checked_url(self.url, self.key)
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise BadInput("the key holds characters that cannot be sent")
        self.identity = json.dumps([self.url, self.model, dict(self.extra), NEW_TOKENS], sort_keys=True)
        limit = {} if "max_completion_tokens" in self.extra else {"max_tokens": NEW_TOKENS}
        self._settings = without({**limit, "temperature": 0}, *self.extra)
        self._unfit: dict[str, float] = {}  # the smallest window of a task that was too long
        self._reached = False

    def ask(self, questions: Sequence[Question], keep: Keep) -> None:
        """Several at a time. What is under way when something fails is still kept; what is not begun is not asked."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        pace = Pace(self.per_minute)

        def answer(question: Question) -> None:
            try:
                keep(question, self._reply(client, pace, question))
            except BaseException:
                pace.stop()  # before this thread takes the next question
                raise

        with (
            httpx2.Client(headers=headers, timeout=self.timeout) as client,
            ThreadPoolExecutor(self.concurrency) as pool,
        ):
            asked = [pool.submit(answer, question) for question in questions]
            try:
                for done in as_completed(asked):
                    if not isinstance(done.exception(), Stopped):
                        done.result()
            except BaseException:
                pace.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _reply(self, client: httpx2.Client, pace: Pace, question: Question) -> Reply:
        failed = 0
        while question.window < self._unfit.get(question.task, math.inf):
            pace.turn()
            sent = self._settings
            body = {"model": self.model, "messages": question.messages, **sent, **self.extra}
            try:
                response = client.post(f"{self.url}/chat/completions", json=body)
                if response.is_success:
                    reply = read_reply(response)
                    self._reached = True
                    return reply
                self._refused(response, question, sent)
            except (Transient, httpx2.RequestError) as error:
                failed += 1
                # An address at which nobody ever answered is more likely wrong than down.
                nobody = not self._reached and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
                most = min(2, self.retries) if nobody else self.retries
                if failed > most:
                    raise BadInput(f"{self.url}: no answer in {failed} tries ({self._told(error)})") from error
                if isinstance(error, Transient) and error.after:
                    pace.hold(error.after)
                else:
                    longest = min(LONGEST_PAUSE, self.first_pause * 2 ** (failed - 1))
                    pace.pause(longest * random.uniform(0.5, 1))
        return Reply(None)

    def _refused(self, response: httpx2.Response, question: Question, sent: Mapping[str, int]) -> None:
        """Take note of why, so that the next try is another one; or give up."""
        code, text = response.status_code, response.text
        if code in (400, 413, 422) and TOO_LONG.search(text):
            self._unfit[question.task] = min(question.window, self._unfit.get(question.task, math.inf))
        elif code == 400 and "max_completion_tokens" in text and "max_tokens" in sent:
            self._settings = without(sent, "max_tokens") | {"max_completion_tokens": sent["max_tokens"]}
        elif code == 400 and "temperature" in text and "temperature" in sent:
            self._settings = without(sent, "temperature")
        elif (code in TRANSIENT or code >= 500) and "insufficient_quota" not in text:
            after = retry_after(response)
            if after is not None and after > LONGEST_WAIT:
                raise BadInput(f"{self.url}: asks to wait {after:.0f} seconds ({code}); try again then")
            raise Transient(f"{code} {response.reason_phrase}", after)
        elif code in (401, 403):
            raise BadInput(f"{self.url}: " + ("refuses the key" if self.key else "wants a key") + f" ({code})")
        elif code == 404:
            raise BadInput(f"{self.url}: has no model {self.model!r}, or is no address of chat completions (404)")
        else:
            raise BadInput(f"{self.url}: refuses the request ({code}: {self._told(message(response))})")

    def _told(self, said: object) -> str:
        """In one line, and without the key, should it be in there."""
        line = " ".join(str(said).split()) or type(said).__name__
        return (line.replace(self.key, "[key]") if self.key else line)[:200]


def checked_url(url: str, key: str | None = None) -> str:
    """The address under which paths begin; refused where a key would be seen on the way or stand in files."""
    if any(sign in url for sign in "@?#"):  # not told: a password may be in it
        raise BadInput("the address of an endpoint holds no name, password or parameters; keys are for the environment")
    try:
        parts = httpx2.URL(url.strip().rstrip("/").removesuffix("/chat/completions"))
    except httpx2.InvalidURL as error:
        raise BadInput(f"{url}: no address ({error})") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise BadInput(f"{url}: an endpoint is http://HOST/v1 or https://HOST/v1")
    if key and parts.scheme == "http" and parts.host not in ("localhost", "127.0.0.1", "::1"):
        raise BadInput(f"{url}: the key would travel in clear; use https, or leave the key out")
    return str(parts if parts.path.strip("/") else parts.join("/v1")).rstrip("/")


def without(settings: Mapping[str, int], *names: str) -> dict[str, int]:
    return {name: value for name, value in settings.items() if name not in names}


def read_reply(response: httpx2.Response) -> Reply:
    """What was said; a model that says nothing gives an empty answer, anything else is no answer."""
    try:
        told = response.json()
        text = told["choices"][0]["message"].get("content") or ""
        usage = told.get("usage") or {}
        return Reply(str(text), int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise Transient("what came is no chat completion") from error


def message(response: httpx2.Response) -> str:
    """Why the endpoint refuses, in its own words."""
    try:
        told = response.json()
        why = told.get("error") or told.get("detail") or told.get("message")
        return str(why.get("message", why) if isinstance(why, dict) else why or response.reason_phrase)
    except (ValueError, AttributeError):
        return response.text or response.reason_phrase


def retry_after(response: httpx2.Response) -> float | None:
    """Seconds to wait, from a number or a date."""
    said = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(said))
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
        except ValueError:
            return None
