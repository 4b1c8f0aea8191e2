"""Messages in a model's chat template, which is a program that may come from anywhere.

It runs in a forked process with limits on memory and time. Limits on this process would hit its other threads as well.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, NoReturn

from ..errors import BadInput

LONGEST = 100_000_000  # characters; no context is as long
MEMORY = 2 * LONGEST  # bytes that rendering may use
SECONDS, PATIENCE = 10, 60  # of CPU time, of waiting
TOO_SLOW = f"it takes more than {SECONDS} seconds"


def in_chat(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> str:
    """Messages in the model's chat template, up to the start of its reply; `options` go to the template."""
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput("the tokenizer has no chat template")

    def render() -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)

    return _in_fork(render) if hasattr(os, "fork") else render()


def _in_fork(render: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _write(render, writing)
    os.close(writing)
    try:
        with open(reading, "rb", buffering=0) as pipe:
            reply = _read(pipe.fileno()).decode(errors="surrogatepass")
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return reply
    reason = TOO_SLOW if code == -signal.SIGXCPU else reply or f"it ends with {code}"
    raise BadInput(f"the chat template cannot be used ({reason})")


def _read(pipe: int) -> bytes:
    """Everything that is written into the pipe, at most for PATIENCE seconds: a forked process can also be stuck."""
    parts, deadline = [b""], monotonic() + PATIENCE
    while wait([pipe], max(0.0, deadline - monotonic())):
        parts.append(os.read(pipe, 2**20))
        if not parts[-1]:
            return b"".join(parts)
    raise BadInput(f"the chat template cannot be used ({TOO_SLOW})")


def _write(render: Callable[[], str], pipe: int) -> NoReturn:
    """In the forked process: write the text into the pipe and exit with 0, or the reason why not, and exit with 1."""
    code = 1
    try:
        _limit()
        text = render()
        if not isinstance(text, str):
            raise TypeError("it does not return a text")
        if len(text) > LONGEST:
            raise MemoryError
        code = 0
    except MemoryError:
        text = f"it makes more than {LONGEST:,} characters"
    except BaseException as error:  # a template may raise anything
        text = str(error).strip()[:500] or type(error).__name__
    try:
        with open(pipe, "wb") as file:
            file.write(text.encode(errors="surrogatepass"))
    finally:
        os._exit(code)


def _limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    try:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
    except OSError:  # not Linux: the length of the text alone is limited
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
