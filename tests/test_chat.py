"""Chat templates: the text of transformers' own renderer, and limits that hit nothing but the template."""

from __future__ import annotations

import resource
import threading
import time
from types import SimpleNamespace

import pytest

import wherewhat as ww
from conftest import weights
from test_prompts import built_tokenizer
from wherewhat.prompts import chat
from wherewhat.prompts.chat import in_chat

MESSAGES = [{"role": "system", "content": "Be brief: \U0001f600 \ud800"}, {"role": "user", "content": "Who?"}]
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<reply>{% endif %}"
)


def render(template: str, **options: object) -> str:
    tokenizer = built_tokenizer("words")
    tokenizer.chat_template = template
    return in_chat(tokenizer, MESSAGES, **options)


def test_the_text_is_the_one_that_transformers_writes() -> None:
    assert render(PLAIN) == "<system>Be brief: \U0001f600 \ud800<user>Who?<reply>"
    assert render(PLAIN + "{{ thinking }}", thinking=False).endswith("<reply>False")


@pytest.mark.weights
def test_the_template_of_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ww.load_tokenizer(weights("SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf"))
    messages = [{"role": "user", "content": "Who?"}]
    wanted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert in_chat(tokenizer, messages) == wanted
    monkeypatch.delattr("os.fork")  # as on Windows
    assert in_chat(tokenizer, messages) == wanted


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'where' * 2000000000 }}",
        "{% set ns = namespace(x='what') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        pytest.param(
            "{% for i in range(99999) %}{% for k in range(9999) %}{{ 'what' * 200000 }}{% endfor %}{% endfor %}",
            marks=pytest.mark.slow,
        ),
        "{{ 'where' | center(3000000000) }}",
    ],
)
def test_a_chat_template_that_writes_gigabytes_is_refused(template: str) -> None:
    with pytest.raises(ww.BadInput, match=r"the chat template cannot be used \(it makes more than 100,000,000 char"):
        render(template)


def test_a_text_that_is_too_long_is_refused_even_if_it_fits_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "LONGEST", 100)
    assert render("{{ 'x' * 100 }}") == "x" * 100
    with pytest.raises(ww.BadInput, match="more than 100 characters"):
        render("{{ 'x' * 101 }}")


@pytest.mark.slow
def test_a_chat_template_that_computes_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 1)
    start = time.monotonic()
    with pytest.raises(ww.BadInput, match="it takes more than 10 seconds"):
        render("{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}")
    assert time.monotonic() - start < 30  # of wall time, on a busy machine


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.x.y }}", "has no attribute"),
        ("{% for %}", "Expected an expression"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
    ],
)
def test_a_chat_template_that_fails_is_refused_with_its_reason(template: str, reason: str) -> None:
    with pytest.raises(ww.BadInput, match=rf"the chat template cannot be used \(.*{reason}"):
        render(template)


def test_no_chat_template_at_all() -> None:
    with pytest.raises(ww.BadInput, match="the tokenizer has no chat template"):
        render("")


def test_other_threads_can_allocate_memory_while_a_template_is_rendered() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    failed, done = [], threading.Event()

    def allocate() -> None:
        while not done.is_set():
            try:
                bytearray(2 * chat.MEMORY)
            except MemoryError as error:
                failed.append(error)

    thread = threading.Thread(target=allocate)
    thread.start()
    for _ in range(5):
        with pytest.raises(ww.BadInput):
            render("{{ 'where' | center(3000000000) }}")
    done.set()
    thread.join()
    assert not failed
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_a_template_that_waits_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stuck uses no CPU time, so another limit must hold."""
    monkeypatch.setattr(chat, "PATIENCE", 0.2)
    stuck = SimpleNamespace(chat_template="x", apply_chat_template=lambda *_, **__: time.sleep(60))
    with pytest.raises(ww.BadInput, match="it takes more than 10 seconds"):
        in_chat(stuck, [{"role": "user", "content": "Who?"}])
