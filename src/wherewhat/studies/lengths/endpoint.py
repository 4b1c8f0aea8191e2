"""Answers as text from any endpoint with OpenAI's chat completions API."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from threading import Event, Lock
from typing import Any

import httpx2

from ...errors import BadInput
from ...files import parse_json
from ...prompts.one_hop import Question
from .answers import MOST_TOKENS, NEW_TOKENS, Keep, Reply
from .sender import Response, Sender, Transient

LONGEST_PAUSE = 60.0  # seconds between two attempts
LONGEST_WAIT = 600.0  # seconds; an endpoint that asks for a longer wait is an error
TRANSIENT = {408, 409, 425, 429}  # and every status from 500 on
TOO_LONG = re.compile(r"context.{0,3}(length|window|size)|maximum context|too long", re.IGNORECASE)


class Stopped(Exception):
    """Another question failed, so this one is not asked."""


class Pace:
    """Spaces requests evenly if their number per minute is limited; all of them wait if the endpoint asks for it."""

    def __init__(self, per_minute: float | None = None) -> None:
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next, self._lock, self._stopped = 0.0, Lock(), Event()

    def wait(self) -> None:
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
    """A model behind a URL such as https://api.openai.com/v1; `extra` holds additional fields of every request.

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
        check_extra(self.extra)
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise BadInput("the API key contains characters that cannot be sent")
        # Both are saved with the results. Short keys are placeholders, such as "none" for a local server.
        if self.key and len(self.key) >= 16 and self.key in self.url + json.dumps(dict(self.extra)):
            raise BadInput("the API key must not be part of the URL or of extra: it is sent as a header")
        for name, least in (("per_minute", 0.01), ("concurrency", 1), ("timeout", 0.1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise BadInput(f"{name} must be at least {least}, got {value}")
        self.identity = json.dumps([self.url, self.model, dict(self.extra), NEW_TOKENS], sort_keys=True)
        limit = {} if "max_completion_tokens" in self.extra else {"max_tokens": NEW_TOKENS}
        self._settings = without({**limit, "temperature": 0}, *self.extra)
        self._unfit: dict[str, float] = {}  # by task, the smallest window that was too long
        self._reached = False

    def ask(self, questions: Sequence[Question], keep: Keep) -> None:
        """Ask several questions at a time. After a failure, pending answers are still kept, and no more are asked."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        pace, sender = Pace(self.per_minute), Sender(headers, self.timeout)

        def answer(question: Question) -> None:
            try:
                keep(question, self._reply(sender, pace, question))
            except BaseException:
                pace.stop()  # before this thread takes the next question
                raise

        with closing(sender), ThreadPoolExecutor(self.concurrency) as pool:
            pending = [pool.submit(answer, question) for question in questions]
            try:
                for done in as_completed(pending):
                    if not isinstance(done.exception(), Stopped):
                        done.result()
            except BaseException:
                pace.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _reply(self, sender: Sender, pace: Pace, question: Question) -> Reply:
        failed = 0
        while question.window < self._unfit.get(question.task, math.inf):
            sender.client()  # before its turn comes
            pace.wait()
            sent = self._settings
            body = {"model": self.model, "messages": question.messages, **sent, **self.extra}
            try:
                response = sender.post(f"{self.url}/chat/completions", body)
                if response.code // 100 == 2:
                    reply = read_reply(response.text)
                    self._reached = True
                    return replace(reply, text=self._without_key(reply.text or ""))
                self._refused(response, question, sent)
            except (Transient, httpx2.RequestError) as error:
                failed += 1
                # A URL that never answered is more likely wrong than temporarily down.
                unreachable = not self._reached and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
                most = min(2, self.retries) if unreachable else self.retries
                if failed > most:
                    raise BadInput(
                        f"{self.url}: no answer after {failed} attempts ({self._redacted(error)})"
                    ) from error
                if isinstance(error, Transient) and error.after:
                    pace.hold(error.after)
                else:
                    longest = min(LONGEST_PAUSE, self.first_pause * 2 ** (failed - 1))
                    pace.pause(longest * random.uniform(0.5, 1))
        return Reply(None)

    def _refused(self, response: Response, question: Question, sent: Mapping[str, int]) -> None:
        """Change the next attempt according to why this one was refused, or give up."""
        code, text = response.code, response.text
        if code in (400, 413, 422) and TOO_LONG.search(text):
            self._unfit[question.task] = min(question.window, self._unfit.get(question.task, math.inf))
        elif code == 400 and "max_completion_tokens" in text and "max_tokens" in sent:
            self._settings = without(sent, "max_tokens") | {"max_completion_tokens": sent["max_tokens"]}
        elif code == 400 and "temperature" in text and "temperature" in sent:
            self._settings = without(sent, "temperature")
        elif (code in TRANSIENT or code >= 500) and "insufficient_quota" not in text:
            after = retry_after(response.retry_after)
            if after is not None and after > LONGEST_WAIT:
                raise BadInput(f"{self.url}: asks to wait {after:.0f} seconds ({code}); rerun after that")
            raise Transient(f"{code} {response.phrase}", after)
        elif code in (401, 403):
            raise BadInput(f"{self.url}: {'rejects the API key' if self.key else 'requires an API key'} ({code})")
        elif code == 404:
            raise BadInput(f"{self.url}: no model {self.model!r} here, or not a chat completions endpoint (404)")
        else:
            raise BadInput(f"{self.url}: rejects the request ({code}: {self._redacted(error_message(response))})")

    def _redacted(self, reason: object) -> str:
        """A reason in one line, without the API key should it contain that."""
        line = " ".join(str(reason).split()) or type(reason).__name__
        return (line.replace(self.key, "[key]") if self.key else line)[:200]

    def _without_key(self, text: str) -> str:
        """A text without the API key, should the endpoint echo it; short keys are placeholders."""
        return text.replace(self.key, "[key]") if self.key and len(self.key) >= 8 else text


def checked_url(url: str, key: str | None = None) -> str:
    """The base URL of an endpoint; refused if a key would be sent unencrypted or saved with the results."""
    if any(sign in url for sign in "@?#"):  # not repeated in the message: it may contain a password
        raise BadInput("the URL of an endpoint must not contain a user name, password or parameters")
    try:
        parts = httpx2.URL(url.strip().rstrip("/").removesuffix("/chat/completions"))
    except httpx2.InvalidURL as error:
        raise BadInput(f"{url}: not a URL ({error})") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise BadInput(f"{url}: expected http://HOST/v1 or https://HOST/v1")
    if key and parts.scheme == "http" and parts.host not in ("localhost", "127.0.0.1", "::1"):
        raise BadInput(f"{url}: the API key would be sent unencrypted; use https, or no key")
    return str(parts if parts.path.strip("/") else parts.join("/v1")).rstrip("/")


def check_extra(extra: Mapping[str, Any]) -> None:
    """Refuse fields that are set by the study, or that JSON cannot hold."""
    if taken := sorted({"messages", "model", "stream"} & extra.keys()):
        raise BadInput(f"extra cannot set {', '.join(taken)}")
    try:
        json.dumps(dict(extra), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"extra cannot be written as JSON ({error})") from error


def without(settings: Mapping[str, int], *names: str) -> dict[str, int]:
    return {name: value for name, value in settings.items() if name not in names}


def read_reply(text: str) -> Reply:
    """The answer in a chat completion, empty if the model wrote nothing; anything else counts as a failed attempt.

    Lone surrogates, which no file can hold, are escaped: such an answer is malformed.
    """
    try:
        completion = parse_json(text)
        answer = str(completion["choices"][0]["message"].get("content") or "")
        usage = completion.get("usage") or {}
        tokens = (number_of_tokens(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        return Reply(answer.encode("utf-8", "backslashreplace").decode("utf-8"), *tokens)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise Transient("the response is not a chat completion") from error


def number_of_tokens(stated: Any) -> int:
    """A number of tokens, or 0 if an endpoint states none that can be believed."""
    return int(stated) if isinstance(stated, int | float) and 0 <= stated < MOST_TOKENS else 0


def error_message(response: Response) -> str:
    """The reason that the endpoint gives."""
    try:
        content = parse_json(response.text)
        why = content.get("error") or content.get("detail") or content.get("message")
        return str(why.get("message", why) if isinstance(why, dict) else why or response.phrase)
    except (ValueError, AttributeError):
        return response.text or response.phrase


def retry_after(stated: str) -> float | None:
    """Seconds to wait, from a number or a date."""
    try:
        return None if math.isnan(float(stated)) else max(0.0, float(stated))
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
        except (ValueError, OverflowError):
            return None
